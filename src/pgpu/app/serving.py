"""Joins the parts of `pgpu serve`: the engine, the desk before it, and the sockets.

It refuses to answer and to decide. The server's own engine is like everybody's; what makes it the server is its lock.
"""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgpu.app.settings import Settings
from pgpu.app.wiring import make_engine

if TYPE_CHECKING:
    from collections.abc import Callable

    from pgpu.server.listening import Tcp


def serve(settings: Settings, unix: Path, tcp: "Tcp | None", say: "Callable[[str], None]") -> None:
    """Be the server of a state directory until SIGTERM or SIGINT.

    Args:
        settings: Of the engine.
        unix: Where the Unix socket goes.
        tcp: Another address, or None.
        say: Called with one line for each address once it takes requests.

    Raises:
        PgpuError: It cannot listen there, or the settings name what is not there.
    """
    from pgpu.client.administration import uid_of_token
    from pgpu.server import listening
    from pgpu.server.access import Access
    from pgpu.server.app import create_app
    from pgpu.server.care import Caretaker
    from pgpu.server.desk import Desk
    from pgpu.server.entrance import raise_descriptor_limit

    usual_descriptors = raise_descriptor_limit()
    with listening.only_server(settings.state_dir / "server.lock"):
        engine = make_engine(settings)
        desk = Desk(
            engine,
            Access(
                lambda token: uid_of_token(engine.ledger.tokens, token),
                settings.submitters,
                limits=(("RLIMIT_NOFILE", *usual_descriptors),),
            ),
            lambda model: make_engine(replace(settings, simulate=model)),
        )
        caretaker = Caretaker(engine)
        app = create_app(desk, caretaker)
        with listening.listen_unix(unix, settings.submitters) as socket, contextlib.ExitStack() as stack:
            other = None if tcp is None else (tcp, stack.enter_context(listening.listen_tcp(tcp)))
            addresses = [f"unix://{unix}"]
            if tcp is not None:
                addresses.append(f"{'http' if tcp.certificate is None else 'https'}://{tcp.host}:{tcp.port}")

            def tell() -> None:
                for address in addresses:
                    say(f"listening at {address}")

            caretaker.start()
            try:
                listening.serve(
                    app,
                    socket,
                    other,
                    most_connections=settings.connections,
                    on_ready=tell,
                )
            finally:
                caretaker.stop()
