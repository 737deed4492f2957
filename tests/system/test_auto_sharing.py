"""`--sharing auto`: the mode that a job's profile speaks for, and turns where jobs under MPS hurt each other."""

import itertools
import os
import sys
import time
from typing import cast

import pytest
from tests.system.conftest import Place
from tests.system.engine_worlds import World, world
from tests.system.test_auto_choice import LIGHT, ran
from tests.system.test_auto_trials import job
from tests.system.test_paging_turns import WORKS, is_held, runs
from tests.unit.test_advising import PROFILE
from tests.waiting import until

from pgpu.advising import needs_estimation
from pgpu.advising.verification import Verdict, Way
from pgpu.engine.admission.auto_sharing import keep_verdict
from pgpu.engine.leases.eviction import PlaceRefusedError, give_back
from pgpu.engine.leases.mps_sharing import MpsSharing
from pgpu.engine.leases.recovery import recover
from pgpu.engine.streams.carrier import Carrier
from pgpu.engine.supervisor.starting import start
from pgpu.errors import EnforcementError
from pgpu.ledger import Entry, Ledger
from pgpu.model import (
    Delivery,
    Demand,
    Evidence,
    Job,
    JobState,
    Profile,
    Resource,
    SharingMode,
    SharingWish,
)
from pgpu.structs import replace

SPINNING = (sys.executable, "-m", "pgpu.workloads", "spin", "--kernel-ms", "5", "--launches", "1000000")


def ledger_of(place: Place) -> Ledger:
    return Ledger(place.path / "state" / "ledger.db")


def mode_of(place: Place, name: str) -> tuple[SharingMode, str]:
    """Start a job and return its mode, and its signature."""
    done = place.run("run", "--sharing", "auto", "--detach", "--name", name, "--memory", "1GiB", "--", *SPINNING)
    assert done.returncode == 0, done.stderr
    ledger = ledger_of(place)
    until(lambda: ledger.job(done.stdout.strip()).state is JobState.RUNNING, lambda: ledger.job(done.stdout.strip()))
    job = ledger.job(done.stdout.strip())
    assert job.lease is not None
    return job.lease.sharing, job.signature


def remember(place: Place, profile: Profile) -> None:
    with ledger_of(place).decision() as decision:
        decision.profiles.add(profile, "0" * 12)


@pytest.mark.userns
def test_a_job_of_which_nothing_is_known_takes_time_slices_and_a_light_one_joins_another_under_mps(
    place: Place,
) -> None:
    mode, signature = mode_of(place, "unknown")
    assert mode is SharingMode.TIME_SLICE
    assert place.run("stop", "unknown").returncode == 0
    light = (Demand(Resource.SM, 0.2, Evidence.COUNTERS), Demand(Resource.DRAM, 0.1, Evidence.COUNTERS))
    known = replace(
        PROFILE,
        signature=signature,
        gpu_name="simulated NVIDIA GeForce RTX 3090",
        owner_uid=os.getuid(),
        demands=light,
        footprint_bytes=0,
    )
    remember(place, known)
    assert mode_of(place, "light")[0] is SharingMode.MPS
    assert mode_of(place, "another")[0] is SharingMode.MPS
    assert ledger_of(place).facts.get(needs_estimation.PREFIX + needs_estimation.name_of(known)) is not None
    advised = place.run("advise", "light", "another")
    assert "together: mps" in advised.stdout, advised.stderr
    assert place.run("stop", "light").returncode == 0
    assert place.run("stop", "another").returncode == 0


LASTING_SECONDS = 1000.0


@pytest.mark.soak
@pytest.mark.userns
def test_a_gpu_in_time_slices_is_let_run_empty_for_jobs_that_are_better_off_under_mps(place: Place) -> None:
    """The second comes when the first, by what is known of its program, is nearly done."""
    words = ("run", "--detach", "--memory", "1GiB", "--name")
    assert place.run(*words, "first", "--sharing", "time-slice", "--", *SPINNING).returncode == 0
    ledger = ledger_of(place)
    until(lambda: ledger.job(place.job("first")["id"]).state is JobState.RUNNING)
    first = ledger.job(place.job("first")["id"])
    simulated = "simulated NVIDIA GeForce RTX 3090"
    known = replace(LIGHT, signature=first.signature, gpu_name=simulated, owner_uid=os.getuid())
    earlier = ran(SharingMode.TIME_SLICE, began=100.0, job_id="d" * 12)
    earlier = replace(earlier, signature=first.signature, gpu_name=simulated, duration_seconds=LASTING_SECONDS)
    with ledger.decision() as decision:
        decision.profiles.add(known, "0" * 12)
        decision.history.add(earlier)
        entry = decision.entry(first.id)
        began_seconds = time.time() - 0.99 * LASTING_SECONDS
        decision.put(replace(entry, job=replace(entry.job, started_at_seconds=began_seconds)))
    assert place.run(*words, "second", "--sharing", "auto", "--", *SPINNING).returncode == 0
    second = ledger.job(place.job("second")["id"])
    assert second.state is JobState.WAITING
    assert place.run("stop", "--time", "0", "first").returncode == 0
    until(lambda: ledger.job(second.id).state is JobState.RUNNING, lambda: ledger.job(second.id))
    lease = ledger.job(second.id).lease
    assert lease is not None
    assert lease.sharing is SharingMode.MPS


class NoDaemon:
    """MPS that nobody can join."""

    def join(self, *_: object) -> Delivery:
        raise EnforcementError("the daemon does not start")


@pytest.mark.parametrize("wish", [SharingWish.AUTO, SharingWish.MPS])
def test_only_who_left_the_mode_to_pgpu_takes_time_slices_where_mps_cannot_be_joined(wish: SharingWish) -> None:
    with world([24]) as machine:
        machine.engine.mps = cast("MpsSharing", NoDaemon())
        granted = replace(job("a" * 12), state=JobState.STARTING)
        granted = replace(granted, request=replace(granted.request, sharing=wish))
        with machine.engine.ledger.decision() as decision:
            decision.put(replace(decision.add(Entry(granted), ()), job=granted))
        with pytest.raises(PlaceRefusedError if wish is SharingWish.AUTO else EnforcementError):
            start(machine.engine, granted, cast("Carrier", None))
        if wish is SharingWish.AUTO:
            give_back(machine.engine, granted.id)
            found = machine.entry(granted).job
            assert (found.state, found.request.sharing) == (JobState.WAITING, SharingWish.TIME_SLICE)


def test_supervisors_that_watch_and_suspend_keep_jobs_in_the_turns_that_auto_found_better() -> None:
    with world([2]) as machine:
        (machine.root / "ran").mkdir()
        jobs = [working(machine), working(machine)]
        with machine.engine.ledger.decision() as decision:
            for each in jobs:
                entry = decision.entry(each.id)
                assert entry.job.lease is not None
                request = replace(entry.job.request, sharing=SharingWish.AUTO)
                lease = replace(entry.job.lease, sharing=SharingMode.MPS)
                decision.put(replace(entry, job=replace(entry.job, request=request, lease=lease)))
        signatures, verdict = [each.signature for each in jobs], Verdict(Way.TURNS, 0.5, time.time())
        keep_verdict(machine.engine.ledger.facts, machine.engine.gpus.gpus()[0], signatures, verdict)
        for each in jobs:
            machine.kill_supervisor(each)
        recover(machine.engine)
        until(lambda: any(is_held(machine, each) for each in jobs))
        before = [len(runs(machine, each)) for each in jobs]
        until(lambda: all(len(runs(machine, each)) > began + 200 for each, began in zip(jobs, before, strict=True)))
        begun = [(at, who) for who, each in enumerate(jobs) for at in runs(machine, each)[before[who] :]]
        stretches = [len(list(group)) for _, group in itertools.groupby(who for _, who in sorted(begun))]
        assert sum(stretches) / len(stretches) > 5  # Who runs without turns uses the GPU in between each time.


def working(machine: World) -> Job:
    """Start a job that uses the GPU whenever it may."""
    command = (sys.executable, "-c", WORKS, "0", str(machine.root / "ran"))
    return machine.until_running(machine.submit(command, gib=0.5))
