"""A handler's stream on its way: its head once the first piece is there, then piece after piece, as fast as it is read.

An exception before the first piece is an ordinary error; after it, the connection is broken off, since a proper end would
say that the answer is whole. It refuses to buffer: the handler stands still while its caller does not read.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

from pgpu.functions.ipc.blocking_channel import BlockingChannel, GoneError
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.protocols import StreamWriter
from pgpu.functions.worker.call_codec import describe_failure
from pgpu.functions.worker.executors.call_inbox import WorkItem
from pgpu.functions.worker.executors.reply_frames import STREAM_WINDOW, send_end, send_head, send_piece

Wait = Callable[[], None]
"""Waits until something was learned of the call: a credit, or that nobody waits for it."""


class ReplyStream:
    """One answer in pieces."""

    def __init__(self, port: BlockingChannel, work: WorkItem, look: Wait, wait: Wait) -> None:
        self._port, self._work, self._look, self._wait = port, work, look, wait
        self._began_seconds = time.monotonic()
        work.credit += STREAM_WINDOW

    def send(self, streaming: StreamWriter, items: Iterator[Any]) -> None:
        """Send it all.

        Raises:
            BaseException: What the handler raised before its first piece; nothing was sent then.
            GoneError: The front left.
        """
        first = [streaming.piece(item) for item in (next(items, self),) if item is not self]
        send_head(self._port, self._work.number, Reply(200, streaming.headers), self._began_seconds)
        is_whole = not first or self._send_rest(streaming, first[0], items)
        if is_whole and streaming.end:
            send_piece(self._port, self._work.number, streaming.end)
        send_end(self._port, self._work.number, is_broken=not is_whole)

    def _send_rest(self, streaming: StreamWriter, piece: bytes, items: Iterator[Any]) -> bool:
        work = self._work
        try:
            self._send_piece(piece)
            for item in items:
                if work.is_cancelled:
                    return False
                self._send_piece(streaming.piece(item))
        except GoneError:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever the user's code raises ends its call alone
            if last := streaming.broken(describe_failure(f"request {work.call.id}", error), work.call.id):
                send_piece(self._port, work.number, last)
            return False
        return True

    def _send_piece(self, piece: bytes) -> None:
        self._look()
        while self._work.credit <= 0 and not self._work.is_cancelled:
            self._wait()
        self._work.credit -= 1
        send_piece(self._port, self._work.number, piece)
