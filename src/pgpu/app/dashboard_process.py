"""The server of `pgpu dashboard`: the dashboard of one user, on 127.0.0.1, until SIGINT.

It prints a link with a one-time code, and another one at each Enter on its terminal. The data comes from this user's own engine, or
from the machine's server where there is one, which gives this user what that user may see.
"""

import sys
import threading
from collections.abc import Callable

from fastapi import FastAPI

from pgpu.app.client_factory import open_client, server_address
from pgpu.app.settings import Settings
from pgpu.client.address import TcpAddress
from pgpu.client.embedded_client import EmbeddedClient
from pgpu.errors import PgpuBug, RequestError
from pgpu.ledger import GpuHistory
from pgpu.server.application import add_error_handlers
from pgpu.server.browser_boundary import DASHBOARD_PATH, BrowserBoundary
from pgpu.server.connection_limits import raise_descriptor_limit
from pgpu.server.dashboard.feed import Feed
from pgpu.server.dashboard.forwarding import forwarding_routes
from pgpu.server.dashboard.picture import PictureReader
from pgpu.server.dashboard.routes import Board, WeekCache, data_routes, page_routes
from pgpu.server.dashboard.sign_in import CodeSignIn, LoginCodes
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
        RequestError: Commands of this user ask a server on another machine, which has a page of its own.
        NodeError: The port is not free, or this machine lacks what the settings name.
    """
    codes = LoginCodes()
    app = FastAPI(title="pgpu dashboard", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.sign_in, app.state.leave = CodeSignIn(codes), lambda: None
    app.add_middleware(BrowserBoundary)
    app.include_router(page_routes)
    add_error_handlers(app)
    address = server_address(settings)
    if isinstance(address, TcpAddress):
        raise RequestError(
            "the server is on another machine",
            hint=f"open {address}{DASHBOARD_PATH}/ with your token, or run this there over ssh",
        )
    if address is not None:
        app.include_router(forwarding_routes(address.path, app.state.sign_in))
    else:
        _add_data(app, settings)
    raise_descriptor_limit()
    with listen_tcp(Tcp(ADDRESS, port)) as listener:
        url = f"http://{ADDRESS}:{listener.getsockname()[1]}{DASHBOARD_PATH}/"

        def print_link() -> None:
            announce(f"{url}#code={codes.make()}")

        def on_ready() -> None:
            print_link()
            if sys.stdin is not None and sys.stdin.isatty():
                announce("the link is valid once, for a minute: press Enter for another one, Ctrl-C to end")
                threading.Thread(target=_print_links, args=(print_link,), daemon=True).start()

        serve_until_signal(app, listener, most_connections=settings.connections, on_ready=on_ready)


def _add_data(app: FastAPI, settings: Settings) -> None:
    """Let the engine in this process answer for the data."""
    client = open_client(settings)
    if not isinstance(client, EmbeddedClient):
        raise PgpuBug(f"a client of {settings.host} without its address")
    history = GpuHistory(client.engines.own.settings.state_directory)
    board = app.state.board = Board(Feed(PictureReader(client).read), lambda _caller: client, WeekCache(history))
    app.state.leave = board.feed.close
    app.include_router(data_routes)


def _print_links(print_link: Callable[[], None]) -> None:
    for _ in sys.stdin:
        print_link()
