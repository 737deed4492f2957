"""What came over the socket and is not served yet: calls, cancellations, credits for streams, questions.

It refuses to serve: lanes take from it. One thread fills it.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pgpu.functions.ipc.blocking_channel import BlockingChannel
from pgpu.functions.ipc.call_frames import Frame, MalformedFrameError, decode_message
from pgpu.functions.ipc.memory_files import map_body
from pgpu.functions.ipc.messages import Body, Call, Command, FrameKind


@dataclass(slots=True)
class WorkItem:
    """One call that this worker has."""

    number: int
    call: Call
    deadline_seconds: float
    """On the monotonic clock."""

    body: Body
    is_cancelled: bool = False
    credit: int = 0
    """Pieces of its stream that have left for the caller and were not counted yet."""


@dataclass(slots=True)
class CallInbox:
    """Frames read from one port, sorted."""

    port: BlockingChannel
    calls: deque[WorkItem] = field(default_factory=deque)
    questions: deque[tuple[int, Command]] = field(default_factory=deque)
    known: dict[int, WorkItem] = field(default_factory=dict)
    """Every call that is not answered to its end; a lane takes it out."""

    on_cancelled: Callable[[WorkItem], None] = lambda _work: None
    """Told of each call that is cancelled while it is known."""

    def fill(self, *, is_waiting: bool) -> None:
        """Read what is there; wait for the first frame, or only look.

        Raises:
            MalformedFrameError: The front speaks nonsense.
        """
        for each in self.port.receive(is_waiting=is_waiting):
            self._sort(each)

    def _sort(self, each: Frame) -> None:
        if each.kind == FrameKind.CALL:
            self._add(each)
        elif each.kind == FrameKind.CANCEL:
            if work := self.known.get(each.number):
                work.is_cancelled = True
                self.on_cancelled(work)
        elif each.kind == FrameKind.CREDIT:
            if work := self.known.get(each.number):
                work.credit += 1
        elif each.kind == FrameKind.ASK:
            self.questions.append((each.number, decode_message(each)))
        else:
            raise MalformedFrameError(f"a front does not send kind {each.kind}")

    def _add(self, each: Frame) -> None:
        call: Call = decode_message(each)
        body = map_body(self.port.next_file()) if each.has_file else call.body
        work = WorkItem(each.number, call, time.monotonic() + call.timeout_seconds, body)
        self.known[each.number] = work
        self.calls.append(work)
