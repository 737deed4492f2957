"""The gateway's connection to one replica: multiplexed calls as frames in one direction, replies and status in the other.

A replica's messages are validated: its owner's code runs next to it, and the gateway serves all users. An invalid message ends
the connection, and with it the replica. Nothing is repaired: a header that ends a response early could put bytes into the next
response on the caller's connection, which may belong to another function.
"""

import asyncio
import math
import os
import re
import socket
import time
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pgpu.functions.ipc.async_channel import AsyncChannel
from pgpu.functions.ipc.call_messages import (
    BODILESS,
    STREAM_WINDOW,
    CallFrame,
    Chunk,
    Command,
    FrameKind,
    MalformedFrameError,
    Notification,
    Reply,
    decode_message,
    encode_frame,
)
from pgpu.functions.ipc.local_sockets import check_peer_owner
from pgpu.functions.ipc.memory_files import close_file
from pgpu.functions.requests.request_queue import PendingRequest
from pgpu.functions.scaling.replica_policy import Phase, ReplicaView

if TYPE_CHECKING:
    from pgpu.functions.router.function_router import FunctionRouter

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+|(?i:set-cookie)")
"""In lower case, except for the one header of which there may be several, which differ in case."""

_FRAMING = frozenset({"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
_STATUSES = range(200, 600)
_MOST_REASON = 200
_TIMES = ("load_seconds", "import_seconds", "born_seconds")

_CALLS_SOCKET = "calls.sock"

_CONNECT_SECONDS = 0.01
"""Between two attempts to connect to a replica that starts."""

_RETRY_SECONDS = 0.5
"""Before a lease is requested again after the server did not answer."""

_MOST_UNDELIVERED = 4 * STREAM_WINDOW
"""Pieces of one stream that its caller has not taken: four times what a worker sends without credit."""

_OK = 200
_PHASES = {"hot": Phase.HOT, "parked": Phase.PARKED, "failed": Phase.FAILED, "draining": Phase.DRAINING}


class ReplicaStatus(NamedTuple):
    """A replica's own report of its state."""

    state: str
    reason: str | None
    load_seconds: float
    import_seconds: float
    born_seconds: float


def check_reply(reply: Reply, *, has_file: bool) -> None:
    """Check that HTTP can carry a reply as it is.

    Raises:
        MalformedFrameError: It cannot.
    """
    if reply.status in BODILESS and (reply.body or has_file or not reply.is_last):
        raise MalformedFrameError(f"status {reply.status} with a body, which would be read as the next answer")
    if reply.status not in _STATUSES or not all(map(_is_plain, reply.headers)):
        raise MalformedFrameError(f"status {reply.status} with {', '.join(reply.headers)[:_MOST_REASON]}")


def read_status(notification: Notification) -> ReplicaStatus:
    """Read a `state` notification.

    Raises:
        MalformedFrameError: It has no state, or one of its times is missing.
    """
    data: dict[str, Any] = notification.data
    state, reason = data.get("state"), data.get("reason")
    times = [each for name in _TIMES if isinstance(each := data.get(name), float) and math.isfinite(each)]
    if not isinstance(state, str) or len(times) < len(_TIMES):
        raise MalformedFrameError("a status without a state or its times")
    return ReplicaStatus(state, reason[:_MOST_REASON] if isinstance(reason, str) else None, *times)


def read_pages(notification: Notification) -> dict[str, str]:
    """Read a `description` notification: JSON by path.

    Raises:
        MalformedFrameError: It is something else.
    """
    found = notification.data.get("pages")
    try:
        return {str(path): bytes(body).decode() for path, body in dict(found or {}).items()}
    except (TypeError, ValueError) as error:
        raise MalformedFrameError("pages that are not text by path") from error


@lru_cache(1024)
def _is_plain(name: str) -> bool:
    return name not in _FRAMING and _NAME.fullmatch(name) is not None


class ReacquireResult(Enum):
    """Result of the request to use a replica's evictable or parked lease again."""

    KEPT = "kept"
    """The lease was not taken, and is not evictable any more."""

    COMING = "coming"
    """The lease was taken and the replica is parked: it waits for a lease and notifies the gateway when it is hot."""

    LOST = "lost"
    """The lease was taken, and the replica ends."""


class RoutedRequest(PendingRequest, eq=False):
    """A request that goes to one of several replicas."""

    router: "FunctionRouter | None" = None
    version: int = 0
    """The version that serves it; 0 until the router has chosen one."""

    is_exact: bool = False
    """The caller named the version: no other version serves it."""

    replica: "ReplicaConnection | None" = None
    """The replica that has it; None while it waits."""

    command: str = ""
    """A command, such as `describe`, that is sent instead of a call; empty for a call."""

    begun_seconds: float = 0.0
    """Since when it has a slot of its replica, as far as the gateway can see; 0 while it waits there."""

    is_recalled: bool = False
    """The replica was told to give it back, unless a worker has begun it."""


class ReplicaListener(Protocol):
    """Receives the events of a connection."""

    def on_phase(self, replica: "ReplicaConnection") -> None:
        """The replica's phase has changed."""

    def on_reply(self, replica: "ReplicaConnection", request: RoutedRequest, reply: Reply, file: int | None) -> None:
        """A request's reply, or its head, arrived."""

    def on_stream_end(self, request: RoutedRequest) -> None:
        """The last piece of a stream was passed on."""

    def on_lost(self, replica: "ReplicaConnection", requests: Sequence[RoutedRequest]) -> None:
        """The connection ended with these requests in flight."""


class ReplicaConnection:
    """One replica from the request for its job to its end, connected or not yet; on the event loop only."""

    def __init__(self, job_id: str, version: int, listener: ReplicaListener) -> None:
        self.job_id, self.version = job_id, version
        self.slots = 1
        """Calls that it runs at a time."""

        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._channel: AsyncChannel | None = None
        self._connect_timer: asyncio.TimerHandle | None = None
        self._path: str | None = None
        self._numbers = 0
        self.sent: dict[int, RoutedRequest] = {}
        self.phase = Phase.WAITING
        self.requested_seconds = self.since_seconds = self.idle_since_seconds = time.monotonic()
        self.hot_since_seconds = self.load_seconds = self.import_seconds = self.born_seconds = 0.0
        self.reason: str | None = None
        self.offered_value: float | None = None
        """Value under which its lease was marked evictable; None: it was not."""

        self.is_reacquiring = False
        """Whether its lease is being requested again."""

        self.is_back = False
        """Whether it became hot since its lease was requested: that notification may arrive before the server's answer."""

        self.is_woken = False
        """Whether it was parked and is to be hot again: a `parked` notification is outdated then."""

        self.retry_at_seconds = 0.0
        """Before this time it is not woken: the server did not answer the last request for its lease."""

        # asyncio locks are fair: requests take effect in the order in which they were made.
        self.lease_lock = asyncio.Lock()
        """Requests to the server about its lease are sent one after the other."""

        self.has_answered = False
        """Whether its cold start is complete: its first call was answered."""

    @property
    def in_flight(self) -> int:
        return len(self.sent)

    def view(self, held: int = 0) -> ReplicaView:
        """Return the policy's view; a replica that reacquires its lease counts as busy, so that no step ends it."""
        busy = len(self.sent) + int(self.is_reacquiring)
        return ReplicaView(
            self.job_id, self.version, self.phase, self.since_seconds, busy, held, self.idle_since_seconds,
            self.offered_value, self.retry_at_seconds,
        )  # fmt: skip

    def connect(self, directory: Path) -> None:
        """Connect to its socket as soon as it exists."""
        self._path = os.fspath(directory / _CALLS_SOCKET)
        self._try_connect()

    def become(self, phase: Phase) -> None:
        """Change the phase and notify the listener; draining is final."""
        # Final, since the policy ends a draining replica as soon as it has no calls.
        if phase is not self.phase and self.phase is not Phase.DRAINING:
            self.phase, self.since_seconds = phase, time.monotonic()
            self._listener.on_phase(self)

    def begin_reacquire(self) -> None:
        """Record that its lease is being requested."""
        self.is_reacquiring, self.is_back = True, False

    def wake(self) -> None:
        """Record that its lease is being requested for a parked replica: another cold start begins."""
        self.begin_reacquire()
        self.await_slice()

    def await_slice(self) -> None:
        """Wait until the replica has a slice again and reports that it is hot."""
        if not self.is_woken:
            self.is_woken, self.has_answered = True, False
            self.requested_seconds = time.monotonic()
            self.become(Phase.WAITING)

    def end_wake(self, *, is_sure: bool) -> None:
        """Wake the replica, which has a lease; where the server did not answer, leave it parked for another attempt."""
        if is_sure:
            self.offered_value = None
            self.send_command("wake")
        else:
            self.is_woken, self.retry_at_seconds = False, time.monotonic() + _RETRY_SECONDS
            self.become(Phase.PARKED)

    def send_command(self, name: str) -> None:
        """Send a command; its result arrives as a status change."""
        if self._channel is not None:
            self._channel.send(encode_frame(FrameKind.COMMAND, 0, Command(name)))

    def send(self, request: RoutedRequest) -> None:
        assert self._channel is not None  # noqa: S101 - it is hot
        # Never reused on a connection: a late reply to a cancelled request cannot reach another one.
        self._numbers += 1
        number = request.number = self._numbers
        request.replica, request.attempts = self, request.attempts + 1
        self.sent[number] = request
        if request.command:
            self._channel.send(encode_frame(FrameKind.COMMAND, number, Command(request.command)))
            return
        now = time.monotonic()
        request.begun_seconds = now if len(self.sent) <= self.slots else 0.0
        remaining = min(request.timeout_seconds, request.deadline_seconds - now)
        # A copy of the descriptor: the channel closes it after the send, and a retry needs the original.
        file = None if request.file is None else os.dup(request.file)
        call = (
            request.request_id, request.method, request.path, request.query, request.headers, remaining, request.body,
        )  # fmt: skip
        self._channel.send(encode_frame(FrameKind.CALL, number, call, has_file=file is not None), file)
        if len(self.sent) == 1:
            self._channel.flush()  # the replica sleeps: it wakes up while this iteration of the loop ends

    def recall(self) -> None:
        """Have it give back the calls that no worker has begun."""
        for request in islice(self.sent.values(), self.slots, None):
            request.is_recalled = True
        self.send_command("give_back")

    def cancel(self, request: RoutedRequest) -> None:
        """Cancel a request. Its slot counts as free at once; the replica has its own limit."""
        if self.sent.get(request.number) is request:
            self._finish(request.number)
            if self._channel is not None:
                self._channel.send(encode_frame(FrameKind.CANCEL, request.number))

    def credit(self, request: PendingRequest) -> None:
        """Allow one more piece of a stream."""
        if self._channel is not None and self.sent.get(request.number) is request:
            request.note_credit()
            self._channel.send(encode_frame(FrameKind.CREDIT, request.number))

    def close(self) -> None:
        """Close the connection, or stop the attempts to connect."""
        if self._connect_timer is not None:
            self._connect_timer.cancel()
        if self._channel is not None:
            self._channel.close()
        self._channel, self._connect_timer, self._path = None, None, None

    def _try_connect(self) -> None:
        self._connect_timer = None
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            end.connect(self._path or "")
            # After connect(), on the connected socket: the path may change at any time, the peer cannot.
            check_peer_owner(end, Path(self._path or "").parent)
        except OSError:
            end.close()
            # Polled: the replica makes its socket at some time after the start of its job.
            self._connect_timer = self._loop.call_later(_CONNECT_SECONDS, self._try_connect)
            return
        self._channel = AsyncChannel(end, self._on_frames, self._on_end)

    def _on_end(self) -> None:
        self._channel = None
        # Emptied before the callbacks: the listener sends these requests to other replicas.
        lost, self.sent = list(self.sent.values()), {}
        self._note_idle()
        self.become(Phase.DRAINING)
        self._listener.on_lost(self, lost)

    def _on_frames(self, frames: Sequence[CallFrame]) -> None:
        for frame in frames:
            if frame.kind == FrameKind.REPLY:
                self._on_reply(frame)
            elif frame.kind == FrameKind.CHUNK:
                self._on_chunk(frame)
            elif frame.kind == FrameKind.NOTIFICATION:
                self._on_notification(frame)

    def _on_reply(self, frame: CallFrame) -> None:
        reply: Reply = decode_message(frame)
        request = self.sent.get(frame.number)
        if request is None:
            close_file(self._take_file(frame))
            return
        # Checked before the descriptor is taken: it is closed with the connection if the reply is invalid.
        check_reply(reply, has_file=frame.has_file)
        if request.is_streaming or request.command:
            raise MalformedFrameError("a second reply, or a reply to a command")
        file = self._take_file(frame)
        request.is_streaming = not reply.is_last
        if reply.is_last:
            self._finish(frame.number)
        self._listener.on_reply(self, request, reply, file)

    def _on_chunk(self, frame: CallFrame) -> None:
        chunk: Chunk = decode_message(frame)
        request = self.sent.get(frame.number)
        if request is None or request.sink is None:
            close_file(self._take_file(frame))
            return
        request.note_chunk()
        if not request.is_streaming or request.undelivered > _MOST_UNDELIVERED:
            raise MalformedFrameError("a chunk without a stream, or one without credit")
        request.sink.chunk(chunk, self._take_file(frame))
        if chunk.is_last:
            self._finish(frame.number)
            self._listener.on_stream_end(request)

    def _on_notification(self, frame: CallFrame) -> None:
        notification: Notification = decode_message(frame)
        if notification.name == "state":
            self._on_status(read_status(notification))
        elif (request := self.sent.get(frame.number)) is not None and request.command:
            answer = Reply(_OK, read_pages(notification))
            self._finish(frame.number)
            self._listener.on_reply(self, request, answer, None)

    def _on_status(self, status: ReplicaStatus) -> None:
        self.reason, self.load_seconds = status.reason, status.load_seconds
        self.import_seconds, self.born_seconds = status.import_seconds, status.born_seconds
        phase = _PHASES.get(status.state, Phase.STARTING)
        # Sent before the replica saw its wake-up; the lease is on its way.
        if phase is Phase.PARKED and self.is_woken:
            return
        self.is_back = self.is_back or phase is Phase.HOT
        if phase is Phase.HOT and self.phase is not Phase.HOT:
            self.hot_since_seconds = self.idle_since_seconds = time.monotonic()
            self.is_woken = False
        self.become(phase)

    def _finish(self, number: int) -> None:
        self.sent.pop(number, None)
        # Calls are begun in the order in which they were sent.
        if len(self.sent) >= self.slots:
            moved_up = next(islice(self.sent.values(), self.slots - 1, None))
            moved_up.begun_seconds = moved_up.begun_seconds or time.monotonic()
        self._note_idle()

    def _note_idle(self) -> None:
        if not self.sent:
            self.idle_since_seconds = time.monotonic()

    def _take_file(self, frame: CallFrame) -> int | None:
        # Descriptors arrive in the order of the frames that have one, so one must be taken for each such frame, also for a late
        # reply; else the next frame would get the wrong body.
        return self._channel.next_file() if frame.has_file and self._channel is not None else None
