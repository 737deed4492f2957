"""A control plane with replicas that it starts itself and its state in files, so that it outlives a gateway that is killed.

It stands in for `pgpu.functions.control.control_plane.HttpControlPlane`; both pass tests/system/functions/test_control_planes.py. There is
room for a limited number of replicas at a time; others wait until one has ended.
"""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgpu.errors import CapacityError
from pgpu.functions.api import dump_declaration
from pgpu.functions.control.control_plane import ReplicaJob
from pgpu.functions.deploy.version_jobs import declaration_of
from pgpu.functions.router.replica_connection import ReacquireResult
from pgpu.model import ColdStart, Function, JobState, ReplicaState, Share, Version, VersionState
from pgpu.services import wire
from pgpu.services.messages import Bearer
from pgpu.structs import replace, to_builtins


@dataclass
class Books:
    """The fake's state: JSON files in its directory."""

    root: Path

    def read(self, name: str, default: Any) -> Any:
        try:
            return json.loads((self.root / name).read_text())
        except FileNotFoundError:
            return default

    def written(self, name: str) -> int:
        return (self.root / name).stat().st_mtime_ns

    def write(self, name: str, value: Any) -> None:
        fresh = self.root / f".{name}.{os.getpid()}.{uuid.uuid4().hex}"
        fresh.write_bytes(wire.encode(value))
        fresh.rename(self.root / name)


class FakeControlPlane:
    """Functions in a file, replicas as processes."""

    def __init__(self, root: Path) -> None:
        self._books = Books(root)
        self._root = root
        self._granting = threading.Lock()
        self._started: list[subprocess.Popen[bytes]] = []
        (root / "replicas").mkdir(exist_ok=True)

    # Called by tests.

    def put(self, *functions: Function) -> None:
        """Replace the functions. Replicas of one that is gone, or was made again, go with it, as in the ledger."""
        kept = {function.name: function.created_at_seconds for function in functions}
        gone = {each.name for each in self.functions() if kept.get(each.name) != each.created_at_seconds}
        self._books.write("functions", list(functions))
        for job_id, record in self.records().items():
            if record["function"] in gone:
                self.stop(job_id)

    def allow(self, token: str, bearer: Bearer) -> None:
        self._books.write("tokens", {**self._books.read("tokens", {}), token: to_builtins(bearer)})

    def make_room(self, replicas: int) -> None:
        self._books.write("room", replicas)

    def take(self, job_id: str) -> None:
        """Take an offered lease, as an engine does."""
        self._change(job_id, taken=True)
        os.kill(self._record(job_id)["pid"], signal.SIGTERM)

    def take_and_park(self, job_id: str) -> None:
        """Take an offered lease of a replica that parks, as an engine does."""
        self._change(job_id, aside=True, offered=None)
        os.kill(self._record(job_id)["pid"], signal.SIGTSTP)

    def let_nobody_back(self) -> None:
        """Have parked replicas wait for their leases from now on."""
        self._books.write("full", True)

    def bring_back(self, job_id: str) -> None:
        """Give a parked replica its lease again."""
        self._change(job_id, aside=False)
        os.kill(self._record(job_id)["pid"], signal.SIGCONT)

    def hold_stops(self) -> None:
        """Block in `stop` from now on, and count the polls meanwhile."""
        self._books.write("holding", 1)

    def looks(self) -> int:
        return int(self._books.read("holding", 0))

    def records(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted((self._root / "replicas").glob("[!.]*")):
            with contextlib.suppress(FileNotFoundError):  # it was stopped meanwhile
                found[path.name] = json.loads(path.read_text())
        return found

    def starts(self) -> list[Any]:
        return list(self._books.read("starts", []))

    def end(self) -> None:
        for record in self.records().values():
            if record["pid"] and _lives(record["pid"]):
                os.kill(record["pid"], signal.SIGKILL)
        for started in self._started:
            started.kill()
            started.wait()

    # Called by the gateway; see `ControlPlane`.

    def functions(self) -> Sequence[Function]:
        return wire.decode(tuple[Function, ...], self._books.read("functions", []))

    def replica_jobs(self) -> Sequence[ReplicaJob]:
        self._grant()
        if looks := self.looks():
            self._books.write("holding", looks + 1)
        return [self._standing(job_id, record) for job_id, record in self.records().items()]

    def changes(self) -> Iterator[str]:
        """Poll the files, which other processes change."""
        told = None
        states: dict[str, JobState] = {}
        while True:
            self._grant()
            if (written := self._books.written("functions")) != told:
                told = written
                yield ""
            now = {job_id: self._standing(job_id, record).state for job_id, record in self.records().items()}
            yield from (job_id for job_id in states.keys() | now.keys() if states.get(job_id) != now.get(job_id))
            states = now
            threading.Event().wait(0.02)

    def start(self, version: Version) -> ReplicaJob:
        if self._books.read("refusing", default=False):
            raise CapacityError("not now")
        job_id = uuid.uuid4().hex[:12]
        record = {"function": version.function, "version": version.number, "pid": None, "at": time.time()}
        self._write(job_id, record)
        self._grant()
        return self._standing(job_id, self._record(job_id))

    def stop(self, job_id: str) -> None:
        record = self.records().get(job_id)
        if record is not None and self.looks():
            self._change(job_id, stopping=True)
            threading.Event().wait()
        if record is not None:
            (self._root / "replicas" / job_id).unlink(missing_ok=True)
            if record["pid"] and _lives(record["pid"]):
                os.kill(record["pid"], signal.SIGTERM)
                self._books.write("stopped", [*self._books.read("stopped", []), record["pid"]])

    def mark_evictable(self, job_id: str, value: float) -> None:
        self._change(job_id, offered=value)

    def reacquire(self, job_id: str) -> ReacquireResult:
        record = self.records().get(job_id)
        if record is None or record.get("taken"):
            return ReacquireResult.LOST
        is_aside = bool(record.get("aside"))
        self._change(job_id, offered=None, is_claimed=is_aside)
        if not is_aside:
            return ReacquireResult.KEPT
        if not self._books.read("full", default=False):
            self.bring_back(job_id)
        return ReacquireResult.COMING

    def park(self, job_id: str) -> None:
        self.take_and_park(job_id)

    def fail(self, version: Version, reason: str) -> None:
        def judged(each: Version) -> Version:
            is_it = each.number == version.number
            return replace(each, state=VersionState.FAILED, reason=reason) if is_it else each

        known = list(self.functions())
        for index, function in enumerate(known):
            if function.name == version.function:
                versions = tuple(judged(each) for each in function.versions)
                last = max(each.number for each in versions if each.state is VersionState.READY)
                known[index] = replace(function, versions=versions, traffic=(Share(last, 100),))
        self.put(*known)

    def build(self, version: Version) -> str:
        raise AssertionError(f"{version.label} needs no packages")

    def is_built(self, version: Version, job_id: str) -> bool:
        raise AssertionError(f"{version.label} needs no packages")

    def note_state(self, job_id: str, state: ReplicaState) -> None:
        if job_id in self.records():
            self._change(job_id, state=state.value)

    def note_start(self, start: ColdStart) -> None:
        self._books.write("starts", [*self.starts(), start])

    def bearer(self, token: str) -> Bearer:
        known = self._books.read("tokens", {}).get(token)
        return Bearer() if known is None else Bearer(**known)

    def _grant(self) -> None:
        """Start waiting replicas while there is room, oldest first."""
        with self._granting:
            self._grant_in_turn()

    def _grant_in_turn(self) -> None:
        room = self._books.read("room", 1000)
        held = [pid for pid in self._held() if _lives(pid)]
        waiting = [(record["at"], job_id) for job_id, record in self.records().items() if record["pid"] is None]
        for _, job_id in sorted(waiting)[: max(0, room - len(held))]:
            self._change(job_id, pid=self._spawn(job_id, self._record(job_id)), began=time.time())

    def _held(self) -> Iterator[int]:
        yield from (record["pid"] for record in self.records().values() if record["pid"])
        yield from self._books.read("stopped", [])

    def _spawn(self, job_id: str, record: dict[str, Any]) -> int:
        function = next(each for each in self.functions() if each.name == record["function"])
        version = function.version(record["version"])
        directory = self._root / job_id
        directory.mkdir(exist_ok=True)  # a gateway that was killed before it recorded the PID left it
        source, _, app = version.app.rpartition("/")
        command = [
            sys.executable, "-m", "pgpu.functions.replica", "--app", app, "--source", source, "--directory", str(directory),
            "--name", function.name, "--declaration", json.dumps(dump_declaration(declaration_of(version))),
        ]  # fmt: skip
        with (self._root / f"{job_id}.log").open("w") as output:
            started = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        self._started.append(started)
        return started.pid

    def _standing(self, job_id: str, record: dict[str, Any]) -> ReplicaJob:
        pid = record["pid"]
        state = JobState.WAITING if pid is None else JobState.RUNNING if _lives(pid) else JobState.EXITED
        said = (job_id, record["function"], record["version"], self._root / job_id)
        return ReplicaJob(*said, state, record.get("began"))

    def _record(self, job_id: str) -> dict[str, Any]:
        return dict(json.loads((self._root / "replicas" / job_id).read_text()))

    def _change(self, job_id: str, **words: Any) -> None:
        with (self._root / ".lock").open("w") as lock:  # of other threads, and of a test beside its gateway
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._write(job_id, {**self._record(job_id), **words})

    def _write(self, job_id: str, record: dict[str, Any]) -> None:
        fresh = self._root / "replicas" / f".{job_id}.{uuid.uuid4().hex}"
        fresh.write_text(json.dumps(record))
        fresh.rename(self._root / "replicas" / job_id)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
