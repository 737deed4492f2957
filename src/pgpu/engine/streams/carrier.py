"""The standard streams of one job, and the native monitor that carries them into the log and to clients.

The agent makes the pipes and sockets and keeps its ends, so that the death of either process loses neither output nor the exit
code: a monitor continues without an agent, and an agent replaces a monitor that was killed. The job of a killed monitor becomes
a child of the agent's guard, which records its exit code. The guard also keeps the read ends of the job's pipes, or its
terminal, from which the next agent continues if both are killed together. If a command started the monitor, the job becomes a
child of init or another subreaper; its exit code is then read by the pidfd.
"""

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pgpu.engine.event_loop import READABLE, EventLoop, Timer
from pgpu.engine.settings import JobPaths
from pgpu.engine.streams.orphan_watch import OrphanWatch
from pgpu.engine.streams.records import STDERR, STDOUT
from pgpu.engine.streams.stdio import JobStreams, open_streams
from pgpu.engine.unix_sockets import bind, send_datagram
from pgpu.errors import NodeError, RuntimeUnavailableError
from pgpu.host.file_lock import open_lock_file, try_flock
from pgpu.host.process_identity import reaped_status
from pgpu.host.stderr_log import say
from pgpu.host.thread_turns import pause
from pgpu.model import JobSpec, ProcessHolder
from pgpu.runtimes import Stdio
from pgpu.runtimes.job_monitor import (
    EndRecord,
    Monitor,
    MonitorOrder,
    OfferedMonitor,
    read_reaped,
    read_record,
    start_monitor,
)
from pgpu.runtimes.kept_descriptors import drop, keep, take

PATIENCE_SECONDS = 30.0
"""A client that read nothing for this long counts as hung: the job continues without it."""

_BACKLOG = 128
_RETIREMENT_SECONDS = 10.0
_PAUSE_SECONDS = 0.005
_SIGNAL_EXIT_BASE = 128
_ORDER_SECONDS = 1.0
_RETRY_SECONDS = 1.0


class Carrier:
    """The streams of one job, from before its start until its last client has the end of the output."""

    def __init__(  # noqa: PLR0917 - the parts of one job
        self,
        loop: EventLoop,
        job_id: str,
        spec: JobSpec,
        places: JobPaths,
        log_cap_bytes: int,
        held: Callable[[], tuple[int, ...]] = tuple,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        """Accept clients from now on, unless a monitor of this job runs already and accepts them.

        Args:
            loop: Of the job's thread.
            job_id: The job.
            spec: Of the job.
            places: Where the job's files are; they exist.
            log_cap_bytes: Largest size of the stored output.
            held: Returns descriptors that the monitor keeps open as long as it lives.
            patience_seconds: Longest time that a client which reads nothing blocks the job.
        """
        self._loop = loop
        self._job_id = job_id
        self._spec = spec
        self._places = places
        self._log_cap_bytes = log_cap_bytes
        self._held = held
        self._patience_seconds = patience_seconds
        self._streams: JobStreams | None = None
        self._window: tuple[int, int] | None = None
        self._is_finished = False
        self._is_carried = False
        """Whether the monitor carries the streams only, and is not the job's parent."""

        self._is_released = False
        """Whether this process has released the launcher of the monitor's job: its end is the job's, before execve too."""

        self._number = 0
        self._ended: EndRecord | None = None
        """The record of that start's end, once it was found: it never changes."""

        self._monitor: Monitor | None = None
        self._offered: OfferedMonitor | None = None
        self._done: int | None = None
        self._retry: Timer | None = None
        """Of the replacement of a killed monitor, after it failed."""

        self._orphan: OrphanWatch | None = None
        self.end_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.on_window: Callable[[int, int], None] = lambda _columns, _rows: None
        self._lock: int | None = open_lock_file(places.monitor_lock)
        self._listener: socket.socket | None = None
        self._control: socket.socket | None = None
        if try_flock(self._lock):
            self._bind()
        else:
            self._release_lock()

    def open(self, offered: OfferedMonitor | None = None) -> Stdio:
        """Make the streams of a job that is to be started; then call `started`.

        Args:
            offered: The job's monitor, which `start_launcher` gives its order; closed here. None has one started there.
        """
        self._drop_offered()
        self._offered = offered
        self._retire()
        return self._make_streams()

    def reopen(self) -> Stdio:
        """Return the streams of a job that another agent started; then call `started`."""
        record = self._last_record()
        if record is not None:
            self._number = int(record.suffix[1:])
        if record is None:
            self._retire()  # the job runs elsewhere: its new streams need a new monitor
            return self._make_streams()
        with contextlib.suppress(FileNotFoundError):
            self._watch_done()
        if self._lock is None:
            # Its monitor may be one that replaced the job's parent: it has no part in the job's end.
            self._is_carried = True
            self._keep_pipes()
            self._watch_main()
            nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            self._streams = JobStreams((), None, None, Stdio(nothing, nothing, nothing))
            return Stdio(nothing, nothing, nothing, self)
        stdio = self._make_streams(of_running_job=True)
        if self._end_record() is not None:
            self._report_end()
        else:
            self._watch_main()
        return stdio

    def started(self) -> None:
        """Close the job's ends in this process; start a monitor for the streams if the job has no launcher."""
        if self._lock is not None and self._monitor is None:
            self._start_monitor(None, None, None)
        self._is_released = not self._is_carried and self._monitor is not None
        if self._streams is not None:
            self._streams.close_job_ends()

    def start_launcher(self, words: Sequence[str], control: int, report: int) -> None:
        """Start the monitor, which starts the launcher on the job's streams.

        Args:
            words: The launcher's arguments, without its own name.
            control: Read end of its control pipe.
            report: Write end of its report pipe; the monitor's first line is "started" and the launcher's PID.

        Raises:
            OSError: The kernel could not create a process.
        """
        self._number, self._ended = time.time_ns(), None
        self._places.done.unlink(missing_ok=True)
        os.mkfifo(self._places.done, 0o600)
        self._watch_done()
        self._start_monitor(tuple(words), control, report)

    @property
    def knows_end(self) -> bool:
        """Whether the exit code is recorded, or will be by a running monitor that another agent started."""
        if self._lock is None or self._end_record() is not None:
            return True
        start = self._last_record()
        with contextlib.suppress(NodeError):
            return start is not None and self.exit_code(read_record(start).holder, None) is not None
        return False

    def exit_code(self, holder: ProcessHolder, pidfd: int | None) -> int | None:
        """Return the exit code of the job's main process: as recorded, or, if its monitor was killed, as the kernel kept it."""
        record = self._end_record()
        if record is not None:
            # A process that was killed after its release and before execve has left no mark that its command ran.
            is_of_job = self._is_released and record.holder == holder
            return record.exit_code if is_of_job else record.exit_code_of(holder)
        start = self._last_record()
        if start is None or not read_record(start).has_run:
            return None  # the launcher ended before it executed the job
        code = read_reaped(self._places.spool, holder)
        if code is None and pidfd is not None and (status := reaped_status(pidfd)) is not None:
            code = os.waitstatus_to_exitcode(status)
            code = code if code >= 0 else _SIGNAL_EXIT_BASE - code
        return code

    def shows_no_run_of(self, holder: ProcessHolder) -> bool:
        """Whether the record of this process, which has ended, shows that it never executed the job's command."""
        path = self._last_record()
        with contextlib.suppress(FileNotFoundError, NodeError):
            return path is not None and read_record(path).shows_no_run_of(holder)
        return False

    def drain(self) -> None:
        """End the output of a job that runs elsewhere; a monitor that started its job does so itself."""
        if self._is_carried:
            self._order(b"end")

    def finish(self) -> None:
        """Send clients the end of the job once they have read everything.

        Raises:
            NodeError: A monitor that was killed, or was not needed before, cannot be started now; the call may be repeated.
            OSError: Likewise.
        """
        if self._is_finished:
            return
        if self._retry is not None or (self._monitor is not None and self._monitor.has_ended):
            self._start_next_monitor()
        elif self._lock is not None and self._monitor is None:  # the job was never started
            if self._streams is None:
                self._make_streams()
            self._start_monitor(None, None, None)
        self._is_finished = True
        self.drain()
        self._order(b"finish")

    def set_window(self, columns: int, rows: int) -> None:
        """Set the size of the job's terminal, now or when it is made."""
        self._window = (columns, rows)
        if self._streams is not None:
            self._streams.set_window(columns, rows)
        send_datagram(self._places.control_socket, b"window %d %d" % (columns, rows))
        self.on_window(columns, rows)

    def close(self) -> None:
        """Close everything here. The monitor serves the last clients; without `finish` it ends, and its records stay."""
        if self._is_finished:
            self._places.remove_records()
        else:
            self._order(b"quit")
        if self._orphan is not None:
            self._orphan.close()
            (self._places.spool / f"reaped-{self._orphan.main.pid}").unlink(missing_ok=True)
        self._forget_done()
        self._drop_offered()
        if self._monitor is not None:
            self._monitor.forget()
        if self._streams is not None:
            self._streams.close()
        if self._is_finished:
            drop(self._job_id)
        for each in (self._listener, self._control):
            if each is not None:
                each.close()
        self._release_lock()
        os.close(self.end_event)

    def _bind(self) -> None:
        self._listener = bind(socket.SOCK_STREAM, self._places.attach_socket)
        self._listener.listen(_BACKLOG)
        self._control = bind(socket.SOCK_DGRAM, self._places.control_socket)

    def _keep_pipes(self) -> None:
        """Have the guard keep the pipes of a running job: it may be another guard than that of the agent that made them."""
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as stack:
            paths = [] if self._spec.wants_tty else [self._places.pipe(stream) for stream in (STDOUT, STDERR)]
            pipes = [stack.enter_context(_opened(path, os.O_RDONLY | os.O_NONBLOCK)) for path in paths]
            if pipes:
                keep(self._job_id, pipes)

    def _make_streams(self, *, of_running_job: bool = False) -> Stdio:
        if self._streams is not None:
            self._streams.close()
        kept = take(self._job_id) if of_running_job and self._spec.wants_tty else []
        self._streams = open_streams(self._spec, self._places, *kept)
        keep(self._job_id, list(self._streams.outputs))
        if self._window is not None:
            self._streams.set_window(*self._window)
        if self._streams.job_ends is None:
            raise LookupError("streams were made without the job's ends")
        ends = self._streams.job_ends
        return Stdio(ends.stdin, ends.stdout, ends.stderr, self)

    def _start_monitor(self, words: tuple[str, ...] | None, control: int | None, report: int | None) -> None:
        """Start a monitor for a launcher, or for the streams alone."""
        streams = self._streams
        if streams is None or self._listener is None or self._control is None or self._lock is None:
            raise LookupError("a monitor needs streams and sockets")
        self._is_carried = words is None
        self._places.spool.mkdir(mode=0o700, exist_ok=True)
        with contextlib.ExitStack() as stack:
            nothing = stack.enter_context(_opened(os.devnull, os.O_RDWR))
            spool = stack.enter_context(_opened(self._places.spool, os.O_RDONLY | os.O_DIRECTORY))
            done = nothing
            if self._done is not None:
                done = stack.enter_context(_opened(self._places.done, os.O_WRONLY | os.O_NONBLOCK))
            outputs = streams.outputs or (nothing,)
            ends = streams.job_ends or Stdio(nothing, nothing, nothing)
            order = MonitorOrder(
                job_id=self._job_id,
                number=self._number,
                log=self._places.log,
                log_cap_bytes=self._log_cap_bytes,
                patience_seconds=self._patience_seconds,
                has_terminal=streams.terminal is not None,
                wants_stdin=streams.stdin is not None,
                launcher_words=words,
                lock=self._lock,
                listener=self._listener.fileno(),
                control=self._control.fileno(),
                spool=spool,
                go=nothing if control is None else control,
                report=nothing if report is None else report,
                streams=(outputs[0], outputs[-1], nothing if streams.stdin is None else streams.stdin),
                job_ends=(ends.stdin, ends.stdout, ends.stderr),
                done=done,
                held=self._held(),
            )
            offered, self._offered = self._offered, None
            self._monitor = start_monitor(order, offered)
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        # The input ends when the client that owns it disconnects; with the write end open here, it would not.
        streams.close_stdin()

    def _retire(self) -> None:
        """End the monitor of an earlier start of this job, and take its lock and its place."""
        if self._lock is not None and self._monitor is None:
            return
        self._order(b"quit")
        if self._lock is None:
            self._take_lock()
            self._bind()
        elif self._monitor is not None:
            # The monitor of a failed start has no job, so it may be killed; it may also be stopped, and ignore messages.
            self._monitor.kill()
            self._reap_monitor()
        self._places.remove_records()

    def _take_lock(self) -> None:
        """Wait for the lock of a monitor that is ending, or of a process that looks whether there is a monitor.

        Raises:
            RuntimeUnavailableError: It stays locked.
        """
        self._lock = open_lock_file(self._places.monitor_lock)
        deadline = time.monotonic() + _RETIREMENT_SECONDS
        while not try_flock(self._lock):
            if time.monotonic() > deadline:
                self._release_lock()
                raise RuntimeUnavailableError(f"the monitor of an earlier start of job {self._job_id} does not end")
            with pause():
                select.select([], [], [], _PAUSE_SECONDS)

    def _watch_done(self) -> None:
        """Watch for the end of the monitor.

        Raises:
            FileNotFoundError: There is no pipe, so no monitor: the machine was booted, or the job made final, since.
        """
        self._forget_done()
        self._done = os.open(self._places.done, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        # If the monitor closed its end before this one was opened, the pipe would never become readable: poll(2) reports the
        # end of file only if there was a writer since. A killed process may close its lock later than its pipe.
        os.close(os.open(self._places.done, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        self._loop.watch(self._done, READABLE, lambda _: self._on_done())

    def _on_done(self) -> None:
        """Handle the end of the monitor: it recorded the job's end, or was killed."""
        self._forget_done()
        self._follow_monitor()

    def _forget_done(self) -> None:
        if self._done is not None:
            self._loop.forget(self._done)
            os.close(self._done)
            self._done = None

    def _follow_monitor(self) -> None:
        """Report the end that a monitor recorded, or replace one that was killed and watch the job's main process here.

        Repeated every second while the kernel creates no process or descriptor: that must not end the job.
        """
        try:
            if self._end_record() is not None:
                self._report_end()
            elif not self._is_finished:
                self._watch_main()
                self._start_next_monitor()
        except (OSError, NodeError) as exc:
            say(f"the monitor of job {self._job_id} cannot be replaced yet: {exc}")
            self._forget_done()  # without a writer its pipe is at its end, and the loop would call at once
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._follow_monitor)

    def _start_next_monitor(self) -> None:
        self._reap_monitor()
        if self._lock is None:
            self._take_lock()
            try:
                self._bind()
                self._make_streams(of_running_job=True)
            except OSError:
                self._release_lock()
                raise
        if self._streams is not None:
            self._streams.close_job_ends()
            with contextlib.suppress(FileNotFoundError):
                self._watch_done()
            self._start_monitor(None, None, None)

    def _watch_main(self) -> None:
        """Watch the job's main process, whose parent may be another process than its monitor; has an effect once."""
        if self._orphan is not None:
            return
        record, main = self._last_record(), None
        with contextlib.suppress(NodeError):
            main = None if record is None else read_record(record).holder
        if main is None:
            self._report_end()
        else:
            self._orphan = OrphanWatch(self._loop, main, self.drain, self._report_end)

    def _report_end(self) -> None:
        os.eventfd_write(self.end_event, 1)

    def _reap_monitor(self) -> None:
        if self._monitor is not None:
            with pause():
                self._monitor.reap()
            self._monitor = None

    def _drop_offered(self) -> None:
        if self._offered is not None:
            self._offered.close()
            self._offered = None

    def _order(self, word: bytes) -> None:
        """Send a control word and wait for room in the queue; it is lost only if the monitor is stopped for longer."""
        send_datagram(self._places.control_socket, word, timeout_seconds=_ORDER_SECONDS)

    def _last_record(self) -> Path | None:
        return max(self._places.records(), key=lambda path: int(path.suffix[1:]), default=None)

    def _end_record(self) -> EndRecord | None:
        if self._ended is None:
            with contextlib.suppress(FileNotFoundError, NodeError):
                self._ended = read_record(self._places.spool / f"ended-{self._job_id}.{self._number}")
        return self._ended

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def _opened(path: str | Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
