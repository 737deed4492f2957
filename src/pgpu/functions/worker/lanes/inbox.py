"""What came over the socket and is not served yet: calls, cancellations, credits for streams, questions.

It refuses to serve: lanes take from it. One thread fills it.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from pgpu.functions.calls.blocking import Port
from pgpu.functions.calls.files import body_of
from pgpu.functions.calls.frames import Frame, MalformedFrameError, message_of
from pgpu.functions.calls.messages import Ask, Body, Call, Kind


@dataclass(slots=True)
class Work:
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
class Inbox:
    """Frames read from one port, sorted."""

    port: Port
    calls: deque[Work] = field(default_factory=deque)
    questions: deque[tuple[int, Ask]] = field(default_factory=deque)
    known: dict[int, Work] = field(default_factory=dict)
    """Every call that is not answered to its end; a lane takes it out."""

    on_cancelled: Callable[[Work], None] = lambda _work: None
    """Told of each call that is cancelled while it is known."""

    def fill(self, *, is_waiting: bool) -> None:
        """Read what is there; wait for the first frame, or only look.

        Raises:
            MalformedFrameError: The front speaks nonsense.
        """
        for each in self.port.receive(is_waiting=is_waiting):
            self._sort(each)

    def _sort(self, each: Frame) -> None:
        if each.kind == Kind.CALL:
            self._add(each)
        elif each.kind == Kind.CANCEL:
            if work := self.known.get(each.number):
                work.is_cancelled = True
                self.on_cancelled(work)
        elif each.kind == Kind.CREDIT:
            if work := self.known.get(each.number):
                work.credit += 1
        elif each.kind == Kind.ASK:
            self.questions.append((each.number, message_of(each)))
        else:
            raise MalformedFrameError(f"a front does not send kind {each.kind}")

    def _add(self, each: Frame) -> None:
        call: Call = message_of(each)
        body = body_of(self.port.next_file()) if each.has_file else call.body
        work = Work(each.number, call, time.monotonic() + call.timeout_seconds, body)
        self.known[each.number] = work
        self.calls.append(work)
