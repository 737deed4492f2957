"""What the ledger counts of runs: seconds, GPU hours and memory hours, by user and hour."""

import time
from typing import Any

import pytest
from tests.ledger_entries import add, waiting

from pgpu.host.process_identity import boot_id
from pgpu.ledger import Entry, Ledger
from pgpu.ledger.accounts import HOUR_SECONDS
from pgpu.model import Gpu, GpuHours, Job, JobState, Lease, Period, SharingMode, Slice, UserUsage
from pgpu.scheduling import Quota
from pgpu.structs import replace
from pgpu.units import GIB

SLICE = Slice("GPU-0", 6 * GIB)
GPUS = [Gpu(f"GPU-{index}", "Test", index, 24 * GIB, "1", is_simulated=False) for index in range(2)]


def run(ledger: Ledger, *slices: Slice, uid: int = 7, sharing: SharingMode = SharingMode.TIME_SLICE) -> Job:
    """Write a job that runs from now on."""
    entry = waiting(f"{uid:012x}")
    job = replace(entry.job, owner_uid=uid, request=replace(entry.job.request, gpu_count=len(slices)))
    entry = add(ledger, replace(entry, job=job))
    lease = Lease(job.id, slices, time.time(), sharing=sharing)
    with ledger.decision() as decision:
        decision.put_gpus(GPUS, time.time())
        decision.put(replace(entry, job=replace(job, state=JobState.STARTING, lease=lease)))
    return change(ledger, job, state=JobState.RUNNING, started_at_seconds=time.time()).job


def change(ledger: Ledger, job: Job, **changes: Any) -> Entry:
    with ledger.decision() as decision:
        entry = decision.entry(job.id)
        decision.put(replace(entry, job=replace(entry.job, **changes)))
        return decision.entry(job.id)


def age(ledger: Ledger, job: Job, seconds: float) -> None:
    """Let a job have run for longer than it has, since its last write and its start."""
    with ledger.decision() as decision:
        decision._connection.execute(
            "UPDATE jobs SET runs_since = runs_since - ?1, started_at = started_at - ?1 WHERE id = ?2",
            (seconds, job.id),
        )


def usage(ledger: Ledger, since_seconds: float = 0.0) -> dict[int, UserUsage]:
    with ledger.view() as view:
        return view.accounts.usage(since_seconds)


def end(ledger: Ledger, job: Job, peak_bytes: int | None = None) -> Entry:
    return change(
        ledger, job, state=JobState.EXITED, exit_code=0, finished_at_seconds=time.time(), peak_bytes=peak_bytes
    )


def test_a_run_counts_from_its_start_to_its_end_and_what_it_held(ledger: Ledger) -> None:
    job = run(ledger, SLICE)
    age(ledger, job, 100)
    live = usage(ledger)[7]
    assert live.runs == 0
    assert live.gpu_seconds == pytest.approx(25, rel=0.05)
    entry = end(ledger, job, peak_bytes=3 * GIB)
    assert entry.ran_seconds == pytest.approx(100, rel=0.05)
    assert entry.runs_since_seconds is None
    found = usage(ledger)[7]
    assert found.runs == 1
    assert found.gpu_seconds == pytest.approx(25, rel=0.05)
    assert found.byte_seconds == pytest.approx(600 * GIB, rel=0.05)
    assert found.used_byte_seconds == pytest.approx(300 * GIB, rel=0.05)
    with ledger.decision() as decision:  # its release writes it once more
        decision.put(replace(entry, lease_released_at_seconds=time.time()))
    assert usage(ledger)[7] == found


def test_the_larger_part_of_a_gpu_counts_and_all_of_one_that_a_job_has_alone(ledger: Ledger) -> None:
    shared = run(ledger, Slice("GPU-0", 6 * GIB, 0.5), Slice("GPU-1", 12 * GIB, 0.1), uid=1)
    alone = run(ledger, SLICE, uid=2, sharing=SharingMode.EXCLUSIVE)
    unknown = run(ledger, Slice("GPU-9", GIB), uid=3)
    for job in (shared, alone, unknown):
        age(ledger, job, 100)
        end(ledger, job)
    assert [usage(ledger)[uid].gpu_seconds for uid in (1, 2, 3)] == pytest.approx([100, 100, 100], rel=0.05)


def test_time_in_which_a_job_is_suspended_or_parked_does_not_count(ledger: Ledger) -> None:
    job = run(ledger, SLICE)
    age(ledger, job, 100)
    for pause in ({"suspended_by": "b" * 12}, {"parked_at_seconds": 1.0}):
        assert change(ledger, job, **pause).runs_since_seconds is None
        age(ledger, job, 1000)
        entry = change(ledger, job, **dict.fromkeys(pause))
        assert entry.runs_since_seconds is not None
    assert entry.run_seconds(time.monotonic()) == pytest.approx(100, rel=0.05)


def test_a_resize_counts_from_its_write_on(ledger: Ledger) -> None:
    job = run(ledger, SLICE)
    age(ledger, job, 100)
    assert job.lease is not None
    change(ledger, job, lease=replace(job.lease, slices=(Slice("GPU-0", 24 * GIB),)))
    age(ledger, job, 100)
    end(ledger, job)
    assert usage(ledger)[7].gpu_seconds == pytest.approx(125, rel=0.05)


def test_a_job_that_was_lost_with_its_machine_has_used_nothing_since_its_last_write(ledger: Ledger) -> None:
    job = run(ledger, SLICE)
    age(ledger, job, 100)
    with ledger.decision() as decision:
        assert boot_id()
        decision._connection.execute("UPDATE jobs SET runs_boot = 'another'")
    assert end(ledger, job).ran_seconds == 0
    assert usage(ledger)[7] == UserUsage(7, 1)


def test_each_try_of_a_job_counts_and_the_next_one_begins_at_zero(ledger: Ledger) -> None:
    job = run(ledger, SLICE)
    age(ledger, job, 100)
    with ledger.decision() as decision:
        entry = decision.entry(job.id)
        decision.requeue(job.id, time.time(), None)
        again = replace(entry.job, state=JobState.WAITING, lease=None, started_at_seconds=None)
        decision.put(replace(entry, job=again))
    entry = ledger.entry(job.id)
    assert (entry.ran_seconds, entry.runs_since_seconds) == (0.0, None)
    found = usage(ledger)[7]
    assert found.runs == 1
    assert found.gpu_seconds == pytest.approx(25, rel=0.05)


def test_a_long_run_is_spread_over_its_hours(ledger: Ledger) -> None:
    job = run(ledger, SLICE)
    age(ledger, job, 10 * HOUR_SECONDS)
    now_seconds = time.time()
    assert usage(ledger, now_seconds - 5 * HOUR_SECONDS)[7].gpu_seconds == pytest.approx(1.25 * HOUR_SECONDS, rel=0.01)
    end(ledger, job)
    assert usage(ledger)[7].gpu_seconds == pytest.approx(2.5 * HOUR_SECONDS, rel=0.01)
    since = (now_seconds // HOUR_SECONDS - 4) * HOUR_SECONDS
    part = (now_seconds - since) / (10 * HOUR_SECONDS)
    assert usage(ledger, since)[7].gpu_seconds == pytest.approx(part * 2.5 * HOUR_SECONDS, rel=0.01)


def test_a_quota_of_gpu_hours_knows_what_its_period_has_used(ledger: Ledger) -> None:
    with ledger.decision() as decision:
        decision.put_quota(7, Quota(jobs=3, gpu_hours=GpuHours(2.0, Period.DAY)))
        decision.put_quota(8, Quota(weight=2.0))
    job = run(ledger, SLICE)
    age(ledger, job, 0.5)
    with ledger.view() as view:
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
