"""The gateway's way in: calls as frames over `calls.sock`, and news of how the replica is.

A visit is one connection; its numbers are its own. Who visits gets what an HTTP client gets, refusals included: one whose
`started_seconds` is 0 and whose status is 429 or 503 says that no worker has seen the call. It refuses to know who
visits: who may open the socket may.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pgpu.functions.ipc.async_channel import AsyncChannel
from pgpu.functions.ipc.call_frames import Frame, MalformedFrameError, decode_message, encode_frame
from pgpu.functions.ipc.messages import Call, Chunk, Command, FrameKind, Notification, Reply
from pgpu.functions.ipc.unix_sockets import listening_socket
from pgpu.functions.replica.request_queue import RequestQueue
from pgpu.functions.replica.worker_supervisor import WorkerSupervisor
from pgpu.functions.requests.pending_request import PendingRequest

_BACKLOG = 64
_START_FIELD = 19
"""Of /proc/PID/stat behind the name, which may hold anything."""


class CallServer:
    """Everybody who is connected."""

    def __init__(self, desk: RequestQueue, keeper: WorkerSupervisor, path: Path) -> None:
        """Listen."""
        self.desk, self._keeper = desk, keeper
        self._loop = asyncio.get_running_loop()
        self._visits: set[CallConnection] = set()
        self._is_telling = False
        self._born_seconds = _born_seconds()
        keeper.on_state = self._state_changed
        self._listening = listening_socket(path, _BACKLOG)
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        """Send everybody away."""
        self._loop.remove_reader(self._listening)
        self._listening.close()
        for visit in [*self._visits]:
            visit.close()

    def obey(self, what: str) -> None:
        """Do what a question asks for, if it does."""
        if what == "park":
            self._keeper.park()
        elif what == "wake":
            self._keeper.wake()

    def tell(self, what: str) -> Notification:
        """Answer a question."""
        if what == "describe":
            return Notification("description", {"pages": self._keeper.pages})
        keeper, desk = self._keeper, self.desk
        return Notification(
            "state",
            {
                "state": keeper.state.value,
                "reason": keeper.reason,
                "restarts": keeper.restarts,
                "requests": desk.requests,
                "born_seconds": self._born_seconds,
                "import_seconds": keeper.import_seconds,
                "hot_since_seconds": desk.hot_since_seconds,
                "load_seconds": desk.load_seconds,
            },
        )

    def _accept(self) -> None:
        try:
            end, _ = self._listening.accept()
        except OSError:
            return  # it has left already, or there is no descriptor for it: it sees that nobody answers
        visit = CallConnection(self, end, self._visits.discard)
        self._visits.add(visit)
        visit.tell(0, self.tell("state"))

    def _state_changed(self) -> None:
        """Say it at the end of this turn, when the rest has changed with it."""
        if not self._is_telling:
            self._is_telling = True
            self._loop.call_soon(self._tell_all)

    def _tell_all(self) -> None:
        self._is_telling = False
        for visit in self._visits:
            visit.tell(0, self.tell("state"))


class CallConnection:
    """One connection."""

    def __init__(self, visits: CallServer, end: socket.socket, on_end: "Callable[[CallConnection], None]") -> None:
        self._visits, self._told_end = visits, on_end
        self._tickets: dict[int, PendingRequest] = {}
        self._channel = AsyncChannel(end, self._on_frames, self._on_end)

    def tell(self, number: int, tell: Notification) -> None:
        """Say something beside the calls."""
        self._channel.send(encode_frame(FrameKind.NOTIFICATION, number, tell))

    def reply(self, number: int, reply: Reply, file: int | None) -> None:
        """Pass an answer on, or its head."""
        if reply.is_last:
            self._tickets.pop(number, None)
        said = (reply.status, reply.headers, reply.body, reply.is_last, reply.started_seconds, reply.exec_seconds)
        self._channel.send(encode_frame(FrameKind.REPLY, number, said, has_file=file is not None), file)

    def chunk(self, number: int, chunk: Chunk, file: int | None) -> None:
        """Pass a piece on."""
        if chunk.is_last:
            self._tickets.pop(number, None)
        self._channel.send(encode_frame(FrameKind.CHUNK, number, chunk, has_file=file is not None), file)

    def close(self) -> None:
        """End it; what it asked for is abandoned."""
        self._channel.close()
        self._on_end()

    def _on_end(self) -> None:
        self._told_end(self)
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            self._visits.desk.abandon(ticket)

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        for each in frames:
            self._on_frame(each)

    def _on_frame(self, each: Frame) -> None:
        if each.kind == FrameKind.CALL:
            self._on_call(each)
        elif each.kind == FrameKind.CANCEL:
            if (ticket := self._tickets.pop(each.number, None)) is not None:
                self._visits.desk.abandon(ticket)
        elif each.kind == FrameKind.CREDIT:
            if (ticket := self._tickets.get(each.number)) is not None:
                self._visits.desk.credit(ticket)
        elif each.kind == FrameKind.COMMAND:
            ask: Command = decode_message(each)
            self._visits.obey(ask.name)
            self.tell(each.number, self._visits.tell(ask.name))

    def _on_call(self, each: Frame) -> None:
        call: Call = decode_message(each)
        if each.number in self._tickets:
            raise MalformedFrameError("a number that is in use")
        file = self._channel.next_file() if each.has_file else None
        now = time.monotonic()
        ticket = PendingRequest(
            call.id, call.method, call.path, call.query, call.headers, call.body, file, now, now + call.timeout_seconds,
            call.timeout_seconds, CallConnectionSink(self, each.number),
        )  # fmt: skip
        self._tickets[each.number] = ticket
        self._visits.desk.submit(ticket)


class CallConnectionSink:
    """Who waits for one call."""

    __slots__ = ("_number", "_visit")

    def __init__(self, visit: CallConnection, number: int) -> None:
        self._visit, self._number = visit, number

    def reply(self, reply: Reply, file: int | None) -> None:
        """Pass it on."""
        self._visit.reply(self._number, reply, file)

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        """Pass it on."""
        self._visit.chunk(self._number, chunk, file)


def _born_seconds() -> float:
    """Return when the kernel made this process, on the monotonic clock; exact to a hundredth of a second."""
    fields = Path("/proc/self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
    since_boot = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
