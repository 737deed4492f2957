"""Fixtures of the engine's tests: a machine of files, waits for a condition, and the end of all processes of a test."""

import contextlib
import io
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.clearing import clear
from tests.fakes.machine import FileGpus, make_client, make_engine, make_machine
from tests.waiting import until

from pgpu.client.embedded_client import EmbeddedClient
from pgpu.engine.agent.agents import LOOK
from pgpu.engine.engine import Engine
from pgpu.host.process_identity import identify_running, is_alive, read_status
from pgpu.ledger import Entry
from pgpu.model import Job, JobSpec, JobState, ProcessHolder, Request
from pgpu.structs import replace
from pgpu.units import GIB

LONG = ("sleep", "600")
WITHOUT_MAIN_THREAD = (
    sys.executable,
    "-c",
    """import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)""",
)
"""A program that ends its main thread and continues in another one."""


@dataclass
class World:
    """One machine of files, with an engine and a client of it."""

    root: Path
    engine: Engine
    client: EmbeddedClient
    seen: set[ProcessHolder] = field(default_factory=set)

    @property
    def gpus(self) -> FileGpus:
        return FileGpus(self.root)

    def submit(
        self,
        command: Sequence[str] = LONG,
        gib: float = 4,
        timeout: float | None = None,
        count: int = 1,
        priority: int = 0,
        oversubscribes: bool = False,
        preempts: bool = False,
        **words: object,
    ) -> Job:
        spec = JobSpec(tuple(command), "process", working_directory="/", **words)  # type: ignore[arg-type]
        request = Request(int(gib * GIB), count, priority=priority, oversubscribes=oversubscribes, preempts=preempts)
        return self.client.submit(spec, request, wait_timeout_seconds=timeout)

    def run(self, command: Sequence[str], **words: object) -> tuple[Job, bytes, bytes]:
        job = self.submit(command, **words)  # type: ignore[arg-type]
        return self.attach(job)

    def attach(self, job: Job, stdin: bytes | None = None) -> tuple[Job, bytes, bytes]:
        stdout, stderr = io.BytesIO(), io.BytesIO()
        ended = self.client.attach(job.id, None if stdin is None else io.BytesIO(stdin), stdout, stderr)
        return ended, stdout.getvalue(), stderr.getvalue()

    def entry(self, job: Job) -> Entry:
        found = self.engine.ledger.entry(job.id)
        self.seen.update(holder for holder in (found.supervisor, found.job.holder) if isinstance(holder, ProcessHolder))
        return found

    def state(self, job: Job) -> JobState:
        return self.entry(job).job.state

    def until_state(self, job: Job, *states: JobState) -> Job:
        until(lambda: self.state(job) in states, lambda: f"{self.entry(job)}\n{self.words_of(job)}")
        return self.entry(job).job

    def until_one_of(self, jobs: Sequence[Job], state: JobState) -> Job:
        """Wait until any one of these jobs is in the state, and return it."""
        until(lambda: state in {self.state(job) for job in jobs})
        return next(job for job in jobs if self.state(job) is state)

    def until_running(self, job: Job) -> Job:
        return self.until_state(job, JobState.RUNNING)

    def until_free(self, job: Job) -> Job:
        until(lambda: not self.entry(job).is_live, lambda: f"{self.entry(job)}\n{self.words_of(job)}")
        return self.entry(job).job

    def until_supervised(self, job: Job) -> ProcessHolder:
        until(lambda: self.entry(job).supervisor is not None, lambda: self.words_of(job))
        supervisor = self.entry(job).supervisor
        assert supervisor is not None
        return supervisor

    def until_supervised_by_another(self, job: Job, than: ProcessHolder) -> None:
        until(lambda: self.entry(job).supervisor not in {than, None}, lambda: self.words_of(job))

    def kill_supervisor(self, job: Job) -> ProcessHolder:
        supervisor = self.until_supervised(job)
        kill(supervisor)
        return supervisor

    def until_kept(self) -> ProcessHolder:
        """Wait until the queue has an agent that reads messages, and return its process."""
        until(lambda: self.engine.agents.send("fake", LOOK))
        agent = self.engine.agents.process("fake")
        assert agent is not None
        self.seen.add(agent)
        return agent

    def until_looked_at(self, job: Job) -> None:
        """Wait until the agent has run a round with the waiting job."""
        until(lambda: bool(self.client.still_waits(job.id, timeout_seconds=0.1)))

    def kill_agent(self) -> ProcessHolder:
        agent = self.until_kept()
        kill(agent)
        return agent

    def reason(self, job: Job) -> str | None:
        return self.client.job(job.id).job.reason

    def words_of(self, job: Job) -> str:
        path = self.engine.places(job.id).supervisor_log
        return path.read_text() if path.exists() else "the job's log is empty"

    def close(self) -> None:
        self._end_all_jobs()
        end_agent(self.engine)
        for entry in self.engine.ledger.entries(include_final=True):
            self.seen.update(h for h in (entry.supervisor, entry.job.holder) if isinstance(h, ProcessHolder))
        for holder in self.seen:
            kill(holder)
        for doorstep in self.client._doorsteps.values():  # of waits that were not continued
            doorstep.close()
        self.engine.ledger.close()
        clear(self.root)

    def _end_all_jobs(self) -> None:
        """Make all jobs final in the ledger, so that no process that is still alive starts or grants another job."""
        with self.engine.ledger.decision() as decision:
            for entry in decision.live():
                job = replace(entry.job, state=JobState.CANCELLED)
                decision.put(replace(entry, job=job, stop_grace_seconds=0.0, lease_released_at_seconds=time.time()))


def end_agent(engine: Engine) -> None:
    """End the agent of a machine and its guard, which would start another one."""

    def has_ended() -> bool:
        agent = engine.agents.process("fake")
        status = None if agent is None or not is_alive(agent) else read_status(agent.pid)
        if agent is None or status is None:
            return True
        if not Path(f"/proc/{status.parent_pid}/comm").read_text("ascii").startswith("pgpu-monitor"):
            return False  # its guard was killed: this process becomes the next one, and starts an agent
        os.kill(status.parent_pid, signal.SIGTERM)
        until(lambda: not is_alive(agent))
        return True

    until(has_ended)


def kill(holder: ProcessHolder) -> None:
    """Kill exactly this process, and wait until it is gone."""
    if identify_running(holder.pid) == holder:
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.kill(holder.pid, signal.SIGKILL)
        until(lambda: identify_running(holder.pid) != holder)


def main_thread_has_ended(pid: int) -> bool:
    """Whether the process is a zombie, or has only other threads left: most of /proc shows both alike."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"


@contextmanager
def world(gpus_gib: Sequence[float] = (10,), **settings: object) -> Iterator[World]:
    """Make a machine on a tmpfs; everything it started is killed at the end."""
    root = Path(tempfile.mkdtemp(prefix="pgpu-engine-", dir="/dev/shm"))
    engine = make_machine(root, [int(gib * GIB) for gib in gpus_gib], **settings)
    made = World(root, engine, make_client(engine))
    try:
        yield made
    finally:
        made.close()


def another(made: World) -> EmbeddedClient:
    """Return the client of another `pgpu` command on the same machine."""
    return make_client(make_engine(made.root))
