"""HTTP over a Unix socket, as container engines are called: one connection for each request.

Requests are HTTP/1.0: the server sends no chunks and closes the connection after the body. `http.client` takes longer to import
than a request takes, and the commands that start containers wait for both.
"""

import re
import socket
import time

_CHUNK_BYTES = 65536
_PATH = re.compile(r"/[!-~]*")
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})(?: |\r|$)")
_FIRST_ERROR = 400


class HttpResponse:
    """A response that was read to its end."""

    def __init__(self, status: int, head: bytes, body: bytes) -> None:
        self.status = status
        self.head = head
        self.body = body

    @property
    def is_error(self) -> bool:
        """True for a status of 400 or above."""
        return self.status >= _FIRST_ERROR

    def header(self, name: str) -> str | None:
        """Return a header's value; None if there is none."""
        found = re.search(rb"(?im)^" + re.escape(name.encode()) + rb": *([^\r\n]*)", self.head)
        return found[1].decode("ascii", "replace").strip() if found else None


def send(url: str, method: str, path: str, body: bytes = b"", *, timeout_seconds: float | None) -> socket.socket:
    """Send a request, and return the connection for `receive`.

    Args:
        url: The server, as `unix:///PATH`.
        method: Such as `GET`.
        path: Percent-encoded, with the query.
        body: JSON.
        timeout_seconds: Of each step, also of `receive`; None waits without limit.

    Raises:
        OSError: The server cannot be reached.
        ValueError: The URL is not a Unix socket's, or the path has a character that must be encoded.
    """
    scheme, _, address = url.partition("://")
    if scheme != "unix":
        raise ValueError(f"{url} is not a Unix socket")
    if not _PATH.fullmatch(path):  # a line break would begin another request
        raise ValueError(f"{path!r} is not the path of a request")
    lines = (
        f"{method} {path} HTTP/1.0",
        "Host: pgpu",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_seconds)
        connection.connect(address)
        connection.sendall("\r\n".join((*lines, "", "")).encode("ascii") + body)
    except BaseException:
        connection.close()
        raise
    return connection


def receive(
    connection: socket.socket, most_bytes: int | None = None, deadline_seconds: float | None = None
) -> HttpResponse:
    """Read a response, and close the connection.

    Args:
        connection: From `send`.
        most_bytes: A longer response is cut off somewhere above this length.
        deadline_seconds: Of the whole response, on the monotonic clock; None: only each step has its time limit.

    Raises:
        OSError: The connection was lost, or the deadline has passed.
        ValueError: The response is not HTTP.
    """
    content = bytearray()
    with connection:
        while most_bytes is None or len(content) <= most_bytes:
            if deadline_seconds is not None:
                left_seconds = deadline_seconds - time.monotonic()
                if left_seconds <= 0:
                    raise TimeoutError("the response did not come in time")
                connection.settimeout(left_seconds)
            if not (part := connection.recv(_CHUNK_BYTES)):
                break
            content += part
    head, _, body = bytes(content).partition(b"\r\n\r\n")
    status = _STATUS.match(head)
    if status is None:
        raise ConnectionResetError("the connection was closed") if not head else ValueError("the answer is not HTTP")
    return HttpResponse(int(status[1]), head, body)
