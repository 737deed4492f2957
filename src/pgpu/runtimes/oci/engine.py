"""A minimal client for Docker's Engine API, for containers that the engine owns: exit code and signals.

It uses the engine's socket without the SDK. An engine that does not respond is no error: the exit code stays unknown, and
signals are sent to the process directly.
"""

import contextlib
import json
import re
import socket

_PATIENCE_SECONDS = 3.0
_API = "/v1.40"
_EXITED = re.compile(r"Exited \((\d+)\)")


class AwaitedExit:
    """A pending request for a container's exit code, which completes when the container ends."""

    def __init__(self, engine: str, container_id: str) -> None:
        """Send the request."""
        self._engine = engine
        self._id = container_id
        self._connection = _send(engine, "POST", f"/containers/{container_id}/wait?condition=next-exit")

    def code(self) -> int | None:
        """Return the exit code of the ended container; None if the engine does not return it."""
        answer = _receive(self._connection)
        self._connection = None
        if answer is not None:
            with contextlib.suppress(ValueError, KeyError):
                return int(json.loads(answer)["StatusCode"])
        return self._listed()

    def close(self) -> None:
        """Cancel the request."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _listed(self) -> int | None:
        filters = "%7B%22id%22%3A%5B%22" + self._id + "%22%5D%7D"
        answer = _receive(_send(self._engine, "GET", f"/containers/json?all=1&filters={filters}"))
        found = _EXITED.search(answer or "")
        return int(found[1]) if found else None


def signal_container(engine: str, container_id: str, number: int) -> bool:
    """Send a signal through the engine, which then does not restart the container; return True if the engine accepted it."""
    return _receive(_send(engine, "POST", f"/containers/{container_id}/kill?signal={number}")) is not None


def _send(engine: str, method: str, path: str) -> socket.socket | None:
    scheme, _, address = engine.partition("://")
    if scheme != "unix":
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_PATIENCE_SECONDS)
        connection.connect(address)
        connection.sendall(f"{method} {_API}{path} HTTP/1.0\r\nHost: pgpu\r\nContent-Length: 0\r\n\r\n".encode())
    except OSError:
        connection.close()
        return None
    return connection


def _receive(connection: socket.socket | None) -> str | None:
    """Return the body of a successful response; None for any other."""
    if connection is None:
        return None
    content = b""
    with connection, contextlib.suppress(OSError):
        while part := connection.recv(65536):
            content += part
    head, _, body = content.partition(b"\r\n\r\n")
    is_good = head.split(b" ", 2)[1:2] and head.split(b" ", 2)[1].startswith(b"2")
    return body.decode("utf-8", "replace") if is_good else None
