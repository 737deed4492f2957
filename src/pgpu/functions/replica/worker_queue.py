"""A replica's request queue: admits requests, sends them to the worker and passes its replies on.

A worker gets some calls ahead of time (`PrefetchWindow`). When it dies, its started mark separates the calls that its
handler had begun, which are refused, from the others, which go to the next worker.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence

from pgpu.functions.api import Declaration
from pgpu.functions.ipc.async_channel import AsyncChannel
from pgpu.functions.ipc.call_messages import CallFrame, Chunk, FrameKind, Reply, decode_message, encode_frame
from pgpu.functions.ipc.memory_files import StartedMark, close_file
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.requests.request_queue import (
    MOST_ATTEMPTS,
    PendingRequest,
    PrefetchWindow,
    ReplicaMetrics,
    RequestQueue,
    queue_full,
)
from pgpu.structs import Struct

_GIVEN_BACK = Refusal(503, "given_back", "the worker runs another call for long")
_AHEAD_SECONDS = 0.002
"""Work that may be ahead in a worker's socket: twenty times the cost of one round trip between replica and worker."""

WORKER_DIED = Refusal(502, "worker_died", "the worker died while it served this request")
_OK = 200
_CLIENT_GONE = 499


class WorkerSlot(Struct, frozen=True):
    """A worker that takes calls."""

    channel: AsyncChannel
    mark: StartedMark


class WorkerQueue(RequestQueue[PendingRequest]):
    """All requests of a replica; on the event loop only."""

    def __init__(self, declaration: Declaration, metrics: ReplicaMetrics) -> None:
        super().__init__()
        self._metrics = metrics
        self.adopt(declaration)
        self._slot: WorkerSlot | None = None
        self._is_paused = False
        self._queue: deque[PendingRequest] = deque()
        self._sent: dict[int, PendingRequest] = {}
        self._last_number = 0
        self.closed: Refusal | None = None
        """Why no request is admitted now; None: requests are admitted."""

        self._freed_seconds = 0.0
        """When the worker last completed a request."""

        self.hot_since_seconds = 0.0
        self.load_seconds = 0.0
        self.on_idle: Callable[[], None] = lambda: None
        """Called whenever the last pending request has ended."""

    def adopt(self, declaration: Declaration) -> None:
        """Apply a declaration from now on."""
        self._is_idempotent = declaration.is_idempotent
        self._is_single, self._max_wait_seconds = declaration.concurrency == 1, declaration.max_wait_seconds
        self._slots = declaration.batch.max_size if declaration.batch else declaration.concurrency
        self._most = self._slots + declaration.queue_limit
        self.prefetch = PrefetchWindow(self._slots, _AHEAD_SECONDS, is_batched=declaration.batch is not None)

    @property
    def size(self) -> int:
        """Number of pending requests: waiting, or with the worker."""
        return len(self._queue) + len(self._sent)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for one of the worker's slots."""
        return max(0, self.size - self._slots)

    def pending(self) -> Sequence[PendingRequest]:
        return [*self._sent.values(), *self._queue]

    def count_answer(self, request: PendingRequest, status: int, code: str = "") -> None:
        self._metrics.count_answer(status, time.monotonic() - request.admitted_seconds, 0.0, code)

    def refusal(self) -> Refusal | None:
        """Return why a request would not be admitted now; None: it would."""
        if self.closed is not None:
            return self.closed
        if len(self._queue) + len(self._sent) >= self._most:
            return queue_full(self.size * self.prefetch.exec_seconds / self._slots)
        return None

    def submit(self, request: PendingRequest) -> None:
        if (refusal := self.refusal()) is not None:
            self.refuse(request, refusal)
            return
        slot = self._slot
        if slot is not None and not self._queue and len(self._sent) < self.prefetch.window and not self._is_paused:
            self._send(slot, request)
        else:
            self._queue.append(request)
        self.watch(request)
        if self.waiting:
            self.watch_waits(self._max_wait_seconds)

    def give_back(self, requests: Sequence[PendingRequest]) -> None:
        """Refuse those of a gateway's requests that wait behind its first ones and that no worker has begun, newest first.

        Their status lets the gateway repeat them. It counts the first ones, one for each slot, as running: where the worker still runs
        a call whose caller has left, they keep their place, or the gateway would send them here again and again.
        """
        for request in reversed(requests[self._slots :]):
            if request in self._queue:
                self._queue.remove(request)
            elif self._slot is not None and self._is_sent(request) and self._slot.mark.take(request.number):
                del self._sent[request.number]
            else:
                continue
            self.refuse(request, _GIVEN_BACK)
            self._release(request)

    def abandon(self, request: PendingRequest) -> None:
        """Cancel a request after its caller has left; its slot is free once the worker has ended it."""
        # A late request was answered already, and is still with the worker.
        is_answered, request.sink = request.sink is None, None
        # The worker still has the call: its entry in `_sent` stays until its reply, so that the slot counts as taken.
        if self._is_sent(request):
            self._cancel(request)
            if not is_answered:
                self.count_answer(request, _CLIENT_GONE, "cancelled")
        elif request in self._queue:
            self._queue.remove(request)
            self.count_answer(request, _CLIENT_GONE, "cancelled")
            self._release(request)

    def credit(self, request: PendingRequest) -> None:
        """Allow the worker one more piece of this stream."""
        if self._slot is not None and self._is_sent(request):
            request.note_credit()
            self._slot.channel.send(encode_frame(FrameKind.CREDIT, request.number))

    def expire(self, request: PendingRequest, refusal: Refusal) -> None:
        """Answer a request after its deadline; the worker goes on, and its slot stays taken until it ends."""
        if self._is_sent(request):
            self._cancel(request)
        elif request in self._queue:
            self._queue.remove(request)
            self._release(request)
        if request.sink is not None:
            self.break_or_refuse(request, refusal)

    def send_frame(self, frame: bytes) -> None:
        """Send the worker a frame that belongs to no call, if there is a worker."""
        if self._slot is not None:
            self._slot.channel.send(frame)

    def latest_begin_seconds(self, request: PendingRequest) -> float:
        """Return the latest time at which a healthy worker that has this request can have begun it.

        Late requests are not begun. Where one runs at a time, none begins before the worker ended the previous one.
        """
        return max(request.admitted_seconds, self._freed_seconds) if self._is_single else request.deadline_seconds

    def _is_sent(self, request: PendingRequest) -> bool:
        # Numbers are per worker: the number of an old request may belong to another one by now.
        return self._sent.get(request.number) is request

    def seat(self, slot: WorkerSlot, load_seconds: float) -> None:
        """Send calls to this worker from now on."""
        self._slot, self.load_seconds, self.hot_since_seconds = slot, load_seconds, time.monotonic()
        self._freed_seconds = self.hot_since_seconds
        # Numbers start anew: the mark of a new worker is 0.
        self._last_number, self._is_paused = 0, False
        self._pump()

    def pause(self) -> None:
        """Send the worker no more calls for now; it keeps those that it has."""
        self._is_paused = True

    def resume(self) -> None:
        """Send calls again, as if the worker had just become hot."""
        self._is_paused, self.hot_since_seconds, self.load_seconds = False, time.monotonic(), 0.0
        self._pump()

    def unseat(self, refusal: Refusal = WORKER_DIED) -> None:
        """Handle the death of the worker: calls that it had not begun return to the queue, the others are refused."""
        if self._slot is None:
            return
        # Read after the worker's death: no call can start any more.
        last_begun, self._slot = self._slot.mark.last_begun, None
        lost, self._sent = list(self._sent.values()), {}
        # In reverse, with appendleft: the requests keep their order at the head of the queue.
        for request in reversed(lost):
            is_harmless = request.number > last_begun or (self._is_idempotent and not request.is_streaming)
            if request.sink is None:
                self._release(request)
            elif is_harmless and request.attempts < MOST_ATTEMPTS:
                request.number = 0
                self._queue.appendleft(request)
            else:
                self._release(request)
                self.break_or_refuse(request, refusal)

    def refuse_queue(self, refusal: Refusal) -> None:
        while self._queue:
            request = self._queue.popleft()
            self._release(request)
            self.break_or_refuse(request, refusal)

    def on_frames(self, frames: Sequence[CallFrame]) -> None:
        for frame in frames:
            if frame.kind == FrameKind.REPLY:
                self._on_reply(frame)
            elif frame.kind == FrameKind.CHUNK:
                self._on_chunk(frame)
        if self._queue:
            self._pump()

    def _send(self, slot: WorkerSlot, request: PendingRequest) -> None:
        self._last_number += 1
        number = request.number = self._last_number
        request.attempts += 1
        self._sent[number] = request
        remaining = request.deadline_seconds - time.monotonic()
        # A copy of the descriptor: the channel closes it after the send, and a retry needs the original.
        file = None if request.file is None else os.dup(request.file)
        call = (
            request.request_id, request.method, request.path, request.query, request.headers, remaining, request.body,
        )  # fmt: skip
        slot.channel.send(encode_frame(FrameKind.CALL, number, call, has_file=file is not None), file)
        if len(self._sent) == 1:
            slot.channel.flush()  # the worker sleeps: it wakes up while this iteration of the loop ends

    def _pump(self) -> None:
        while self._slot is not None and not self._is_paused and self._queue and len(self._sent) < self.prefetch.window:
            self._send(self._slot, self._queue.popleft())

    def _on_reply(self, frame: CallFrame) -> None:
        reply: Reply = decode_message(frame)
        file = self._file_of(frame)
        request = self._sent.pop(frame.number, None) if reply.is_last else self._sent.get(frame.number)
        if request is None:
            close_file(file)
            return
        # Also for replies that are not awaited any more: their duration counts the same.
        self.prefetch.learn(reply.exec_seconds)
        if reply.is_last:
            self._freed_seconds = time.monotonic()
            self._release(request)
        sink = request.sink
        if sink is None:
            close_file(file)
            return
        if reply.is_last:
            request.sink = None
            duration = self._freed_seconds - request.admitted_seconds
            self._metrics.count_answer(reply.status, duration, reply.exec_seconds)
        else:
            request.is_streaming = True
        sink.reply(reply, file)

    def _on_chunk(self, frame: CallFrame) -> None:
        chunk: Chunk = decode_message(frame)
        file = self._file_of(frame)
        request = self._sent.get(frame.number)
        sink = None if request is None else request.sink
        if request is not None:
            request.note_chunk()
        if request is not None and chunk.is_last:
            self._sent.pop(frame.number)
            self._freed_seconds = time.monotonic()
            if sink is not None:
                self.count_answer(request, _OK)
            self._release(request)
        if sink is None:
            close_file(file)
        else:
            sink.chunk(chunk, file)

    def _file_of(self, frame: CallFrame) -> int | None:
        return self._slot.channel.next_file() if frame.has_file and self._slot is not None else None

    def _cancel(self, request: PendingRequest) -> None:
        if self._slot is not None:
            self._slot.channel.send(encode_frame(FrameKind.CANCEL, request.number))

    def _release(self, request: PendingRequest) -> None:
        request.release_body()
        if not self._sent and not self._queue:
            self.on_idle()
