"""Joins the parts of `pgpu serve`: the engine, the services on it, and the sockets.

It refuses to answer and to decide. The server's own engine is like everybody's; what makes it the server is its lock.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pgpu.app.composition import make_engine, sweep_volumes
from pgpu.app.gateway import GatewayKeeper, keeping_gateway
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings
from pgpu.client.address import GATEWAY_SOCKET

if TYPE_CHECKING:
    from pgpu.engine.engine import Engine
    from pgpu.functions.deploy import Deployer
    from pgpu.server.listeners import Tcp
    from pgpu.server.maintenance import Maintenance
    from pgpu.services.access import AccessRules
    from pgpu.services.engine_pool import EnginePool


def serve(
    settings: Settings, unix: Path, tcp: "Tcp | None", say: Callable[[str], None], gateway: "str | None" = None
) -> None:
    """Be the server of a state directory until SIGTERM or SIGINT.

    Args:
        settings: Of the engine.
        unix: Where the Unix socket goes.
        tcp: Another address, or None.
        say: Called with one line for each address once it takes requests.
        gateway: HOST:PORT where functions are called; empty for its Unix socket alone, None for no gateway.

    Raises:
        PgpuError: It cannot listen there, or the settings name what is not there.
    """
    from pgpu.server import listeners
    from pgpu.server.connection_limits import raise_descriptor_limit
    from pgpu.server.maintenance import Maintenance

    usual_descriptors = raise_descriptor_limit()
    with listeners.only_server(settings.state_dir / "server.lock"):
        engine = make_engine(settings)
        keeper = _gateway(settings, unix, gateway)
        services = _services(settings, engine, usual_descriptors)
        _listen(settings, unix, tcp, say, (*services, Maintenance(engine, lambda: sweep_volumes(settings)), keeper))


def _services(
    settings: Settings, engine: "Engine", usual_descriptors: tuple[int, int]
) -> "tuple[EnginePool, AccessRules]":
    from pgpu.services.access import AccessRules
    from pgpu.services.administration import uid_of_token
    from pgpu.services.engine_pool import EnginePool

    rules = AccessRules(
        lambda token: uid_of_token(engine.ledger.tokens, token),
        settings.submitters,
        limits=(("RLIMIT_NOFILE", *usual_descriptors),),
    )
    return EnginePool(engine, lambda model: make_engine(replace(settings, simulate=model)), is_server=True), rules


def _listen(
    settings: Settings,
    unix: Path,
    tcp: "Tcp | None",
    say: Callable[[str], None],
    parts: "tuple[EnginePool, AccessRules, Maintenance, GatewayKeeper | None]",
) -> None:
    from pgpu.server import listeners
    from pgpu.server.application import create_app

    def tell() -> None:
        stack.enter_context(keeping_gateway(parts[3]))
        for address in _addresses(unix, tcp):
            say(f"listening at {address}")

    with listeners.listening_unix(unix, settings.submitters) as socket, contextlib.ExitStack() as stack:
        other = None if tcp is None else (tcp, stack.enter_context(listeners.listen_tcp(tcp)))
        app = create_app(*parts[:3], _deployer(settings))
        with _taking_care(parts[2]):
            listeners.serve(app, socket, other, most_connections=settings.connections, on_ready=tell)


def _gateway(settings: Settings, unix: Path, address: str | None) -> GatewayKeeper | None:
    """Return who keeps the gateway; None where none is wanted, or the extra `functions` is not installed."""
    if address is None or not _has_functions():
        return None
    socket, state = unix.with_name(GATEWAY_SOCKET), settings.state_dir / "functions"
    return GatewayKeeper(unix, socket, state, address or None, settings.build_timeout)


def _has_functions() -> bool:
    import importlib.util

    return all(importlib.util.find_spec(name) is not None for name in ("msgspec", "pathspec", "httptools"))


def _deployer(settings: Settings) -> "Deployer | None":
    """Return what knows bundles; None where the extra `functions` is not installed."""
    if not _has_functions():
        return None
    from pgpu.functions.deploy import BundleStore, Deployer

    runtime = runtime_directory(settings.runtime_dir, settings.state_dir)
    return Deployer(BundleStore(settings.state_dir / "functions"), runtime / "replicas")


def _addresses(unix: Path, tcp: "Tcp | None") -> list[str]:
    if tcp is None:
        return [f"unix://{unix}"]
    return [f"unix://{unix}", f"{'http' if tcp.certificate is None else 'https'}://{tcp.host}:{tcp.port}"]


@contextlib.contextmanager
def _taking_care(caretaker: "Maintenance") -> Iterator[None]:
    caretaker.start()
    try:
        yield
    finally:
        caretaker.stop()
