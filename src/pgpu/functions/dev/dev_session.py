"""Keeps one replica serving while its code is edited.

A change starts a new replica beside the old one; callers move over once it is ready, and the old one finishes what it has.
Code that does not start leaves the old one serving and says why. Where there is no room on the GPU for both, the old one
ends first. It refuses to print: whoever made it says how lines are shown.
"""

import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.functions.api import Declaration, dump_declaration
from pgpu.functions.dev.description import FunctionDescription, describe_function
from pgpu.functions.dev.dev_replica import DevReplica, front_command
from pgpu.functions.dev.function_source import FunctionSource
from pgpu.functions.dev.relay import ConnectionRelay
from pgpu.functions.dev.session_directory import session_directory
from pgpu.functions.dev.source_snapshot import SourceSnapshot, changed_paths, take_snapshot

LOOK_SECONDS = 0.25
_NOT_GRANTED = 124
"""`pgpu run --no-wait`: it does not fit now."""


@dataclass(slots=True)
class DevSession:
    """One `pgpu dev`."""

    place: FunctionSource
    relay: ConnectionRelay
    tell: Callable[[str], None]
    """Hears what happens, a line at a time."""

    slice_words: Callable[[Declaration, bool], Sequence[str]] = field(default=lambda _declaration, _may_wait: ())
    """The command that runs another one in the slice that a declaration asks for; nothing for a CPU function. Where it may
    not wait it exits with 124 if there is no room."""

    name: str | None = None
    is_reloading: bool = True
    stopped: threading.Event = field(default_factory=threading.Event)
    _directory: Path = field(init=False)
    """Of all replicas' sockets."""

    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _replica: DevReplica | None = None
    _leaving: list[threading.Thread] = field(default_factory=list)

    def run(self, announce: Callable[[FunctionDescription], None]) -> None:
        """Serve until `stopped` is set.

        Args:
            announce: Called once the first replica is ready.
        """
        with session_directory() as self._directory:
            try:
                self._serve(announce)
            finally:
                self._retire()
                for thread in self._leaving:
                    thread.join()

    def _serve(self, announce: Callable[[FunctionDescription], None]) -> None:
        is_announced = False
        while not self.stopped.is_set():
            seen = take_snapshot(self.place.source)
            described = self._start(seen)
            if described is not None and not is_announced:
                announce(described)
                is_announced = True
            self._wait_for_an_edit(seen)

    def _start(self, seen: SourceSnapshot) -> FunctionDescription | None:
        """Bring the code as it is now into service; None where that did not work, which was told."""
        try:
            described = describe_function(self.place, self.name)
            began_seconds = time.monotonic()
            replica = self._started(described)
        except RequestError as exc:
            self._tell_failure(str(exc), exc.hint)
            return None
        if not self._becomes_ready(replica, seen):
            self._give_up(replica, seen)
            return None
        before, self._replica = self._replica, replica
        self.relay.target = replica.http_socket
        self._leave(before)
        self.tell(f"{described.name} is ready after {time.monotonic() - began_seconds:.2f} s")
        return described

    def _started(self, described: FunctionDescription) -> DevReplica:
        """Start a front; where there is no room beside the old one, end that one first."""
        replica = self._spawn(described, may_wait=self._replica is None)
        if self._replica is None or not self._is_without_room(replica):
            return replica
        self.tell("there is no room on the GPU for both: the old one ends first")
        replica.end()
        self._retire()
        return self._spawn(described, may_wait=True)

    def _spawn(self, described: FunctionDescription, *, may_wait: bool) -> DevReplica:
        directory = self._directory / str(next(self._numbers))
        directory.mkdir()
        front = front_command(self.place.app, self.place.source, directory, dump_declaration(described.declaration))
        place = self.slice_words(described.declaration, may_wait)
        ours = () if place else ("--parent", str(os.getpid()))  # in a slice, what grants it stands between
        words = (*place, *front, "--name", described.name, *ours)
        # A group of its own: ^C at a terminal is for this process, which ends the others in order.
        process = subprocess.Popen(
            words, cwd=self.place.source, stdin=subprocess.DEVNULL, process_group=0, env={**os.environ}
        )
        return DevReplica(process, directory)

    def _is_without_room(self, replica: DevReplica) -> bool:
        while not (replica.is_ready() or replica.health or self.stopped.is_set()):
            if replica.process.poll() is not None:
                return replica.process.returncode == _NOT_GRANTED
            self.stopped.wait(LOOK_SECONDS / 5)
        return False

    def _becomes_ready(self, replica: DevReplica, seen: SourceSnapshot) -> bool:
        """Wait; leave early where it failed, or where the code was edited once more."""
        while not replica.is_ready():
            if replica.is_failed or self.stopped.wait(LOOK_SECONDS / 5):
                return False
            if self.is_reloading and changed_paths(seen, take_snapshot(self.place.source)):
                return False
        return True

    def _give_up(self, replica: DevReplica, seen: SourceSnapshot) -> None:
        reason = replica.health.get("reason") if replica.is_failed else None
        replica.end()
        if self.stopped.is_set() or (reason is None and changed_paths(seen, take_snapshot(self.place.source))):
            return
        self._tell_failure(str(reason or f"its front ended with {replica.process.returncode}"), "see above")

    def _tell_failure(self, reason: str, hint: str | None) -> None:
        self.tell(f"this code does not start: {reason}{f' ({hint})' if hint else ''}")
        if self._replica is not None:
            self.tell("the code before it goes on serving")

    def _wait_for_an_edit(self, seen: SourceSnapshot) -> None:
        while not self.stopped.wait(LOOK_SECONDS):
            if self._replica is not None and self._replica.process.poll() is not None:
                self.tell(f"the front ended with {self._replica.process.returncode}: starting it again")
                self._retire()
                return
            if not self.is_reloading:
                continue
            now = take_snapshot(self.place.source)
            paths = changed_paths(seen, now)
            if paths:
                self._until_quiet(now)
                self.tell(f"{os.path.relpath(paths[0], self.place.source)} changed")
                return

    def _until_quiet(self, last: SourceSnapshot) -> None:
        """An editor writes in several steps, and a checkout many files."""
        while not self.stopped.wait(LOOK_SECONDS / 2) and changed_paths(last, now := take_snapshot(self.place.source)):
            last = now

    def _leave(self, replica: DevReplica | None) -> None:
        """Let one finish what it has, meanwhile; it hears of that once those who came to it last have asked."""

        def end_soon(leaving: DevReplica) -> None:
            self.stopped.wait(LOOK_SECONDS)
            leaving.end()

        if replica is not None:
            self._leaving.append(threading.Thread(target=end_soon, args=(replica,)))
            self._leaving[-1].start()

    def _retire(self) -> None:
        if self._replica is not None:
            self.relay.target = None
            self._replica.end()
            self._replica = None
