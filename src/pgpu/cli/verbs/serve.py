"""`pgpu serve`: the engine as a server for everybody on this machine."""

import dataclasses
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console
from pgpu.client.address import SYSTEM_SOCKET, UnixAddress, address_of
from pgpu.distribution import extra_hint
from pgpu.errors import NodeError, RequestError

if TYPE_CHECKING:
    from pgpu.app.settings import Settings
    from pgpu.server.listeners import Tcp

_SYSTEM_STATE = Path("/var/lib/pgpu")
_MOST_PORT = 65_535
_GATEWAY = "127.0.0.1:8080"
_NO_GATEWAY = "none"


def serve(
    context: typer.Context,
    *,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="unix:///PATH",
            help="The Unix socket (PGPU_HOST); root's is unix:///run/pgpu/pgpu.sock by default.",
        ),
    ] = None,
    tcp: Annotated[
        str | None,
        typer.Option("--tcp", metavar="ADDRESS:PORT", help="Listen there, too, for callers with a token."),
    ] = None,
    gateway: Annotated[
        str,
        typer.Option(
            "--gateway",
            metavar="ADDRESS:PORT",
            help="Where functions are called with a token; none serves no functions.",
        ),
    ] = _GATEWAY,
    tls_certificate: Annotated[
        Path | None,
        typer.Option("--tls-certificate", metavar="FILE", help="PEM file that proves who the server is; off loopback."),
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="PEM file of its key.")] = None,
    idle_timeout: Annotated[
        str | None,
        typer.Option(
            "--idle-timeout",
            metavar="DURATION",
            help="Report jobs that did nothing on their GPUs for so long (PGPU_IDLE_TIMEOUT); PGPU_ON_IDLE=stop ends them.",
        ),
    ] = None,
) -> None:
    """Serve this machine's GPUs to all its users, until SIGTERM; jobs go on without it.

    Callers on the socket are who the kernel says: they see and stop their own jobs; root administers.
    """
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
        raise NodeError("the server's libraries are not installed", hint=extra_hint("server"))
    settings = _of_server(invocation_of(context).settings(host=host, idle_timeout=idle_timeout))
    if idle_timeout is not None:  # Supervisors are processes of their own, and read it there.
        os.environ["PGPU_IDLE_TIMEOUT"] = idle_timeout
    from pgpu.app.server_process import serve as serve_until_told

    serve_until_told(
        settings, _socket(settings), _tcp(tcp, tls_certificate, tls_key), console.print_note, _gateway(gateway)
    )


def _gateway(words: str) -> str | None:
    """Read where functions are called; None for nowhere."""
    from pgpu.server.listeners import is_loopback

    if words == _NO_GATEWAY:
        return None
    address, _, port = words.rpartition(":")
    if not address or not port.isdecimal() or not 0 <= int(port) <= _MOST_PORT:
        raise RequestError(f"--gateway {words!r} is not ADDRESS:PORT", hint=f"write --gateway {_GATEWAY}, or none")
    if not is_loopback(address.strip("[]")):
        raise RequestError(
            f"a token would be read on its way to {address}", hint="put a proxy with TLS before 127.0.0.1"
        )
    return words


def _of_server(settings: "Settings") -> "Settings":
    """Root's server keeps its state where a system's services do, not in root's home."""
    from pgpu.app.settings import Settings

    if os.geteuid() == 0 and settings.state_dir == Settings().state_dir:
        return dataclasses.replace(settings, state_dir=_SYSTEM_STATE)
    return settings


def _socket(settings: "Settings") -> Path:
    address = None if settings.host is None else address_of(settings.host)
    if isinstance(address, UnixAddress):
        return address.path
    if settings.host is not None or os.geteuid() != 0:
        raise RequestError("a server needs a Unix socket", hint='write --host "unix://$XDG_RUNTIME_DIR/pgpu.sock"')
    return SYSTEM_SOCKET


def _tcp(words: str | None, certificate: Path | None, key: Path | None) -> "Tcp | None":
    from pgpu.server.listeners import Tcp

    if words is None:
        if certificate is not None or key is not None:
            raise RequestError("a certificate is for TCP", hint="add --tcp ADDRESS:PORT")
        return None
    address, _, port = words.rpartition(":")
    if not address or not port.isdecimal() or not 0 <= int(port) <= _MOST_PORT:
        raise RequestError(f"--tcp {words!r} is not ADDRESS:PORT", hint="write --tcp 127.0.0.1:7878")
    return Tcp(address.strip("[]"), int(port), certificate, key)
