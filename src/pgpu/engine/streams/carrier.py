"""Carries bytes between one job, its log and its followers.

The job is never held up by a full disk or a dead client; by a slow client only while that client reads on.
"""

import errno
import os
import select
import socket
import time
from collections.abc import Callable

from pgpu.engine.event_loop import READABLE, WRITABLE, EventLoop, Timer
from pgpu.engine.settings import JobPaths
from pgpu.engine.streams.followers import PATIENCE_SECONDS, Followers
from pgpu.engine.streams.log import OutputLog
from pgpu.engine.streams.records import Record
from pgpu.engine.streams.stdio import JobStreams, open_streams
from pgpu.engine.unix_sockets import bind
from pgpu.model import JobSpec
from pgpu.runtimes import Stdio

_CHUNK_BYTES = 1 << 16
_MOST_STDIN_BYTES = 1 << 20
_BACKLOG = 16


class Carrier:
    """The streams of one job, from before its start until its last follower was served."""

    def __init__(
        self,
        loop: EventLoop,
        spec: JobSpec,
        places: JobPaths,
        log_cap_bytes: int,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Take callers from now on; the job's own streams are made by `open`.

        Args:
            loop: Calls on whatever is ready.
            spec: Of the job.
            places: Where the job's files lie; they exist.
            log_cap_bytes: How much output is kept.
            patience_seconds: How long a client that reads nothing holds the job back.
        """
        self._loop = loop
        self._patience_seconds = patience_seconds
        self._spec = spec
        self._places = places
        self._streams: JobStreams | None = None
        self._stdin = bytearray()
        self._stdin_ends = False
        self._window: tuple[int, int] | None = None
        self._patience: Timer | None = None
        self.on_window: Callable[[int, int], None] = lambda _columns, _rows: None
        self.log = OutputLog(places.log, log_cap_bytes)
        listener = bind(socket.SOCK_STREAM, places.attach_socket)
        listener.listen(_BACKLOG)
        self.followers = Followers(loop, listener, self.log, self, patience_seconds)

    def open(self) -> Stdio:
        """Open the streams and return the job's ends, for `Runtime.start` or `adopt`; then call `started`."""
        if self._streams is not None:
            self._streams.close()  # A start that failed, and is tried again.
        self._streams = open_streams(self._spec, self._places)
        if self._window is not None:
            self._streams.set_window(*self._window)
        if self._streams.job_ends is None:
            raise LookupError("streams were made without the job's ends")
        return self._streams.job_ends

    def started(self) -> None:
        """Let go of the job's ends and carry its output from now on."""
        if self._streams is not None:
            self._streams.close_job_ends()
        self._watch_outputs()
        self._push_stdin()

    def drain(self) -> None:
        """Take everything that a job which has ended left in its pipes."""
        for descriptor in list(self._streams.outputs if self._streams else ()):
            while self._read(descriptor):
                pass
        self.followers.output_grew()

    def finish(self) -> None:
        """Tell the followers that the job is final."""
        self.followers.end()

    def close(self) -> None:
        """Close everything."""
        self.followers.close()
        if self._streams is not None:
            for descriptor in [*self._streams.outputs, *([self._streams.stdin] if self._streams.stdin else [])]:
                self._loop.forget(descriptor)
            self._streams.close()
        self.log.close()

    @property
    def takes_stdin(self) -> bool:
        """Whether clients may send more input."""
        return len(self._stdin) < _MOST_STDIN_BYTES

    def give_stdin(self, data: bytes) -> None:
        """Pass input on to the job, or keep it until the job starts."""
        if self._spec.wants_stdin and not self._stdin_ends:
            self._stdin += data
            self._push_stdin()

    def end_stdin(self) -> None:
        """End the job's input once all of it was passed on."""
        self._stdin_ends = True
        self._push_stdin()

    def set_window(self, columns: int, rows: int) -> None:
        """Give the job's terminal a size, now or when it is made."""
        self._window = (columns, rows)
        if self._streams is not None:
            self._streams.set_window(columns, rows)
        self.on_window(columns, rows)

    def followers_moved(self) -> None:
        """See whether output may flow again."""
        self._watch_outputs()

    def _watch_outputs(self) -> None:
        if self._streams is None or self._streams.job_ends is not None:
            return
        is_held_back = self.followers.hold_back
        for descriptor in self._streams.outputs:
            self._watch_output(descriptor, 0 if is_held_back else READABLE)
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self._loop.call_later(self._patience_seconds, self._watch_outputs) if is_held_back else None

    def _watch_output(self, descriptor: int, events: int) -> None:
        # A terminal is one descriptor for both directions.
        if self._streams is not None and descriptor == self._streams.terminal and self._stdin:
            events |= WRITABLE
        self._loop.watch(descriptor, events, lambda ready: self._output_ready(descriptor, ready))

    def _output_ready(self, descriptor: int, events: int) -> None:
        if events & WRITABLE:
            self._push_stdin()
        if events & READABLE:
            self._read(descriptor)
            self.followers.output_grew()
            if self.followers.hold_back:
                self._watch_outputs()

    def _read(self, descriptor: int) -> bool:
        """Move one piece of output into the log; False if there is none now."""
        if self._streams is None or descriptor not in self._streams.outputs:
            return False
        stream = self._streams.outputs[descriptor]
        if descriptor != self._streams.terminal:
            state = _state_of_pipe(descriptor)
            if not state or (state & select.POLLIN and self.log.take(stream, descriptor, _CHUNK_BYTES, time.time_ns())):
                return bool(state)
        try:
            data = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as exc:
            if exc.errno != errno.EIO:  # A terminal says so when its last user is gone.
                raise
            data = b""
        if data:
            self.log.append(Record(stream, data, time.time_ns()))
            return True
        self._loop.forget(descriptor)
        self._streams.close_output(descriptor)
        return False

    def _push_stdin(self) -> None:
        """Write as much input as the job takes now."""
        if self._streams is None or self._streams.stdin is None or self._streams.job_ends is not None:
            return
        descriptor = self._streams.stdin
        had_room = self.takes_stdin
        try:
            while self._stdin:
                del self._stdin[: os.write(descriptor, self._stdin[:_CHUNK_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._stdin.clear()  # The job reads no more.
            self._stdin_ends = True
        if not had_room and self.takes_stdin:
            self.followers.stdin_has_room()
        self._rewatch_stdin(descriptor)

    def _rewatch_stdin(self, descriptor: int) -> None:
        if self._streams is None:
            return
        if descriptor == self._streams.terminal:
            self._watch_outputs()
        elif self._stdin:
            self._loop.watch(descriptor, WRITABLE, lambda _: self._push_stdin())
        else:
            self._loop.forget(descriptor)
        if self._stdin_ends and not self._stdin:
            self._streams.end_stdin()


def _state_of_pipe(descriptor: int) -> int:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return next((events for _, events in poll.poll(0)), 0)
