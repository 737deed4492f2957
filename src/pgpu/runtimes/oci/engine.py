"""The few calls to a Docker engine that concern a container of somebody else's: its exit code, and signals.

Done over the engine's socket without a library, since a supervisor of such a container needs nothing more. An engine
that does not answer is no error here: what it would have told stays unknown, and signals go to the process itself.
"""

import contextlib
import json
import re
import socket

_PATIENCE_SECONDS = 3.0
_API = "/v1.40"
_EXITED = re.compile(r"Exited \((\d+)\)")


class AwaitedExit:
    """A question for a container's exit code that is answered when it ends."""

    def __init__(self, engine: str, container_id: str) -> None:
        """Ask."""
        self._engine = engine
        self._id = container_id
        self._connection = _send(engine, "POST", f"/containers/{container_id}/wait?condition=next-exit")

    def code(self) -> int | None:
        """Return the exit code of the container, which has ended; None where the engine does not tell."""
        answer = _receive(self._connection)
        self._connection = None
        if answer is not None:
            with contextlib.suppress(ValueError, KeyError):
                return int(json.loads(answer)["StatusCode"])
        return self._listed()

    def close(self) -> None:
        """Ask no more."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _listed(self) -> int | None:
        filters = "%7B%22id%22%3A%5B%22" + self._id + "%22%5D%7D"
        answer = _receive(_send(self._engine, "GET", f"/containers/json?all=1&filters={filters}"))
        found = _EXITED.search(answer or "")
        return int(found[1]) if found else None


def signal_container(engine: str, container_id: str, number: int) -> bool:
    """Send a signal by the engine, which then knows that somebody meant it and restarts nothing; say whether it did."""
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
    """Return the body of a good answer; None for every other."""
    if connection is None:
        return None
    content = b""
    with connection, contextlib.suppress(OSError):
        while part := connection.recv(65536):
            content += part
    head, _, body = content.partition(b"\r\n\r\n")
    is_good = head.split(b" ", 2)[1:2] and head.split(b" ", 2)[1].startswith(b"2")
    return body.decode("utf-8", "replace") if is_good else None
