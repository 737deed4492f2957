"""Everybody who takes part in MPS is killed, in an order drawn by lot: the GPU is usable at once, and nothing is left behind."""

import os
import random
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.system.conftest import Place
from tests.system.test_mps import PROBE, SPINNING, daemons, detach
from tests.waiting import until

from pgpu.ledger import Entry, Ledger
from pgpu.model import JobState, ProcessHolder

pytestmark = pytest.mark.userns

SEED = 20261121
VICTIMS = ("daemon", "server", "client", "supervisor")


@dataclass
class Storm:
    """Jobs under MPS, and who kills whom."""

    place: Place
    job_ids: list[str] = field(default_factory=list)

    def live(self) -> list[Entry]:
        ledger = Ledger(self.place.path / "state" / "ledger.db")
        found = [entry for job_id in self.job_ids if (entry := ledger.entry(job_id)).is_live]
        ledger.close()
        return found

    def keep_busy(self) -> None:
        """Have two jobs, at least one of which runs."""
        while len(self.live()) < 2:
            self.job_ids.append(detach(self.place, f"job-{len(self.job_ids)}", SPINNING))
        until(lambda: any(entry.job.state is JobState.RUNNING for entry in self.live()) or len(self.live()) < 2)

    def kill(self, victim: str) -> None:
        """End one of them as the kernel would; whoever is gone already is no victim."""
        for pid in self._pids(victim)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _pids(self, victim: str) -> list[int]:
        if victim in {"daemon", "server"}:
            found = _daemon_pids(self.place)
            return found if victim == "daemon" else [child for pid in found for child in _children(pid)]
        holders = [entry.supervisor if victim == "supervisor" else entry.job.holder for entry in self.live()]
        return [holder.pid for holder in holders if isinstance(holder, ProcessHolder)]


def _daemon_pids(place: Place) -> list[int]:
    found = []
    for path in daemons(place):
        with suppress(OSError, ValueError):
            found.append(int(path.read_text()))
    return found


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


@pytest.mark.soak
def test_after_everybody_was_killed_in_turn_the_whole_gpu_is_usable_and_no_daemon_is_left(place: Place) -> None:
    storm = Storm(place)
    for victim in random.Random(SEED).sample(2 * VICTIMS, 2 * len(VICTIMS)):
        storm.keep_busy()
        storm.kill(victim)
    place.run("stop", "--time", "0", *(entry.job.id for entry in storm.live()))
    until(lambda: place.run("ps").returncode == 0 and not storm.live(), storm.live)
    done = place.run("run", "--sharing", "mps", "--memory", "20GiB", "--", *PROBE)
    assert "mps 1\n" in done.stdout, done.stderr
    until(lambda: not daemons(place), lambda: daemons(place))
