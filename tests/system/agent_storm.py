"""kill -9 and SIGSTOP of agents, guards, monitors, jobs and clients under load.

After each kill the ledger must add up; in the end every job that was accepted has run once, from beginning to end, or
never and says so. The long form is benchmarks/kill_storm.
"""

import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.engine_worlds import World
from tests.system.storm_victims import monitor_of, name_of
from tests.waiting import until

from pgpu.engine.leases.recovery import LOST
from pgpu.host.process_identity import identify_running, is_alive, read_status
from pgpu.libraries import MONITOR
from pgpu.model import JobState, ProcessHolder
from pgpu.units import GIB

CAPACITY_GIB = 10
JOBS_OF_A_CLIENT = 3
CLIENTS = 2
STOP_SHARE = 0.15
"""So many of the victims are stopped, not killed."""

ROUNDS_STOPPED = 3
"""A stopped process continues after so many others; an agent may be replaced before, by its guard."""

CLIENT = """import os, secrets, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.fakes.machine import make_client, make_engine
from pgpu.model import JobSpec, Request
root, client = Path(sys.argv[2]), make_client(make_engine(Path(sys.argv[2])))
script = f"echo begin >> {root}/fates/$FATE; sleep 0.1; echo end >> {root}/fates/$FATE"
for gib in map(int, sys.argv[3:]):
    environment = (("FATE", secrets.token_hex(8)),)
    spec = JobSpec(("sh", "-c", script), "process", working_directory="/", environment=environment)
    (root / "clients" / str(os.getpid())).touch()
    job = client.submit(spec, Request(gib << 30), wait_timeout_seconds=None)
client.wait(job.id)
"""


@dataclass
class Storm:
    """One machine under load, and who is killed on it."""

    machine: World
    chance: random.Random
    clients: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed: dict[str, int] = field(default_factory=dict)
    """Also how many were stopped, as `stopped agent` and so on."""

    shot: set[ProcessHolder] = field(default_factory=set)
    """Main processes of jobs that were killed."""

    stopped: list[ProcessHolder] = field(default_factory=list)

    def rage(self, kills: int, most_seconds: float = math.inf) -> None:
        """Kill so many processes, or fewer once the time is up, and look after each."""
        deadline = time.monotonic() + most_seconds
        for name in ("fates", "clients"):
            (self.machine.root / name).mkdir()
        while sum(self.killed.values()) < kills and time.monotonic() < deadline:
            self._keep_clients()
            self._kill_one()
            self.check()
        self.calm()

    def calm(self) -> None:
        """Let everything end, and account for every job."""
        self._continue(0)
        for client in self.clients:
            client.wait()
        until(self._is_over, lambda: str(self.machine.engine.ledger.entries(include_final=False)))
        self.check()
        for entry in self.machine.engine.ledger.entries(include_final=True):
            self._check_fate(entry.job.id)
        assert self.machine.client.gpus()[0].granted_bytes == 0

    def check(self) -> None:
        """See that no more is granted than there is, and that nothing ran twice."""
        with self.machine.engine.ledger.view() as view:
            held = [entry.job.lease for entry in view.holding()]
            starting = [entry for entry in view.live() if entry.job.state is JobState.STARTING]
        granted = sum(part.memory_bytes for lease in held if lease is not None for part in lease.slices)
        assert granted <= CAPACITY_GIB * GIB
        assert all(entry.job.lease is not None for entry in starting)
        for path in (self.machine.root / "fates").iterdir():
            assert path.read_text() in {"", "begin\n", "begin\nend\n"}, path.read_text()

    def _check_fate(self, job_id: str) -> None:
        job = self.machine.engine.ledger.job(job_id)
        path = self.machine.root / "fates" / dict(job.spec.environment)["FATE"]
        ran = path.read_text() if path.exists() else ""
        if job.holder in self.shot:
            # It may have been the launcher still, or have ended by itself at that moment.
            assert job.exit_code in {137, None} or (job.exit_code, ran) == (0, "begin\nend\n"), job
        elif job.state is JobState.EXITED:
            assert (job.exit_code, ran) == (0, "begin\nend\n"), job
        else:
            assert (job.state, job.error) == (JobState.FAILED, LOST), job
            assert ran in {"", "begin\nend\n"}, (job, ran)

    def _is_over(self) -> bool:
        self.machine.client.jobs(include_final=False)
        return not self.machine.engine.ledger.entries(include_final=False)

    def _keep_clients(self) -> None:
        self.clients = [client for client in self.clients if client.poll() is None]
        while len(self.clients) < CLIENTS:
            amounts = [str(self.chance.choice((2, 4, 6))) for _ in range(JOBS_OF_A_CLIENT)]
            words = [sys.executable, "-c", CLIENT, str(Path(__file__).parents[2]), str(self.machine.root), *amounts]
            self.clients.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))

    def _kill_one(self) -> None:
        kinds: dict[str, Callable[[], ProcessHolder | None]] = {
            "agent": self._agent,
            "guard": self._guard,
            "monitor": self._monitor,
            "job": self._job,
            "client": self._client,
        }
        (kind,) = self.chance.choices(list(kinds), (4, 2, 4, 1, 2))
        deadline = time.monotonic() + self.chance.uniform(0.0, 0.3)
        until(lambda: time.monotonic() > deadline)
        found = kinds[kind]()
        if found is None or identify_running(found.pid) != found:
            return
        is_stop = self.chance.random() < STOP_SHARE
        os.kill(
            found.pid, signal.SIGSTOP if is_stop else signal.SIGKILL
        )  # what happens in between is what is asked about
        if is_stop:
            self.stopped.append(found)
        elif kind == "job":
            self.shot.add(found)
        name = f"stopped {kind}" if is_stop else kind
        self.killed[name] = self.killed.get(name, 0) + 1
        self._continue(ROUNDS_STOPPED)

    def _continue(self, left: int) -> None:
        """Let the processes that were stopped first continue, until so many are left."""
        while len(self.stopped) > left:
            found = self.stopped.pop(0)
            if identify_running(found.pid) == found:
                os.kill(found.pid, signal.SIGCONT)

    def _job(self) -> ProcessHolder | None:
        with self.machine.engine.ledger.view() as view:
            found = [entry.job.holder for entry in view.holding() if entry.job.state is JobState.RUNNING]
        holders = [holder for holder in found if isinstance(holder, ProcessHolder)]
        return self.chance.choice(holders) if holders else None

    def _client(self) -> ProcessHolder | None:
        """One that has asked for something already: the others are only a start of Python."""
        asked = {int(path.name) for path in (self.machine.root / "clients").iterdir()}
        found = [client.pid for client in self.clients if client.pid in asked]
        return identify_running(self.chance.choice(found)) if found else None

    def _agent(self) -> ProcessHolder | None:
        found = self.machine.engine.agents.process("fake")
        return found if found is not None and is_alive(found) else None

    def _guard(self) -> ProcessHolder | None:
        agent = self._agent()
        status = read_status(agent.pid) if agent else None
        found = identify_running(status.parent_pid) if status else None
        return found if found is not None and name_of(found.pid) == MONITOR else None

    def _monitor(self) -> ProcessHolder | None:
        found = [pid for path in (self.machine.root / "state" / "spool").glob("started-*") if (pid := monitor_of(path))]
        return identify_running(self.chance.choice(found)) if found else None
