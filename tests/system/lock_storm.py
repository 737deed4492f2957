"""kill -9 of the agent or the guard of a running job, again and again, while another ledger tries to get the GPU.

The long form is benchmarks/kill_storm.
"""

import math
import os
import random
import signal
import threading
import time
from contextlib import suppress

from tests.fakes.machine import LOCKS
from tests.system.engine_worlds import World
from tests.system.storm_victims import name_of
from tests.waiting import until

from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.errors import NodeError
from pgpu.host.process_identity import identify_running, is_alive, read_status
from pgpu.libraries import MONITOR
from pgpu.model import JobState, ProcessHolder


class LockStorm:
    """One machine with a job that runs until the end of the storm."""

    def __init__(self, machine: World, chance: random.Random) -> None:
        self.killed = {"agent": 0, "guard": 0}
        self.refused = 0
        """How often the other ledger tried."""

        self._machine = machine
        self._chance = chance
        self._is_over = threading.Event()
        self._granted: list[str] = []

    def rage(self, kills: int, most_seconds: float = math.inf) -> None:
        """Kill so many processes, or fewer once the time is up; each time the job has a supervisor again before the next one."""
        deadline = time.monotonic() + most_seconds
        locks = self._machine.root / LOCKS
        locks.mkdir()
        go = self._machine.root / "go"
        job = self._machine.submit(("sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; echo out; exit 3"))
        self._machine.until_running(job)
        thread = threading.Thread(target=self._try_to_get_it)
        thread.start()
        while sum(self.killed.values()) < kills and time.monotonic() < deadline:
            agent = until(lambda: self._agent_of(job.id))
            status = None if agent is None else read_status(agent.pid)
            guard = None if status is None else identify_running(status.parent_pid)
            # Two deaths of agents under one guard make it pause, ever longer: every second victim is a guard.
            is_guard = self._chance.random() < 0.5 and guard is not None and name_of(guard.pid) == MONITOR
            victim = guard if is_guard else agent
            assert victim is not None
            with suppress(ProcessLookupError):
                os.kill(victim.pid, signal.SIGKILL)
            self.killed["guard" if is_guard else "agent"] += 1
            until(lambda a=agent: self._agent_of(job.id) not in {a, None})  # type: ignore[misc]
            assert not self._granted, self._granted
        self._is_over.set()
        thread.join()
        go.touch()
        ended, stdout, _ = self._machine.attach(job)
        assert (ended.state, ended.exit_code, stdout) == (JobState.EXITED, 3, b"out\n")

    def _agent_of(self, job_id: str) -> ProcessHolder | None:
        """Return the agent that supervises the job now."""
        supervisor = self._machine.engine.ledger.entry(job_id).supervisor
        found = supervisor is not None and is_alive(supervisor) and name_of(supervisor.pid) != MONITOR
        return supervisor if found else None

    def _try_to_get_it(self) -> None:
        gpus = self._machine.engine.gpus.gpus()
        while not self._is_over.wait(0.002):
            theirs = GpuLocks(self._machine.root / "other" / "ledger.db", [self._machine.root / LOCKS])
            try:
                theirs.hold(gpus)
                self._granted.append(f"after {self.killed}")
            except NodeError:
                self.refused += 1
            finally:
                theirs.close()
