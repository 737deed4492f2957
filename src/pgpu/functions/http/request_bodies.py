"""Bodies of requests that did not come at once: small ones in memory, large ones in a memory file, too large ones refused.

It refuses to hold more of a body than its first megabyte in this process.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from pgpu.functions.ipc.call_frames import INLINE_BYTES
from pgpu.functions.ipc.memory_files import GrowingFile
from pgpu.functions.protocols.call_refusal import Refusal

Receive = Callable[[], Awaitable[Any]]
TOO_LARGE = Refusal(413, "body_too_large", "the body is larger than this function takes", {"connection": "close"})


class ClientGoneError(Exception):
    """The client left in the middle of its body."""


async def read_body(receive: Receive, most_bytes: int) -> tuple[bytes, int | None] | Refusal:
    """Read a body to its end.

    Returns:
        It, or empty bytes and the descriptor of a sealed memory file, the caller's to close; or why it is not read.

    Raises:
        ClientGoneError: The client left.
    """
    spool = _Spool()
    try:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGoneError
            spool.add(message["body"])
            if spool.size_bytes > most_bytes:
                return TOO_LARGE
            if not message.get("more_body", False):
                return spool.take()
    finally:
        spool.close()


class _Spool:
    """Bytes in memory until they are many."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._file: GrowingFile | None = None
        self.size_bytes = 0

    def add(self, piece: bytes) -> None:
        self.size_bytes += len(piece)
        if self._file is None:
            self._head += piece
            if len(self._head) > INLINE_BYTES:
                self._file = GrowingFile()
                self._file.add(self._head)
                self._head = bytearray()
        else:
            self._file.add(piece)

    def take(self) -> tuple[bytes, int | None]:
        return (bytes(self._head), None) if self._file is None else (b"", self._file.seal())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
