"""Attaches to a container's streams over the engine's Unix socket.

The SDK's own call reads ahead and may lose the first bytes of a running container. This one reads the response head byte by
byte, so that the stream data stays in the socket.
"""

import json
import re
import socket
from pathlib import Path

_LARGEST_HEAD_BYTES = 65536
_LARGEST_REASON_BYTES = 65536
_ACCEPTED = (b"101", b"200")


class AttachRefusedError(Exception):
    """The engine refused to attach; carries its message. Podman prepares the command here already and reports its errors."""


def attach(url: str, api_version: str, container_id: str, *, has_stdin: bool) -> socket.socket:
    """Return a connection that carries a container's streams from now on.

    Raises:
        AttachRefusedError: The engine refused.
        OSError: The connection was lost.

    Source: `POST /containers/{id}/attach`, Docker Engine API 1.41.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(Path(url.removeprefix("unix://"))))
        connection.sendall(_request(api_version, container_id, has_stdin=has_stdin))
        _expect_acceptance(connection, _read_head(connection))
    except BaseException:  # includes KeyboardInterrupt; the caller has no reference to the socket yet
        connection.close()
        raise
    return connection


def _request(api_version: str, container_id: str, *, has_stdin: bool) -> bytes:
    query = f"stream=1&stdout=1&stderr=1&stdin={int(has_stdin)}"
    lines = (
        f"POST /v{api_version}/containers/{container_id}/attach?{query} HTTP/1.1",
        "Host: engine",
        "Connection: Upgrade",
        "Upgrade: tcp",
        "Content-Length: 0",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def _read_head(connection: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte or len(head) > _LARGEST_HEAD_BYTES:
            raise ConnectionResetError("the container engine closed the connection")
        head += byte
    return head


def _expect_acceptance(connection: socket.socket, head: bytes) -> None:
    status = head.split(b" ", 2)[1:2]
    if not status or status[0] not in _ACCEPTED:
        raise AttachRefusedError(_read_reason(connection, head))


def _read_reason(connection: socket.socket, head: bytes) -> str:
    """Return the engine's error message: the `message` field of a JSON body, or plain text."""
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    left = min(int(length[1]), _LARGEST_REASON_BYTES) if length else 0
    body = b""
    while len(body) < left and (data := connection.recv(left - len(body))):
        body += data
    text = body.decode(errors="replace") or head.split(b"\r\n", 1)[0].decode("ascii", errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())
