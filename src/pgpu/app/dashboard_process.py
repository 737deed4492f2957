"""The server of `pgpu dashboard`: the dashboard of this user's own engine, on 127.0.0.1, until SIGINT.

It prints a link with a one-time code, and another one at each Enter on its terminal. With a server on this machine its page is used
instead: that server knows the users.
"""

import sys
import threading
from collections.abc import Callable

from fastapi import FastAPI

from pgpu.app.client_factory import open_client
from pgpu.app.settings import Settings
from pgpu.client.embedded_client import EmbeddedClient
from pgpu.errors import RequestError
from pgpu.ledger import GpuHistory
from pgpu.server.application import add_error_handlers
from pgpu.server.connection_limits import raise_descriptor_limit
from pgpu.server.dashboard.feed import Feed
from pgpu.server.dashboard.picture import PictureReader
from pgpu.server.dashboard.routes import Board, WeekCache, routes
from pgpu.server.dashboard.sign_in import PATH, CodeSignIn, LoginCodes
from pgpu.server.listeners import Tcp, listen_tcp
from pgpu.server.listeners import serve as serve_until_signal

ADDRESS = "127.0.0.1"


def serve_dashboard(settings: Settings, port: int, announce: Callable[[str], None]) -> None:
    """Serve the dashboard until SIGTERM or SIGINT.

    Args:
        settings: Of the engine.
        port: On 127.0.0.1; 0 for any free one.
        announce: Called with each link.

    Raises:
        RequestError: Commands of this user ask a server, which has a dashboard of its own.
        NodeError: The port is not free, or this machine lacks what the settings name.
    """
    client = open_client(settings)
    if not isinstance(client, EmbeddedClient):
        raise RequestError(
            "the GPUs are a server's, which has a dashboard of its own",
            hint="open it at /dashboard of its --tcp address, or see docs/guide/dashboard.md for its socket over ssh",
        )
    raise_descriptor_limit()
    codes = LoginCodes()
    app = FastAPI(title="pgpu dashboard", openapi_url=None, docs_url=None, redoc_url=None)
    board = app.state.board = Board(
        Feed(PictureReader(client).read),
        CodeSignIn(codes),
        lambda _caller: client,
        WeekCache(GpuHistory(client.engines.own.settings.state_directory)),
    )
    app.state.leave = board.feed.close
    app.include_router(routes)
    add_error_handlers(app)
    with listen_tcp(Tcp(ADDRESS, port)) as listener:
        url = f"http://{ADDRESS}:{listener.getsockname()[1]}{PATH}/"

        def print_link() -> None:
            announce(f"{url}#code={codes.make()}")

        def on_ready() -> None:
            print_link()
            if sys.stdin is not None and sys.stdin.isatty():
                announce("the link is valid once, for a minute: press Enter for another one, Ctrl-C to end")
                threading.Thread(target=_print_links, args=(print_link,), daemon=True).start()

        serve_until_signal(app, listener, most_connections=settings.connections, on_ready=on_ready)


def _print_links(print_link: Callable[[], None]) -> None:
    for _ in sys.stdin:
        print_link()
