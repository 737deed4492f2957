"""Where a server is, and whether there is one that must be asked.

Where one is installed it is asked, or nobody: an engine of the user's own beside it would share out what is not theirs.
This module refuses to connect.
"""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pgpu.errors import RequestError

SYSTEM_SOCKET = Path("/run/pgpu/pgpu.sock")
SYSTEM_MARKER = Path("/etc/pgpu/server")
"""Made where a server is installed, so that one that is down is not taken for none."""

GATEWAY_SOCKET = "functions.sock"
"""Of the gateway of functions, in the directory of the server's own socket."""

EMBEDDED = "embedded"
"""The word for no server: the engine in this process."""


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket of this machine."""

    path: Path

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A server over TCP."""

    host: str
    port: int
    is_encrypted: bool
    token: str | None = None
    certificate: Path | None = None
    """PEM of whom to trust; None trusts whom this machine trusts."""

    def __str__(self) -> str:
        return f"{'https' if self.is_encrypted else 'http'}://{self.host}:{self.port}"


Address = UnixAddress | TcpAddress

_PORTS = {"http": 80, "https": 443}


def parse_host(text: str) -> str:
    """Check a host as users write it, and return it.

    Raises:
        RequestError: It is none.
    """
    address_of(text)
    return text


def address_of(text: str, token: str | None = None, certificate: Path | None = None) -> Address | None:
    """Read a host as users write it; None for the engine in this process.

    Raises:
        RequestError: It is none.
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
        return TcpAddress(
            parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https", token=token, certificate=certificate
        )
    raise RequestError(f"{text!r} is no address of a server", hint=hint)


def gateway_of(address: Address | None) -> Address:
    """Return where calls of functions go: the socket beside that of the server.

    Raises:
        RequestError: There is no server, or it is another machine's, whose gateway has an address of its own.
    """
    if isinstance(address, UnixAddress):
        return UnixAddress(address.path.with_name(GATEWAY_SOCKET))
    raise RequestError(
        "functions are served by a server, and there is none here",
        hint="name its gateway: --url http://HOST:8080; pgpu dev serves a function in place",
    )


def installed_server(socket: Path = SYSTEM_SOCKET, marker: Path = SYSTEM_MARKER) -> Address | None:
    """Return this machine's own server, whether it answers or not; None where none is installed."""
    return UnixAddress(socket) if _is_there(socket) or _is_there(marker) else None


def _is_there(path: Path) -> bool:
    """What one may not look up might be there."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True
