"""The desk: admits requests, keeps their queue, gives them to the worker and brings back what it says.

A worker gets some calls ahead, so that it need not wait for the next one; which of them it had begun when it died is
read from its mark. It refuses to start or to end workers: its keeper does.
"""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pgpu.functions.api import Declaration
from pgpu.functions.ipc.async_channel import AsyncChannel
from pgpu.functions.ipc.call_frames import Frame, decode_message, encode_frame
from pgpu.functions.ipc.memory_files import StartedMark
from pgpu.functions.ipc.messages import Chunk, FrameKind, Reply
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.requests.pending_request import PendingRequest
from pgpu.functions.requests.prefetch_window import PrefetchWindow
from pgpu.functions.requests.request_metrics import ReplicaMetrics

_MOST_ATTEMPTS = 3
"""A request that lay in the sockets of this many workers that died is suspected of killing them."""

WORKER_DIED = Refusal(502, "worker_died", "the worker died while it served this request")
_BROKEN = Chunk(b"", is_last=True, is_broken=True)


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """A worker that takes calls."""

    channel: AsyncChannel
    mark: StartedMark


class RequestQueue:
    """Every request of a replica passes here; on the event loop only."""

    def __init__(self, declaration: Declaration, metrics: ReplicaMetrics) -> None:
        self._metrics = metrics
        self.adopt(declaration)
        self._seat: WorkerSlot | None = None
        self._is_resting = False
        self._queue: deque[PendingRequest] = deque()
        self._sent: dict[int, PendingRequest] = {}
        self._last_number = 0
        self.closed: Refusal | None = None
        """Why nothing is admitted now; None: it is."""

        self._freed_seconds = 0.0
        """When the worker last ended a request."""

        self.hot_since_seconds = 0.0
        self.load_seconds = 0.0
        self.on_admitted: Callable[[PendingRequest], None] = lambda _ticket: None
        """Told of each request that was admitted: the deadlines' watch."""

        self.on_idle: Callable[[], None] = lambda: None
        """Told whenever the last request has gone."""

    def adopt(self, declaration: Declaration) -> None:
        """Go by this declaration from now on."""
        self._is_idempotent = declaration.is_idempotent
        self._is_single = declaration.concurrency == 1
        self._slots = declaration.batch.max_size if declaration.batch else declaration.concurrency
        self._most = self._slots + declaration.queue_limit
        self.ahead = PrefetchWindow(self._slots, is_batched=declaration.batch is not None)

    @property
    def requests(self) -> int:
        """How many are here: waiting, or with the worker."""
        return len(self._queue) + len(self._sent)

    @property
    def waiting(self) -> int:
        """How many of them wait for a place."""
        return max(0, self.requests - self._slots)

    def refusal(self) -> Refusal | None:
        """Say why a request would not be admitted now; None: it would."""
        if self.closed is not None:
            return self.closed
        if len(self._queue) + len(self._sent) >= self._most:
            seconds = self.requests * self.ahead.exec_seconds / self._slots
            after = {"retry-after": str(min(60, max(1, math.ceil(seconds))))}
            return Refusal(429, "queue_full", "too many requests wait already", after)
        return None

    def submit(self, ticket: PendingRequest) -> None:
        """Admit a request that `refusal()` would not refuse, or tell its asker."""
        if (refused := self.refusal()) is not None:
            self._answer(ticket, refused)
            return
        if self._seat is not None and not self._queue and len(self._sent) < self.ahead.window and not self._is_resting:
            self._send(self._seat, ticket)
        else:
            self._queue.append(ticket)
        self.on_admitted(ticket)

    def abandon(self, ticket: PendingRequest) -> None:
        """Nobody waits for it any more; its place is free once the worker has let it go."""
        is_answered, ticket.asker = ticket.asker is None, None
        if self._is_sent(ticket):
            self._cancel(ticket)
            if not is_answered:
                self._note_gone(ticket)
        elif ticket in self._queue:
            self._queue.remove(ticket)
            self._note_gone(ticket)
            self._release(ticket)

    def credit(self, ticket: PendingRequest) -> None:
        """Let the worker send one more piece of this stream."""
        if self._seat is not None and self._is_sent(ticket):
            self._seat.channel.send(encode_frame(FrameKind.CREDIT, ticket.number))

    def expire(self, ticket: PendingRequest, refused: Refusal) -> None:
        """Answer a request whose deadline has passed; the worker goes on, and its place stays taken until it ends."""
        if self._is_sent(ticket):
            self._cancel(ticket)
        elif ticket in self._queue:
            self._queue.remove(ticket)
            self._release(ticket)
        if ticket.asker is not None:
            self._break_or_answer(ticket, refused)

    def tell(self, written: bytes) -> None:
        """Send the worker a frame beside the calls, if there is one."""
        if self._seat is not None:
            self._seat.channel.send(written)

    def latest_begin_seconds(self, ticket: PendingRequest) -> float:
        """Say when the worker can have begun this request at the latest, if it has it and is in order.

        Late requests are not begun. Where one runs at a time, none begins after the worker ended the one before.
        """
        return max(ticket.admitted_seconds, self._freed_seconds) if self._is_single else ticket.deadline_seconds

    def _is_sent(self, ticket: PendingRequest) -> bool:
        """Numbers are a worker's own: an old ticket's may be another's by now."""
        return self._sent.get(ticket.number) is ticket

    def tickets(self) -> list[PendingRequest]:
        """Return every request that is here, the oldest first."""
        return [*self._sent.values(), *self._queue]

    def seat(self, seat: WorkerSlot, load_seconds: float) -> None:
        """Give calls to this worker from now on."""
        self._seat, self.load_seconds, self.hot_since_seconds = seat, load_seconds, time.monotonic()
        self._freed_seconds = self.hot_since_seconds
        self._last_number, self._is_resting = 0, False
        self._pump()

    def rest(self) -> None:
        """Give the worker no calls for now; those that it has it keeps."""
        self._is_resting = True

    def go_on(self) -> None:
        """Give it calls again, as if it had just become hot."""
        self._is_resting, self.hot_since_seconds, self.load_seconds = False, time.monotonic(), 0.0
        self._pump()

    def unseat(self, refused: Refusal = WORKER_DIED) -> None:
        """The worker is dead: requests that it had not begun wait for the next, the others are refused."""
        if self._seat is None:
            return
        last_begun, self._seat = self._seat.mark.last_begun, None
        had, self._sent = list(self._sent.values()), {}
        for ticket in reversed(had):
            is_untouched = ticket.number > last_begun or (self._is_idempotent and not ticket.is_streaming)
            if ticket.asker is None:
                self._release(ticket)
            elif is_untouched and ticket.attempts < _MOST_ATTEMPTS:
                ticket.number = 0
                self._queue.appendleft(ticket)
            else:
                self._release(ticket)
                self._break_or_answer(ticket, refused)

    def refuse_queue(self, refused: Refusal) -> None:
        """Answer everything that waits."""
        while self._queue:
            ticket = self._queue.popleft()
            self._release(ticket)
            self._break_or_answer(ticket, refused)

    def on_frames(self, frames: Sequence[Frame]) -> None:
        """Take what the worker says."""
        for each in frames:
            if each.kind == FrameKind.REPLY:
                self._on_reply(each)
            elif each.kind == FrameKind.CHUNK:
                self._on_chunk(each)
        if self._queue:
            self._pump()

    def _send(self, seat: WorkerSlot, ticket: PendingRequest) -> None:
        self._last_number += 1
        number = ticket.number = self._last_number
        ticket.attempts += 1
        self._sent[number] = ticket
        remaining = ticket.deadline_seconds - time.monotonic()
        file = None if ticket.file is None else os.dup(ticket.file)
        call = (
            ticket.request_id, ticket.method, ticket.path, ticket.query, ticket.headers, remaining, ticket.body,
        )  # fmt: skip
        seat.channel.send(encode_frame(FrameKind.CALL, number, call, has_file=file is not None), file)
        if len(self._sent) == 1:
            seat.channel.flush()  # the worker sleeps: it wakes while this turn ends

    def _pump(self) -> None:
        while self._seat is not None and not self._is_resting and self._queue and len(self._sent) < self.ahead.window:
            self._send(self._seat, self._queue.popleft())

    def _on_reply(self, each: Frame) -> None:
        reply: Reply = decode_message(each)
        file = self._file_of(each)
        ticket = self._sent.pop(each.number, None) if reply.is_last else self._sent.get(each.number)
        if ticket is None:
            _close(file)
            return
        self.ahead.learn(reply.exec_seconds)
        if reply.is_last:
            self._freed_seconds = time.monotonic()
            self._release(ticket)
        asker = ticket.asker
        if asker is None:
            _close(file)
            return
        if reply.is_last:
            ticket.asker = None
            self._metrics.answered(reply.status, self._freed_seconds - ticket.admitted_seconds, reply.exec_seconds)
        else:
            ticket.is_streaming = True
        asker.reply(reply, file)

    def _on_chunk(self, each: Frame) -> None:
        chunk: Chunk = decode_message(each)
        file = self._file_of(each)
        ticket = self._sent.get(each.number)
        asker = None if ticket is None else ticket.asker
        if ticket is not None and chunk.is_last:
            self._sent.pop(each.number)
            self._freed_seconds = time.monotonic()
            self._release(ticket) if asker is None else self._end(ticket)
        if asker is None:
            _close(file)
        else:
            asker.chunk(chunk, file)

    def _file_of(self, each: Frame) -> int | None:
        return self._seat.channel.next_file() if each.has_file and self._seat is not None else None

    def _cancel(self, ticket: PendingRequest) -> None:
        if self._seat is not None:
            self._seat.channel.send(encode_frame(FrameKind.CANCEL, ticket.number))

    def _break_or_answer(self, ticket: PendingRequest, refused: Refusal) -> None:
        if not ticket.is_streaming:
            self._answer(ticket, refused)
        elif ticket.asker is not None:
            asker, ticket.asker = ticket.asker, None
            self._metrics.answered(refused.status, time.monotonic() - ticket.admitted_seconds, 0.0, refused.code)
            asker.chunk(_BROKEN, None)

    def _answer(self, ticket: PendingRequest, refused: Refusal) -> None:
        asker, ticket.asker = ticket.asker, None
        self._metrics.answered(refused.status, time.monotonic() - ticket.admitted_seconds, 0.0, refused.code)
        if asker is not None:
            asker.reply(refused.reply(ticket.request_id), None)

    def _end(self, ticket: PendingRequest) -> None:
        self._metrics.answered(200, time.monotonic() - ticket.admitted_seconds, 0.0)
        self._release(ticket)

    def _note_gone(self, ticket: PendingRequest) -> None:
        self._metrics.answered(499, time.monotonic() - ticket.admitted_seconds, 0.0, "cancelled")

    def _release(self, ticket: PendingRequest) -> None:
        _close(ticket.file)
        ticket.file = None
        ticket.body = b""
        if not self._sent and not self._queue:
            self.on_idle()


def _close(file: int | None) -> None:
    if file is not None:
        os.close(file)
