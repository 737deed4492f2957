"""Addresses of servers: parsing, the gateway's address, and the server installed on this machine.

Where a server is installed, commands use it or fail: an engine of the user's own beside it would grant memory that the
server has granted already.
"""

from pathlib import Path
from urllib.parse import urlsplit

from pgpu.errors import RequestError
from pgpu.structs import Struct

SYSTEM_SOCKET = Path("/run/pgpu/pgpu.sock")
SYSTEM_MARKER = Path("/etc/pgpu/server")
"""Created where a server is installed, to distinguish a stopped server from none."""

GATEWAY_SOCKET = "functions.sock"
"""Of the gateway of functions, in the directory of the server's own socket."""

EMBEDDED = "embedded"
"""In the place of an address: no server, the engine in this process."""

_PORTS = {"http": 80, "https": 443}


class UnixAddress(Struct, frozen=True):
    """A socket of this machine."""

    path: Path

    def __str__(self) -> str:
        return f"unix://{self.path}"


class TcpAddress(Struct, frozen=True):
    """A server over TCP."""

    host: str
    port: int
    is_encrypted: bool
    token: str | None = None
    certificate: Path | None = None
    """PEM of the trusted certificates; None for those of this machine."""

    def __str__(self) -> str:
        return f"{'https' if self.is_encrypted else 'http'}://{self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_host(text: str) -> str:
    """Return an address unchanged, as `PGPU_HOST` has it.

    Raises:
        RequestError: It cannot be parsed.
    """
    address_of(text)
    return text


def address_of(text: str, token: str | None = None, certificate: Path | None = None) -> Address | None:
    """Parse an address, as `PGPU_HOST` has it; None for the engine in this process.

    Raises:
        RequestError: It cannot be parsed.
    """
    if text == EMBEDDED:
        return None
    hint = f"write unix:///run/pgpu/pgpu.sock, https://HOST:PORT, or {EMBEDDED}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise RequestError(f"{text!r} is no address of a server", hint=hint) from exc
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/") and Path(parts.path).name:
        return UnixAddress(Path(parts.path))
    if parts.scheme in _PORTS and parts.hostname and parts.path in {"", "/"}:
        is_encrypted = parts.scheme == "https"
        return TcpAddress(parts.hostname, port or _PORTS[parts.scheme], is_encrypted, token, certificate)
    raise RequestError(f"{text!r} is no address of a server", hint=hint)


def gateway_of(address: Address | None) -> Address:
    """Return the address of the gateway of functions: the socket beside that of the server.

    Raises:
        RequestError: There is no server, or it is on another machine, where the gateway has an address of its own.
    """
    if isinstance(address, UnixAddress):
        return UnixAddress(address.path.with_name(GATEWAY_SOCKET))
    raise RequestError(
        "functions are served by a server, and there is none here",
        hint="name its gateway: --url http://HOST:8080; pgpu function dev serves a function in place",
    )


def installed_server(socket: Path = SYSTEM_SOCKET, marker: Path = SYSTEM_MARKER) -> Address | None:
    """Return the address of this machine's server, running or not; None where none is installed."""
    return UnixAddress(socket) if _may_exist(socket) or _may_exist(marker) else None


def _may_exist(path: Path) -> bool:
    try:
        # Not `stat`: a dangling symbolic link shows that a server was installed, too.
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:  # Such as a directory that this user may not search.
        return True
    return True
