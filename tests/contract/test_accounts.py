"""What the ledger counts of leases: seconds, GPU hours and memory hours, by queue, user and hour."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.ledger_entries import Clock, add, instance_of, waiting

from pgpu.ledger import Entry, Ledger
from pgpu.ledger.charges import HOUR_SECONDS
from pgpu.model import Gpu, GpuHours, Job, JobState, Lease, Period, SharingMode, Slice, UserUsage
from pgpu.scheduling import Quota
from pgpu.structs import replace
from pgpu.units import GIB

SLICE = Slice("GPU-0", 6 * GIB)
GPUS = [Gpu(f"GPU-{index}", "Test", index, 24 * GIB, "1", is_simulated=False) for index in range(2)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counted(ledger_path: Path, clock: Clock) -> Iterator[Ledger]:
    with closing(Ledger(ledger_path, now=clock)) as ledger:
        yield ledger


def start(
    ledger: Ledger,
    *slices: Slice,
    uid: int = 7,
    sharing: SharingMode = SharingMode.TIME_SLICE,
    model: str | None = None,
    ago_seconds: float = 100.0,
) -> Job:
    """Write a job that was granted some time ago, and does not run yet."""
    entry = waiting(f"{uid:012x}")
    request = replace(entry.job.request, gpu_count=len(slices))
    entry = add(ledger, replace(entry, job=replace(entry.job, owner_uid=uid, request=request, gpu_model=model)))
    lease = Lease(entry.job.id, slices, time.time() - ago_seconds, sharing=sharing)
    with ledger.decision() as decision:
        decision.put_gpus([*GPUS, instance_of("MIG-0", 10 * GIB)], time.time())
        decision.put(replace(entry, job=replace(entry.job, state=JobState.STARTING, lease=lease)))
        return decision.entry(entry.job.id).job


def run(ledger: Ledger, *slices: Slice, **words: Any) -> Job:
    """Write a job that was granted some time ago and runs from now on."""
    job = start(ledger, *slices, **words)
    return change(ledger, job, state=JobState.RUNNING, started_at_seconds=time.time()).job


def change(ledger: Ledger, job: Job, **changes: Any) -> Entry:
    with ledger.decision() as decision:
        entry = decision.entry(job.id)
        decision.put(replace(entry, job=replace(entry.job, **changes)))
        return decision.entry(job.id)


def end(ledger: Ledger, job: Job, peak_bytes: int | None = None) -> Entry:
    """End a job, and release its lease a little later."""
    now_seconds = time.time()
    ended = change(
        ledger, job, state=JobState.EXITED, exit_code=0, finished_at_seconds=now_seconds, peak_bytes=peak_bytes
    )
    with ledger.decision() as decision:
        decision.put(replace(ended, lease_released_at_seconds=now_seconds))
        return decision.entry(job.id)


def usage(ledger: Ledger, since_seconds: float = 0.0, model: str | None = None) -> dict[int, UserUsage]:
    with ledger.view() as view:
        return view.charges.usage(model, since_seconds)


def test_hours_count_from_the_grant_to_the_release_and_the_run_from_its_start_to_its_end(
    counted: Ledger, clock: Clock
) -> None:
    job = start(counted, SLICE)
    clock.seconds += 20
    job = change(counted, job, state=JobState.RUNNING, started_at_seconds=time.time()).job
    clock.seconds += 60
    live = usage(counted)[7]
    assert live.runs == 0
    assert live.gpu_seconds == pytest.approx(20)
    entry = change(counted, job, state=JobState.EXITED, finished_at_seconds=time.time(), peak_bytes=3 * GIB)
    clock.seconds += 20
    assert (entry.ran_seconds, entry.runs_since) == (60, None)
    with counted.decision() as decision:
        decision.put(replace(entry, lease_released_at_seconds=time.time()))
    clock.seconds += 20
    found = usage(counted)[7]
    assert found.runs == 1
    assert found.gpu_seconds == pytest.approx(25)
    assert found.byte_seconds == pytest.approx(600 * GIB)
    assert found.used_byte_seconds == pytest.approx(180 * GIB)
    change(counted, job, warning="read once more")
    assert usage(counted)[7] == found


def test_the_larger_part_of_a_gpu_counts_and_all_of_one_that_a_job_has_alone(counted: Ledger, clock: Clock) -> None:
    jobs = [
        run(counted, Slice("GPU-0", 6 * GIB, 0.5), Slice("GPU-1", 12 * GIB, 0.1), uid=1),
        run(counted, SLICE, uid=2, sharing=SharingMode.EXCLUSIVE),
        run(counted, Slice("GPU-9", GIB), uid=3),
        run(counted, Slice("MIG-0", GIB), uid=4),
        run(counted, uid=5),
    ]
    clock.seconds += 70
    for job in jobs:
        end(counted, job)
    assert [usage(counted)[uid].gpu_seconds for uid in range(1, 6)] == pytest.approx([70, 70, 70, 20, 0])


@pytest.mark.parametrize(
    ("name", "part"), [("A100 MIG 2g.10gb", 2 / 7), ("NVIDIA A30 MIG 1g.6gb", 1 / 4), ("GPU of another name", 1.0)]
)
def test_a_mig_instance_is_the_part_of_its_compute_slices(name: str, part: float) -> None:
    assert replace(instance_of("MIG-0", GIB), name=name).part == part
    assert GPUS[0].part == 1.0


def test_time_in_which_a_job_is_suspended_or_parked_does_not_count(counted: Ledger, clock: Clock) -> None:
    job = run(counted, SLICE)
    clock.seconds += 100
    for pause in ({"suspended_by": "b" * 12}, {"parked_at_seconds": 1.0}):
        assert change(counted, job, **pause).runs_since is None
        clock.seconds += 1000
        entry = change(counted, job, **dict.fromkeys(pause))
        assert entry.runs_since == clock()
    clock.seconds += 10
    assert entry.run_seconds(clock()) == 110
    assert usage(counted)[7].gpu_seconds == pytest.approx(110 / 4)


def test_a_resize_counts_from_its_write_on(counted: Ledger, clock: Clock) -> None:
    job = run(counted, SLICE)
    clock.seconds += 100
    assert job.lease is not None
    change(counted, job, lease=replace(job.lease, slices=(Slice("GPU-0", 24 * GIB),)))
    clock.seconds += 100
    end(counted, job)
    assert usage(counted)[7].gpu_seconds == pytest.approx(125)


def test_a_job_that_was_lost_with_its_machine_has_used_nothing_since_its_last_write(
    counted: Ledger, clock: Clock
) -> None:
    job = run(counted, SLICE)
    clock.seconds += 100
    entry = change(counted, job, warning="written once")
    clock.seconds, clock.boot = 1e6, "second boot"
    assert entry.run_seconds(clock()) == 100
    assert end(counted, job).ran_seconds == 100
    assert usage(counted)[7].gpu_seconds == pytest.approx(25)


def test_each_try_of_a_job_counts_and_the_next_one_begins_at_zero(counted: Ledger, clock: Clock) -> None:
    job = run(counted, SLICE)
    clock.seconds += 100
    again(counted, job)
    entry = counted.entry(job.id)
    assert (entry.ran_seconds, entry.runs_since) == (0.0, None)
    found = usage(counted)[7]
    assert found.runs == 1
    assert found.gpu_seconds == pytest.approx(25)


def test_a_lease_whose_command_never_ran_counts_and_is_no_run(counted: Ledger, clock: Clock) -> None:
    job = start(counted, SLICE)
    clock.seconds += 100
    again(counted, job)
    found = usage(counted)[7]
    assert found.runs == 0
    assert found.gpu_seconds == pytest.approx(25)


def again(ledger: Ledger, job: Job) -> None:
    """Put a granted job back into the queue."""
    with ledger.decision() as decision:
        entry = decision.entry(job.id)
        decision.requeue(job.id, time.time(), None)
        waits = replace(entry.job, state=JobState.WAITING, lease=None, started_at_seconds=None)
        decision.put(replace(entry, job=waits))


def test_a_long_lease_is_spread_over_its_hours(counted: Ledger, clock: Clock) -> None:
    job = run(counted, SLICE, ago_seconds=10 * HOUR_SECONDS)
    clock.seconds += 10 * HOUR_SECONDS
    now_seconds = time.time()
    assert usage(counted, now_seconds - 5 * HOUR_SECONDS)[7].gpu_seconds == pytest.approx(1.25 * HOUR_SECONDS, rel=0.01)
    end(counted, job)
    assert usage(counted)[7].gpu_seconds == pytest.approx(2.5 * HOUR_SECONDS)
    since = (now_seconds // HOUR_SECONDS - 4) * HOUR_SECONDS
    part = (now_seconds - since) / (10 * HOUR_SECONDS)
    assert usage(counted, since)[7].gpu_seconds == pytest.approx(part * 2.5 * HOUR_SECONDS, rel=0.01)


def test_hours_of_simulated_gpus_count_apart_from_those_of_real_ones(counted: Ledger, clock: Clock) -> None:
    with counted.decision() as decision:
        decision.put_quota(1, Quota(gpu_hours=GpuHours(2.0, Period.MONTH)))
    ended, lasting = (run(counted, SLICE, uid=uid, model="RTX 3090", ago_seconds=0.0) for uid in (1, 2))
    clock.seconds += 400
    end(counted, ended)
    assert usage(counted) == {}
    assert sorted(usage(counted, model="RTX 3090")) == [1, 2]
    with counted.view() as view:
        hours = [view.quotas(model)[1].gpu_hours for model in (None, "RTX 3090")]
    assert [each.used for each in hours if each is not None] == pytest.approx([0, 100 / HOUR_SECONDS])
    end(counted, lasting)


def test_a_quota_of_gpu_hours_knows_what_its_period_has_used(counted: Ledger, clock: Clock) -> None:
    with counted.decision() as decision:
        decision.put_quota(7, Quota(jobs=3, gpu_hours=GpuHours(2.0, Period.DAY)))
        decision.put_quota(8, Quota(weight=2.0))
    run(counted, SLICE, ago_seconds=0.0)
    clock.seconds += 0.5
    with counted.view() as view:
        quotas = view.quotas()
    hours = quotas[7].gpu_hours
    assert hours is not None
    assert (quotas[7].jobs, hours.most, hours.period) == (3, 2.0, Period.DAY)
    assert 0 < hours.used < 0.01
    assert time.time() < hours.renewed_at_seconds <= time.time() + 25 * HOUR_SECONDS
    assert quotas[8] == Quota(weight=2.0)


def test_held_jobs_and_those_with_a_begin_are_found_beside_those_that_wait_for_others(ledger: Ledger) -> None:
    first = waiting("a" * 12)
    add(ledger, replace(first, job=replace(first.job, begin_at_seconds=5e9)))
    add(ledger, waiting("b" * 12))
    add(ledger, waiting("c" * 12))
    with ledger.decision() as decision:
        decision.hold(["b" * 12], 7, takes_over=False)
        decision.hold(["b" * 12], 8, takes_over=False)
        peers = decision.conditional()
        assert [(each.job_id[0], each.begin_at_seconds, each.held_by_uid) for each in peers] == [
            ("a", 5e9, None),
            ("b", None, 7),
        ]
        assert [each.eligible_at_seconds for each in decision.waiting(None)] == [5e9, 1.0, 1.0]
        decision.hold(["b" * 12], 0, takes_over=True)
        assert decision.entry("b" * 12).job.held_by_uid == 0
        decision.release_held(["b" * 12, "c" * 12], 9.0)
        assert [each.job_id[0] for each in decision.conditional()] == ["a"]
        assert [each.eligible_at_seconds for each in decision.waiting(None)] == [5e9, 9.0, 1.0]
