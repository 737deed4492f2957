"""A job under the native monitor, with the launcher's control pipe and the clients' socket in the test's hands."""

import array
import contextlib
import fcntl
import os
import pty
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.waiting import until

from pgpu import libraries
from pgpu.engine.streams.frames import Frame, FrameDecoder, Hello, Kind, encode_frame, encode_hello
from pgpu.engine.streams.log import stored
from pgpu.engine.streams.records import RecordDecoder
from pgpu.runtimes.job_monitor import EndRecord, MonitorOrder, OfferedMonitor, read_record, start_monitor
from pgpu.runtimes.launcher import Launch

if "PGPU_NATIVE_DIR" in os.environ:  # a build with sanitizers
    libraries._NATIVE = Path(os.environ["PGPU_NATIVE_DIR"])

JOB = "0123456789ab"

Pipes = tuple[tuple[int, int, int], tuple[int, int, int]]


class Monitored:
    """One monitor and the job that it is given."""

    def __init__(
        self, directory: Path, *, cap_bytes: int = 1 << 20, number: int = 1, spool: Path | None = None
    ) -> None:
        self.directory = directory
        self.log = directory / "log"
        self.spool = spool or directory / "spool"
        self.spool.mkdir(exist_ok=True)
        self.number = number
        self.cap_bytes = cap_bytes
        self.pid = 0
        self.offered: OfferedMonitor | None = None
        self._stack = contextlib.ExitStack()
        # Short: a socket's path has 107 bytes at most.
        sockets = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.attach_path, self.control_path = (sockets / name for name in ("attach", "control"))
        self.listener = self._bound(socket.SOCK_STREAM, self.attach_path)
        self.listener.listen(200)
        self.control = self._bound(socket.SOCK_DGRAM, self.control_path)

    def _bound(self, kind: int, path: Path) -> socket.socket:
        made = self._stack.enter_context(socket.socket(socket.AF_UNIX, kind))
        made.bind(str(path))
        return made

    def start(
        self,
        *command: str,
        tty: bool = False,
        stdin: bool = False,
        environment: Mapping[str, str] = os.environ,
        words: Sequence[str] = (),
        held: Sequence[int] = (),
    ) -> "Monitored":
        """Start the monitor and let the command go; a refusal is raised."""
        launch = self.start_held(*command, tty=tty, stdin=stdin, words=words, held=held)
        launch.hand_over(environment)
        launch.let_go()
        return self

    def start_held(
        self,
        *command: str,
        tty: bool = False,
        stdin: bool = False,
        words: Sequence[str] = (),
        held: Sequence[int] = (),
    ) -> Launch:
        """Start the monitor; the launcher waits for its environment."""
        go, control = os.pipe()
        report, report_end = os.pipe()
        words = (*(["--tty"] if tty else []), *words, "--", *command)
        self._order(words, go, report_end, tty=tty, stdin=stdin, held=held)
        for descriptor in (go, report_end):
            os.close(descriptor)
        launch = Launch(0, control, report)
        launch.await_start()
        return self._stack.enter_context(launch)

    def carry(self, pipes: Pipes | None = None) -> tuple[int, int, int]:
        """Start the monitor for a job that runs elsewhere; return its ends of stdin, stdout and stderr."""
        nothing = os.open(os.devnull, os.O_RDWR)
        given = pipes or self.pipes()
        self._order(None, nothing, nothing, stdin=True, given=given)
        os.close(nothing)
        if pipes is None:
            for descriptor in given[0]:
                os.close(descriptor)
        return given[1]

    def _order(
        self,
        words: tuple[str, ...] | None,
        go: int,
        report: int,
        *,
        tty: bool = False,
        stdin: bool = False,
        given: Pipes | None = None,
        held: Sequence[int] = (),
    ) -> None:
        streams, job_ends = given or (self._terminal() if tty else self.pipes())
        lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT)
        spool = os.open(self.spool, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.lockf(lock, fcntl.LOCK_EX)
        order = MonitorOrder(
            job_id=JOB,
            number=self.number,
            log=self.log,
            log_cap_bytes=self.cap_bytes,
            patience_seconds=30.0,
            has_terminal=tty,
            wants_stdin=stdin,
            launcher_words=words,
            lock=lock,
            listener=self.listener.fileno(),
            control=self.control.fileno(),
            spool=spool,
            go=go,
            report=report,
            streams=streams,
            job_ends=job_ends,
            done=lock,
            held=tuple(held),
        )
        self.pid = start_monitor(order, self.offered).pid or 0
        for descriptor in {lock, spool, *(() if given else (*streams, *job_ends))}:
            os.close(descriptor)

    def pipes(self) -> Pipes:
        """Make pipes: the monitor's ends of stdout, stderr and stdin, and the job's of stdin, stdout and stderr."""
        stdin, stdout, stderr = (os.pipe() for _ in range(3))
        return (stdout[0], stderr[0], stdin[1]), (stdin[0], stdout[1], stderr[1])

    def _terminal(self) -> Pipes:
        master, slave = pty.openpty()
        return (master, master, master), (slave, slave, slave)

    @property
    def started(self) -> Path:
        return self.spool / f"started-{JOB}.{self.number}"

    @property
    def ended(self) -> Path:
        return self.spool / f"ended-{JOB}.{self.number}"

    def end(self) -> EndRecord:
        """Wait for the record of the end."""
        until(self.ended.exists)
        return read_record(self.ended)

    def order(self, word: str) -> None:
        """Send the monitor a control word."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(word.encode(), str(self.control_path))

    def output(self, stream: str | None = None) -> bytes:
        """Return what the log holds now."""
        decoder = RecordDecoder()
        found = [record for _, data in stored(self.log) for record in decoder.feed(data)]
        return b"".join(record.payload for record in found if stream in {None, record.stream})

    def attach(self, offset: int = 0, *, holds_back: bool = False, owns_stdin: bool = False) -> "Attached":
        client = Attached(self.attach_path, encode_hello(Hello(offset, holds_back, owns_stdin)))
        self._stack.callback(client.close)
        return client

    def wait(self) -> int:
        """Reap the monitor."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        self._stack.close()


class Attached:
    """A client on the monitor's socket."""

    def __init__(self, path: Path, greeting: bytes) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(path))
        self.socket.sendall(greeting)
        self._decoder = FrameDecoder()

    def frames(self) -> Iterator[Frame]:
        while data := self.socket.recv(1 << 16):
            yield from self._decoder.feed(data)

    def output(self) -> bytes:
        """Read to the end, which must be announced."""
        found = list(self.frames())
        assert found, "it hung up"
        assert found[-1].kind is Kind.END
        decoder = RecordDecoder()
        parts = [record.payload for each in found if each.kind is Kind.OUTPUT for record in decoder.feed(each.payload)]
        return b"".join(parts)

    def send(self, data: bytes) -> None:
        self.socket.sendall(encode_frame(Kind.STDIN, data))

    def end_input(self) -> None:
        self.socket.sendall(encode_frame(Kind.STDIN_END))

    def close(self) -> None:
        self.socket.close()


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def queued_bytes(connection: socket.socket, request: int) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(connection, request, count)
    return count[0]


def print_and_end_while_the_monitor_stands_still(job: Monitored, statement: str, *, tty: bool = False) -> None:
    gate = job.directory / "gate"
    os.mkfifo(gate)
    program = f"import fcntl, os, sys; open(sys.argv[1]).read(); {statement}"
    job.start(sys.executable, "-c", program, str(gate), tty=tty)
    main = read_record(job.started).holder
    os.kill(job.pid, signal.SIGSTOP)
    until(lambda: state_of(job.pid) == "T")
    gate.write_bytes(b"")
    until(lambda: state_of(main.pid) == "Z")
    os.kill(job.pid, signal.SIGCONT)
