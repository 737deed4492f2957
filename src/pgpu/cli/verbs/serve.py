"""`pgpu serve` runs the server of a machine, `pgpu dashboard` its page for one user; `pgpu install-runtime` registers the runtime with Docker."""

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console
from pgpu.client.address import SYSTEM_SOCKET, UnixAddress, address_of
from pgpu.distribution import extra_hint
from pgpu.errors import NodeError, RequestError
from pgpu.structs import replace

if TYPE_CHECKING:
    from pgpu.app.settings import Settings
    from pgpu.server.listeners import Tcp

_SYSTEM_STATE = Path("/var/lib/pgpu")
_GATEWAY = "127.0.0.1:8080"
_NO_GATEWAY = "none"
_DASHBOARD_PORT = 8765


def serve(
    context: typer.Context,
    *,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="unix:///PATH",
            help="Unix socket [for root unix:///run/pgpu/pgpu.sock] (PGPU_HOST).",
        ),
    ] = None,
    tcp: Annotated[
        str | None,
        typer.Option("--tcp", metavar="ADDRESS:PORT", help="Also listen on TCP, for callers with a token."),
    ] = None,
    gateway: Annotated[
        str,
        typer.Option(
            "--gateway", metavar="ADDRESS:PORT", help="Address on which functions are called; none turns them off."
        ),
    ] = _GATEWAY,
    tls_certificate: Annotated[
        Path | None,
        typer.Option("--tls-certificate", metavar="FILE", help="PEM certificate for --tcp; required beyond loopback."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option("--tls-key", metavar="FILE", help="PEM key of the certificate.")
    ] = None,
    idle_timeout: Annotated[
        str | None,
        typer.Option(
            "--idle-timeout",
            metavar="DURATION",
            help="Report jobs without GPU work for this long (PGPU_IDLE_TIMEOUT); PGPU_ON_IDLE=stop ends them.",
        ),
    ] = None,
) -> None:
    """Serve this machine's GPUs to all its users.

    Runs until SIGTERM; jobs go on without it. SIGHUP reloads the settings. The kernel names the user behind each connection to the socket: users
    see and stop their own jobs, root administers.
    """
    from pgpu.app.server_process import serve as serve_until_signal
    from pgpu.app.settings import Settings

    def load() -> "Settings":
        settings = invocation_of(context).settings(host=host, idle_timeout=idle_timeout)
        # root's own home is not for a service
        is_roots = os.geteuid() == 0 and settings.state_dir == Settings().state_dir
        return replace(settings, state_dir=_SYSTEM_STATE) if is_roots else settings

    _check_libraries()
    if idle_timeout is not None:  # Supervisors are other processes and read it from the environment.
        os.environ["PGPU_IDLE_TIMEOUT"] = idle_timeout
    serve_until_signal(
        load,
        _choose_socket(load()),
        _read_tcp(tcp, tls_certificate, tls_key),
        console.print_note,
        _read_gateway(gateway),
    )


def dashboard(
    context: typer.Context,
    *,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=options.MOST_PORT, help="Port on 127.0.0.1; 0 for any.")
    ] = _DASHBOARD_PORT,
) -> None:
    """Show GPUs, jobs and their last week in a browser.

    Prints a link that signs one browser in; it is valid once, for a minute, and Enter prints another one. The page changes nothing.
    Runs until Ctrl-C, on 127.0.0.1 alone. A server has the same page at /dashboard.
    """
    _check_libraries()
    from pgpu.app.dashboard_process import serve_dashboard

    serve_dashboard(invocation_of(context).settings(), port, print)


def _check_libraries() -> None:
    if importlib.util.find_spec("fastapi") is None or importlib.util.find_spec("uvicorn") is None:
        raise NodeError("the server's libraries are not installed", hint=extra_hint("server"))


def _read_gateway(words: str) -> str | None:
    """Check the gateway's address; None means no gateway."""
    from pgpu.server.listeners import is_loopback

    if words == _NO_GATEWAY:
        return None
    address, _ = options.read_address("--gateway", words, f"write --gateway {_GATEWAY}, or none")
    # The gateway speaks plain HTTP only.
    if not is_loopback(address):
        raise RequestError(
            f"a token would be read on its way to {address}", hint="put a proxy with TLS before 127.0.0.1"
        )
    return words


def _choose_socket(settings: "Settings") -> Path:
    address = None if settings.host is None else address_of(settings.host)
    if isinstance(address, UnixAddress):
        return address.path
    if settings.host is not None or os.geteuid() != 0:
        raise RequestError("a server needs a Unix socket", hint='write --host "unix://$XDG_RUNTIME_DIR/pgpu.sock"')
    return SYSTEM_SOCKET


def _read_tcp(words: str | None, certificate: Path | None, key: Path | None) -> "Tcp | None":
    from pgpu.server.listeners import Tcp

    if words is None:
        if certificate is not None or key is not None:
            raise RequestError("a certificate is for TCP", hint="add --tcp ADDRESS:PORT")
        return None
    address, port = options.read_address("--tcp", words, "write --tcp 127.0.0.1:7878")
    return Tcp(address, port, certificate, key)


def install_runtime(
    context: typer.Context,
    *,
    config: Annotated[Path, typer.Option("--config", metavar="FILE", help="The engine's configuration file.")] = Path(
        "/etc/docker/daemon.json"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the change without making it.")] = False,
    uninstall: Annotated[bool, typer.Option("--uninstall", help="Remove the runtime from the configuration.")] = False,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Name of the runtime for `docker run --runtime`.")
    ] = "pgpu",
    engine: Annotated[
        str, typer.Option("--engine", metavar="URL", help="Socket of the engine, for queries about images.")
    ] = "unix:///var/run/docker.sock",
    settings: Annotated[
        Path, typer.Option("--settings", metavar="FILE", help="Settings of the machine, such as simulated GPUs.")
    ] = Path("/etc/pgpu/config.toml"),
) -> None:
    """Install `docker run --runtime=pgpu` for containers.

    Then `docker run --runtime=pgpu -e PGPU_MEMORY=4GiB` starts a container in a slice, and Compose files can do the same.
    Prints the change of the engine's configuration and keeps its other keys. The ledger is the machine's, /var/lib/pgpu,
    unless pgpu --state-dir names another.
    """
    from pgpu.app.oci.installation import Installation, plan_install, plan_uninstall, prepare

    state_dir = invocation_of(context).flags.get("state_dir") or "/var/lib/pgpu"
    installation = Installation(name, settings.absolute(), Path(state_dir).absolute(), engine)
    change = plan_uninstall(config, name) if uninstall else plan_install(config, installation)
    if change.is_empty:
        console.print_note(f"{config} needs no change")
        return
    print(change.diff())
    if dry_run:
        return
    if not uninstall:
        prepare(str(installation.settings), str(installation.state_dir))
    change.write()
    console.print_note(
        f"{config} is written; the engine reads it on `systemctl reload docker`, containers go on running"
    )
