"""One replica that keeps serving on this machine while its code is edited: `pgpu function dev`.

The replica with its worker is a child process, the same program as on a server. A change starts a new replica beside the old
one. Callers move to it once it is ready, and the old one finishes its calls. If the new code does not start, the old replica goes
on serving and the reason is reported. If the GPU has no room for both, the old one ends first.
"""

import contextlib
import dataclasses
import fcntl
import http.client
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import Declaration, dump_served
from pgpu.functions.dev.connection_relay import ConnectionRelay
from pgpu.functions.dev.function_source import NO_BYTECODE, FunctionDescription, FunctionSource, describe_function
from pgpu.functions.dev.source_watch import SourceWatch
from pgpu.structs import Struct, field

_ANSWER_SECONDS = 5.0
"""Limit for a health report."""

_GRACE_SECONDS = 20.0
"""For a replica's calls at its end."""

_POLL_SECONDS = 0.25
"""Between two looks at the replica and the edits."""

_NOT_GRANTED = 124
"""Exit code of `pgpu run --no-wait` if there is no room now."""

_PREFIX = "pgpu-dev-"
"""Short, since a socket's path has at most 107 bytes."""


def replica_command(app: str, source: Path, directory: Path, declaration: Mapping[str, object]) -> tuple[str, ...]:
    """Return the command of a replica.

    Args:
        app: As for `handler.load`.
        source: Directory of the code.
        directory: For its sockets.
        declaration: As of `api.dump_served`.
    """
    # -P: the working directory, which has the code, is not searched before pgpu's own modules.
    program = (sys.executable, "-P", "-m", "pgpu.functions.replica")
    options = ("--app", app, "--source", str(source), "--directory", str(directory))
    return (*program, *options, "--declaration", json.dumps(dict(declaration)))


def socket_directory() -> Path:
    """Make a temporary directory with a path that is short enough for sockets."""
    return Path(tempfile.mkdtemp(prefix="pgpu-fn-"))


class DevReplica(Struct):
    """A replica that was started."""

    process: subprocess.Popen[bytes]
    directory: Path
    """Of its sockets; removed at its end."""

    health: Mapping[str, Any] = field(default_factory=dict)
    """Its last health report (state, reason, restarts); empty before the first one."""

    @property
    def http_socket(self) -> Path:
        """The socket on which it serves HTTP."""
        return self.directory / "http.sock"

    def is_ready(self) -> bool:
        """Request its health, store it in `health`, and return whether a call would be served now."""
        connection = http.client.HTTPConnection("localhost")
        try:
            with socket.socket(socket.AF_UNIX) as ours:
                ours.settimeout(_ANSWER_SECONDS)
                ours.connect(str(self.http_socket))
                connection.sock = ours
                connection.request("GET", "/v2/health/ready")
                reply = connection.getresponse()
                self.health = json.loads(reply.read())
        except (OSError, http.client.HTTPException, ValueError):
            return False  # it does not listen yet, or no longer
        return reply.status == http.HTTPStatus.OK

    @property
    def is_failed(self) -> bool:
        """Whether its worker could not be started at least once, by the last `health`, or the replica itself ended."""
        is_refused = self.health.get("state") in {"starting", "failed"} and bool(self.health.get("reason"))
        return is_refused or self.process.poll() is not None

    def end(self) -> int:
        """End it after its calls, which have 20 seconds, and return its exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        return code


@dataclasses.dataclass(slots=True)
class DevSession:
    """One `pgpu function dev`; runs in the calling thread, with a thread for each replica that is ending."""

    function: FunctionSource
    relay: ConnectionRelay
    report: Callable[[str], None]
    """Called with each line of progress."""

    slice_command: Callable[[Declaration, bool], Sequence[str]] = dataclasses.field(
        default=lambda _declaration, _may_wait: ()
    )
    """Returns the prefix that runs a command in a slice for a declaration; empty for a CPU function. If the second argument
    is false, the command exits with 124 instead of waiting for room."""

    name: str | None = None
    is_reloading: bool = True
    stopped: threading.Event = dataclasses.field(default_factory=threading.Event)
    _directory: Path = dataclasses.field(init=False)
    """Of all replicas' sockets."""

    _numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    _replica: DevReplica | None = None
    _leaving: list[threading.Thread] = dataclasses.field(default_factory=list)
    _edits: SourceWatch = dataclasses.field(init=False)

    def run(self, announce: Callable[[FunctionDescription], None]) -> None:
        """Serve until `stopped` is set.

        Args:
            announce: Called once the first replica is ready.
        """
        is_announced = False
        self._edits = SourceWatch(self.function.source)
        watching = self._edits.watching() if self.is_reloading else contextlib.nullcontext()
        with watching, session_directory() as self._directory:
            try:
                while not self.stopped.is_set():
                    # Before the import, so that an edit during it is noticed afterwards.
                    self._edits.take()
                    described = self._start()
                    if described is not None and not is_announced:
                        announce(described)
                        is_announced = True
                    self._wait_for_an_edit()
            finally:
                self._retire()
                for thread in self._leaving:
                    thread.join()

    def _start(self) -> FunctionDescription | None:
        """Replace the replica by one of the current code; None if that failed, which was reported."""
        try:
            described = describe_function(self.function, self.name)
            for note in described.notes:
                self.report(note)
            began_seconds = time.monotonic()
            replica = self._spawn_with_room(described)
        except RequestError as exc:
            self._report_failure(str(exc), exc.hint)
            return None
        if not self._becomes_ready(replica):
            reason = replica.health.get("reason") if replica.is_failed else None
            replica.end()
            if not self.stopped.is_set() and not (reason is None and self._edits.has_changed):
                self._report_failure(str(reason or f"its replica ended with {replica.process.returncode}"), "see above")
            return None
        # The relay first, then the end of the old replica: every new connection finds one that serves.
        before, self._replica = self._replica, replica
        self.relay.target = replica.http_socket
        if before is not None:
            self._leaving.append(threading.Thread(target=self._end_later, args=(before,)))
            self._leaving[-1].start()
        self.report(f"{described.name} is ready after {time.monotonic() - began_seconds:.2f} s")
        return described

    def _spawn_with_room(self, described: FunctionDescription) -> DevReplica:
        """Start a replica; if there is no room beside the old one, end that one first."""
        replica = self._spawn(described, may_wait=self._replica is None)
        if self._replica is None or not self._is_without_room(replica):
            return replica
        self.report("there is no room on the GPU for both: the old one ends first")
        replica.end()
        self._retire()
        return self._spawn(described, may_wait=True)

    def _spawn(self, described: FunctionDescription, *, may_wait: bool) -> DevReplica:
        directory = self._directory / str(next(self._numbers))
        directory.mkdir()
        command = replica_command(
            self.function.app, self.function.source, directory, dump_served(described.declaration)
        )
        prefix = self.slice_command(described.declaration, may_wait)
        # Without a slice the replica watches this process and ends with it; in a slice its parent is a supervisor.
        parent = () if prefix else ("--parent", str(os.getpid()))
        # A process group of its own: Ctrl-C at a terminal must reach only this process, which ends the replicas in order.
        process = subprocess.Popen(
            (*prefix, *command, "--name", described.name, *parent),
            cwd=self.function.source,
            stdin=subprocess.DEVNULL,
            process_group=0,
            env={**os.environ, **described.declaration.environment, **NO_BYTECODE},
        )
        return DevReplica(process, directory)

    def _is_without_room(self, replica: DevReplica) -> bool:
        while not (replica.is_ready() or replica.health or self.stopped.is_set()):
            if replica.process.poll() is not None:
                return replica.process.returncode == _NOT_GRANTED
            self.stopped.wait(_POLL_SECONDS / 5)
        return False

    def _becomes_ready(self, replica: DevReplica) -> bool:
        """Wait until it is ready; return false early if it failed, or if the code was edited again."""
        while not replica.is_ready():
            if replica.is_failed or self.stopped.wait(_POLL_SECONDS / 5):
                return False
            if self._edits.has_changed:
                return False
        return True

    def _report_failure(self, reason: str, hint: str | None) -> None:
        self.report(f"this code does not start: {reason}{f' ({hint})' if hint else ''}")
        if self._replica is not None:
            self.report("the code before it goes on serving")

    def _wait_for_an_edit(self) -> None:
        """Return after an edit, or when the replica ended by itself."""
        while not self.stopped.wait(_POLL_SECONDS):
            if self._replica is not None and self._replica.process.poll() is not None:
                self.report(f"the replica ended with {self._replica.process.returncode}: starting it again")
                self._retire()
                return
            if paths := self._edits.take():
                self.report(f"{paths[0]} changed")
                return

    def _end_later(self, leaving: DevReplica) -> None:
        # After a moment, so that connections that were accepted for it last have sent their requests.
        self.stopped.wait(_POLL_SECONDS)
        leaving.end()

    def _retire(self) -> None:
        if self._replica is not None:
            self.relay.target = None
            self._replica.end()
            self._replica = None


@contextmanager
def session_directory(place: Path | None = None) -> Iterator[Path]:
    """Make a temporary directory, locked with `flock` until the end, and remove those of sessions that were killed.

    The kernel releases the lock of a killed session, so an unlocked directory has no session.

    Args:
        place: Parent of such directories; None: the directory of temporary files.
    """
    place = place or Path(tempfile.gettempdir())
    for each in place.glob(f"{_PREFIX}*"):
        # Fails for another user's directory, a locked one, and one that another session has just removed.
        with contextlib.suppress(OSError):
            lock = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(each, ignore_errors=True)
            finally:
                os.close(lock)
    while True:
        made = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if made.exists():  # a session may have removed it between mkdtemp() and flock()
            break
        os.close(lock)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(lock)
