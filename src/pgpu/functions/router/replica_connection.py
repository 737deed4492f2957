"""The gateway's connection to one replica: calls go as frames, multiplexed, and what the replica says of itself comes back.

It refuses to choose who gets a call, and to judge what the end of a connection means: the hall does.
"""

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from pgpu.functions.ipc.async_channel import AsyncChannel
from pgpu.functions.ipc.call_frames import Frame, MalformedFrameError, decode_message, encode_frame
from pgpu.functions.ipc.messages import Chunk, Command, FrameKind, Notification, Reply
from pgpu.functions.ipc.unix_sockets import check_peer_owner
from pgpu.functions.requests.pending_request import PendingRequest
from pgpu.functions.router.replica_validation import ReplicaStatus, check_reply, read_pages, read_status
from pgpu.functions.router.routed_request import RoutedRequest
from pgpu.functions.scaling import Phase, ReplicaView

_CALLS_SOCKET = "calls.sock"
_LOOK_SECONDS = 0.01
"""Between two looks for the socket of a replica that starts."""

_RETRY_SECONDS = 0.5
"""Before a lease is asked for again where nobody answered."""

_MOST_PIECES_AHEAD = 64
"""Of one stream, that its caller has not taken: a worker sends a quarter of this before it waits."""

_OK = 200
_PHASES = {"hot": Phase.HOT, "parked": Phase.PARKED, "failed": Phase.FAILED, "draining": Phase.DRAINING}


class ReplicaListener(Protocol):
    """Who hears of a link."""

    def on_phase(self, link: "ReplicaConnection") -> None:
        """Its phase has changed."""

    def on_reply(self, link: "ReplicaConnection", errand: RoutedRequest, reply: Reply, file: int | None) -> None:
        """An errand was answered, or its answer begins."""

    def on_streamed(self, errand: RoutedRequest) -> None:
        """The last piece of an answer was passed on."""

    def on_lost(self, link: "ReplicaConnection", errands: Sequence[RoutedRequest]) -> None:
        """The connection ended with these under way."""


class ReplicaConnection:
    """One replica, connected or not yet."""

    def __init__(self, job_id: str, version: int, listener: ReplicaListener) -> None:
        self.job_id, self.version = job_id, version
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._channel: AsyncChannel | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._path: str | None = None
        self._numbers = 0
        self.sent: dict[int, RoutedRequest] = {}
        self.phase = Phase.WAITING
        self.asked_seconds = self.since_seconds = self.idle_since_seconds = time.monotonic()
        self.hot_since_seconds = self.load_seconds = self.import_seconds = self.born_seconds = 0.0
        self.reason: str | None = None
        self.offered_value: float | None = None
        self.is_claiming = False
        """Whether the engine is asked for its lease now."""

        self.is_back = False
        """Whether it said that it is hot since its lease was asked for: that may be known sooner than the engine's answer."""

        self.is_woken = False
        """Whether it was parked and is to have a slice again: what it said before that is no news."""

        self.retry_at_seconds = 0.0
        """Before then it is not woken: nobody answered who was asked for its lease."""

        self.turn = asyncio.Lock()
        """What is asked of the engine about its lease is asked in order."""

        self.has_answered = False
        """Whether its cold start is known to the end: its first call was answered."""

    @property
    def in_flight(self) -> int:
        """Errands that it has."""
        return len(self.sent)

    def view(self) -> ReplicaView:
        """Show it to the policy; one that is being claimed counts as busy."""
        busy = len(self.sent) + int(self.is_claiming)
        return ReplicaView(
            self.job_id, self.version, self.phase, self.since_seconds, busy, self.idle_since_seconds, self.offered_value,
            self.retry_at_seconds,
        )  # fmt: skip

    def connect(self, directory: Path) -> None:
        """Connect to its socket, as soon as it is there."""
        self._path = os.fspath(directory / _CALLS_SOCKET)
        self._look()

    def become(self, phase: Phase) -> None:
        """Note a new phase and tell of it; from draining there is no way back."""
        if phase is not self.phase and self.phase is not Phase.DRAINING:
            self.phase, self.since_seconds = phase, time.monotonic()
            self._listener.on_phase(self)

    def begin_claim(self) -> None:
        """Its lease is asked for."""
        self.is_claiming, self.is_back = True, False

    def wake(self) -> None:
        """Somebody asks for its lease: what follows is another cold start."""
        self.begin_claim()
        self.await_slice()

    def await_slice(self) -> None:
        """It is to have a slice again, and says itself when it is hot."""
        if not self.is_woken:
            self.is_woken, self.has_answered = True, False
            self.asked_seconds = time.monotonic()
            self.become(Phase.WAITING)

    def rouse(self, *, is_sure: bool) -> None:
        """It has what it needs: have it serve; or, if nobody knows, be parked as before."""
        if is_sure:
            self.offered_value = None
            self.ask("wake")
        else:
            self.is_woken, self.retry_at_seconds = False, time.monotonic() + _RETRY_SECONDS
            self.become(Phase.PARKED)

    def ask(self, what: str) -> None:
        """Say or ask something beside the calls; the answer is news."""
        if self._channel is not None:
            self._channel.send(encode_frame(FrameKind.COMMAND, 0, Command(what)))

    def send(self, errand: RoutedRequest) -> None:
        """Give it an errand."""
        assert self._channel is not None  # noqa: S101 - it is hot
        self._numbers += 1
        number = errand.number = self._numbers
        errand.link, errand.attempts = self, errand.attempts + 1
        self.sent[number] = errand
        if errand.question:
            self._channel.send(encode_frame(FrameKind.COMMAND, number, Command(errand.question)))
            return
        remaining = min(errand.timeout_seconds, errand.deadline_seconds - time.monotonic())
        file = None if errand.file is None else os.dup(errand.file)
        call = (
            errand.request_id, errand.method, errand.path, errand.query, errand.headers, remaining, errand.body,
        )  # fmt: skip
        self._channel.send(encode_frame(FrameKind.CALL, number, call, has_file=file is not None), file)
        if len(self.sent) == 1:
            self._channel.flush()  # the replica sleeps: it wakes while this turn ends

    def cancel(self, errand: RoutedRequest) -> None:
        """Nobody waits for this errand any more; its place is free, for the replica keeps its own books."""
        if self.sent.get(errand.number) is errand:
            del self.sent[errand.number]
            self._note_idle()
            if self._channel is not None:
                self._channel.send(encode_frame(FrameKind.CANCEL, errand.number))

    def credit(self, ticket: PendingRequest) -> None:
        """Let it send one more piece of a stream."""
        if self._channel is not None and self.sent.get(ticket.number) is ticket:
            self.sent[ticket.number].pieces_ahead -= 1
            self._channel.send(encode_frame(FrameKind.CREDIT, ticket.number))

    def close(self) -> None:
        """End the connection and the looking for one."""
        if self._looking is not None:
            self._looking.cancel()
        if self._channel is not None:
            self._channel.close()
        self._channel, self._looking, self._path = None, None, None

    def _look(self) -> None:
        self._looking = None
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            end.connect(self._path or "")
            check_peer_owner(end, Path(self._path or "").parent)
        except OSError:
            end.close()
            self._looking = self._loop.call_later(_LOOK_SECONDS, self._look)
            return
        self._channel = AsyncChannel(end, self._on_frames, self._on_end)

    def _on_end(self) -> None:
        self._channel = None
        lost, self.sent = list(self.sent.values()), {}
        self._note_idle()
        self.become(Phase.DRAINING)
        self._listener.on_lost(self, lost)

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        for each in frames:
            if each.kind == FrameKind.REPLY:
                self._on_reply(each)
            elif each.kind == FrameKind.CHUNK:
                self._on_chunk(each)
            elif each.kind == FrameKind.NOTIFICATION:
                self._on_tell(each)

    def _on_reply(self, each: Frame) -> None:
        reply: Reply = decode_message(each)
        errand = self.sent.get(each.number)
        if errand is None:
            _close(self._file_of(each))
            return
        check_reply(reply, has_file=each.has_file)
        if errand.is_streaming or errand.question:
            raise MalformedFrameError("a second answer, or one to a question")
        file = self._file_of(each)
        errand.is_streaming = not reply.is_last
        if reply.is_last:
            self._done(each.number)
        self._listener.on_reply(self, errand, reply, file)

    def _on_chunk(self, each: Frame) -> None:
        chunk: Chunk = decode_message(each)
        errand = self.sent.get(each.number)
        if errand is None or errand.asker is None:
            _close(self._file_of(each))
            return
        errand.pieces_ahead += 1
        if not errand.is_streaming or errand.pieces_ahead > _MOST_PIECES_AHEAD:
            raise MalformedFrameError("a piece of no stream, or more of them than were asked for")
        errand.asker.chunk(chunk, self._file_of(each))
        if chunk.is_last:
            self._done(each.number)
            self._listener.on_streamed(errand)

    def _on_tell(self, each: Frame) -> None:
        tell: Notification = decode_message(each)
        if tell.name == "state":
            self._on_state(read_status(tell))
        elif (errand := self.sent.get(each.number)) is not None and errand.question:
            answer = Reply(_OK, read_pages(tell))
            self._done(each.number)
            self._listener.on_reply(self, errand, answer, None)

    def _on_state(self, news: ReplicaStatus) -> None:
        self.reason, self.load_seconds = news.reason, news.load_seconds
        self.import_seconds, self.born_seconds = news.import_seconds, news.born_seconds
        phase = _PHASES.get(news.state, Phase.STARTING)
        if phase is Phase.PARKED and self.is_woken:
            return
        self.is_back = self.is_back or phase is Phase.HOT
        if phase is Phase.HOT and self.phase is not Phase.HOT:
            self.hot_since_seconds = self.idle_since_seconds = time.monotonic()
            self.is_woken = False
        self.become(phase)

    def _done(self, number: int) -> None:
        self.sent.pop(number, None)
        self._note_idle()

    def _note_idle(self) -> None:
        if not self.sent:
            self.idle_since_seconds = time.monotonic()

    def _file_of(self, each: Frame) -> int | None:
        return self._channel.next_file() if each.has_file and self._channel is not None else None


def _close(file: int | None) -> None:
    if file is not None:
        os.close(file)
