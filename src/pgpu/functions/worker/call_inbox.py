"""The worker's input: calls, cancellations, stream credits and commands that arrived and are not processed yet.

One thread fills the inbox; executors take from it.
"""

import signal
import time
from collections import deque
from collections.abc import Callable
from types import FrameType

from pgpu.functions.handler import Handler
from pgpu.functions.ipc.blocking_channel import BlockingChannel
from pgpu.functions.ipc.call_messages import (
    Body,
    Call,
    CallFrame,
    Command,
    FrameKind,
    MalformedFrameError,
    Notification,
    decode_message,
    encode_frame,
)
from pgpu.functions.ipc.memory_files import map_body
from pgpu.functions.worker.call_codec import WorkItem, log_failure
from pgpu.structs import Struct, field


class CallInbox(Struct):
    """Frames from one channel, sorted by kind."""

    channel: BlockingChannel
    calls: deque[WorkItem] = field(default_factory=deque)
    commands: deque[tuple[int, Command]] = field(default_factory=deque)
    known: dict[int, WorkItem] = field(default_factory=dict)
    """Calls without a complete reply, by number; the executor removes them."""

    on_cancelled: Callable[[WorkItem], None] = lambda _work: None
    """Called for each cancelled call that is in `known`."""

    def fill(self, *, is_waiting: bool) -> None:
        """Read all frames that have arrived; optionally wait for the first one.

        Raises:
            MalformedFrameError: The replica sent an invalid frame.
        """
        for frame in self.channel.receive(is_waiting=is_waiting):
            if frame.kind == FrameKind.CALL:
                self._add_call(frame)
            elif frame.kind == FrameKind.CANCEL:
                if work := self.known.get(frame.number):
                    work.is_cancelled = True
                    self.on_cancelled(work)
            elif frame.kind == FrameKind.CREDIT:
                if work := self.known.get(frame.number):
                    work.credit += 1
            elif frame.kind == FrameKind.COMMAND:
                self.commands.append((frame.number, decode_message(frame)))
            else:
                raise MalformedFrameError(f"a replica does not send kind {frame.kind}")

    def _add_call(self, frame: CallFrame) -> None:
        call: Call = decode_message(frame)
        body: Body = call.body
        if frame.has_file:
            body = map_body(self.channel.next_file())
        # The deadline on this process's clock: the frame carries the time left, so both clocks need not agree.
        work = WorkItem(frame.number, call, time.monotonic() + call.timeout_seconds, body)
        self.known[frame.number] = work
        self.calls.append(work)


class _Interrupted(BaseException):
    """Raised by the signal handler to end a wait; never leaves `ShutdownSignal.wait`."""


class ShutdownSignal:
    """Whether the worker must exit, by a command or by SIGTERM. The call that is running is completed first."""

    def __init__(self) -> None:
        self.is_set = False
        self.on_set: Callable[[], object] = lambda: None
        """Called from the signal handler when SIGTERM arrives."""

        self._is_waiting = False

    def install(self) -> None:
        """Handle SIGTERM and ignore SIGINT, which a terminal sends to the whole process group; from the main thread only."""
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait(self, wait: Callable[[], None]) -> None:
        """Run a blocking wait; SIGTERM interrupts it.

        A frame that is being read at that moment may be lost. Its call has not started, which the replica sees in the mark.
        """
        try:
            self._is_waiting = True
            if not self.is_set:
                wait()
            self._is_waiting = False
        except _Interrupted:
            pass

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.is_set = True
        # Runs in the signal handler, between two bytecodes of the main thread.
        self.on_set()
        if self._is_waiting:
            # The exception leaves the blocking poll(); outside a wait the flag alone is enough.
            self._is_waiting = False
            raise _Interrupted


def run_commands(inbox: CallInbox, handler: Handler, shutdown: ShutdownSignal) -> None:
    """Execute all commands. A handler without `health()` is healthy as long as it answers at all."""
    while inbox.commands:
        number, command = inbox.commands.popleft()
        if command.name == "leave":
            shutdown.is_set = True
        elif command.name == "health":
            try:
                is_well = handler.health is None or bool(handler.health())
            except BaseException as error:  # noqa: BLE001 - any exception of the user's code means unhealthy
                log_failure("health() failed", error)
                is_well = False
            health = Notification("health", {"is_well": is_well})
            inbox.channel.send(encode_frame(FrameKind.NOTIFICATION, number, health))
