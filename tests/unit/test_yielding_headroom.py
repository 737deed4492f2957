"""Which slices may use headroom, and when: the record of the memory outside of slices, and rounds of admission with it."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.engine.admission.snapshot import Snapshot
from pgpu.ledger import Entry
from pgpu.model import Batch, Gpu, Job, JobSpec, JobState, Lease, Request, SharingMode, SharingWish, Slice
from pgpu.scheduling import Admission, Candidate, Cause, GpuRoom, Headroom, Held, admit
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.reservations import reserve
from pgpu.scheduling.yielding_headroom import (
    CONFIRMED_SECONDS,
    KEPT_BYTES,
    OutsiderPeak,
    first_reading,
    has_declared_size,
    may_use_headroom,
    yielded_bytes,
)
from pgpu.structs import replace
from pgpu.units import GIB, MIB

P1_GPU_BYTES = 24265 * MIB
P1_JOB_BYTES = 1205 * MIB
MINUTE = 60.0


def room(
    index: int = 0,
    memory_bytes: int = P1_GPU_BYTES,
    *,
    granted_bytes: int = 0,
    outsiders_bytes: int = 0,
    stable_bytes: int | None = 0,
) -> GpuRoom:
    gpu = Gpu(f"GPU-{index}", "Test", index, memory_bytes, "1.0", is_simulated=True)
    made = GpuRoom(gpu, Headroom().of(gpu), outsiders_bytes, granted_bytes)
    return replace(made, yielded_bytes=yielded_bytes(made, stable_bytes))


def jobs(
    count: int, memory_bytes: int = P1_JOB_BYTES, *, declared: bool = True, is_batch: bool = False
) -> list[Candidate]:
    batch = Batch("job0", count) if is_batch else None
    name = "job" if declared else "predicted"
    return [
        Candidate(f"{name}{number}", Request(memory_bytes), uses_headroom=declared, batch=batch)
        for number in range(count)
    ]


def started(admission: Admission) -> int:
    return len(admission.grants)


def granted_bytes(admission: Admission, gpu_uuid: str) -> int:
    return sum(part.memory_bytes for grant in admission.grants for part in grant.slices if part.gpu_uuid == gpu_uuid)


# The record of the memory outside of slices.


def after(*readings: tuple[float, int]) -> OutsiderPeak:
    (first_seconds, first_bytes), *more = readings
    peak = first_reading(first_bytes, first_seconds)
    for at_seconds, used_bytes in more:
        peak = peak.with_reading(used_bytes, at_seconds, MINUTE)
    return peak


def test_memory_is_not_known_to_be_stable_before_a_minute_has_passed() -> None:
    readings = [(float(second), 100 * MIB) for second in range(60)]
    assert after(*readings).stable_bytes is None
    assert after(*readings, (60.0, 100 * MIB)).stable_bytes == 100 * MIB


def test_two_readings_a_minute_apart_are_enough() -> None:
    """No process reads the GPU while nothing runs."""
    assert after((0.0, 5), (3600.0, 5)).stable_bytes == 5


def test_growth_starts_the_minute_again_once_it_is_confirmed() -> None:
    stable, large = after((0.0, 0), (60.0, 0)), 2 * KEPT_BYTES
    once = stable.with_reading(large, 61.0, MINUTE)
    assert once.stable_bytes is None, "as long as it lasts"
    assert once.with_reading(0, 61.1, MINUTE).stable_bytes == 0, "a job between its allocation and its charge"
    grown = once.with_reading(large, 61.0 + CONFIRMED_SECONDS, MINUTE)
    assert grown.with_reading(0, 90.0, MINUTE).stable_bytes is None
    assert grown.with_reading(large, 122.0, MINUTE).stable_bytes == large


def test_growth_within_what_is_always_kept_is_stable() -> None:
    assert after((0.0, 0), (60.0, KEPT_BYTES)).stable_bytes == KEPT_BYTES


def test_memory_that_creeps_up_is_not_stable() -> None:
    readings = [(float(second), second * KEPT_BYTES // 20) for second in range(200)]
    assert all(after(*readings[:count]).stable_bytes is None for count in range(1, len(readings)))


def test_a_peak_is_forgotten_after_two_minutes_at_the_latest() -> None:
    display = [(0.0, 300 * MIB), (60.0, 300 * MIB), (61.0, 10 * MIB)]
    assert after(*display).stable_bytes == 300 * MIB
    assert after(*display, (121.0, 10 * MIB), (182.0, 10 * MIB)).stable_bytes == 10 * MIB


def test_a_clock_that_went_back_voids_the_record() -> None:
    """The file of a machine that was restored from an image, for example."""
    assert after((1000.0, 0), (1060.0, 0), (5.0, 0)).stable_bytes is None


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.integers(0, 10).map(lambda each: each * 40 * MIB)), min_size=1, max_size=60
    )
)
def test_what_counts_as_stable_is_no_less_than_any_confirmed_reading_of_the_last_minute(
    steps: list[tuple[float, int]],
) -> None:
    readings, now = [], 0.0
    for pause, used_bytes in steps:
        now += pause
        readings.append((now, used_bytes))
    found = after(*readings).stable_bytes
    if found is not None:
        assert now - readings[0][0] >= MINUTE
        pairs = pairwise(readings)
        confirmed = [
            min(one[1], other[1])
            for one, other in pairs
            if one[0] > now - MINUTE and other[0] - one[0] >= CONFIRMED_SECONDS
        ]
        assert found + KEPT_BYTES >= max([readings[-1][1], *confirmed])


# What yields of a GPU.


def test_nothing_yields_where_stability_is_unknown() -> None:
    assert room(stable_bytes=None).yielded_bytes == 0


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 30), st.integers(0, 30))
def test_slices_and_the_stable_peak_never_sum_to_more_than_the_gpu_has(
    outsiders: int, stable: int, gib: int, granted: int
) -> None:
    each = room(
        memory_bytes=gib * GIB,
        outsiders_bytes=outsiders * 100 * MIB,
        stable_bytes=stable * 100 * MIB,
        granted_bytes=granted * GIB,
    )
    assert 0 <= each.yielded_bytes <= each.headroom_bytes
    most_bytes = each.capacity_bytes + each.yielded_bytes
    if each.yielded_bytes:
        assert most_bytes + max(each.outsiders_bytes, stable * 100 * MIB) + KEPT_BYTES <= each.gpu.memory_bytes


@pytest.mark.parametrize(
    "request_",
    [
        Request(GIB, is_estimated=True),
        Request(GIB, basis="retry"),
        Request(GIB, oversubscribes=True),
        Request(GIB, preempts=True),
        Request(GIB, sharing=SharingWish.MPS),
        Request(GIB, sharing=SharingWish.EXCLUSIVE),
    ],
)
def test_a_predicted_or_movable_slice_uses_no_headroom(request_: Request) -> None:
    assert has_declared_size(Request(GIB))
    assert not has_declared_size(request_)


def test_a_limit_that_a_job_can_drop_and_a_place_that_it_lends_use_no_headroom() -> None:
    lease = Lease("a", (Slice("GPU-0", GIB),), 0.0)
    job = Job("a", JobSpec(("true",), "process"), Request(GIB), JobState.RUNNING, 0.0, lease=lease)
    assert may_use_headroom(job, lease)
    assert not may_use_headroom(job, replace(lease, is_advisory=True))
    assert not may_use_headroom(job, replace(lease, sharing=SharingMode.MPS))
    assert not may_use_headroom(replace(job, spec=JobSpec((), "claim")), lease)
    assert not may_use_headroom(replace(job, spec=replace(job.spec, parks=True)), lease)
    assert not may_use_headroom(replace(job, suspended_by="b"), lease)


def snapshot_rooms(headroom: Headroom, *requests: Request) -> GpuRoom:
    """Read the room of P1's GPU on which jobs with these requests run."""
    entries = []
    for number, request in enumerate(requests):
        lease = Lease(f"job{number}", (Slice("GPU-0", request.memory_bytes),), 0.0)
        spec = JobSpec(("true",), "process")
        entries.append(Entry(Job(f"job{number}", spec, request, JobState.RUNNING, 0.0, lease=lease)))
    [found] = Snapshot((room().gpu,), {"GPU-0": 0}, {}, stable_bytes={"GPU-0": 0}).rooms(entries, headroom)
    return found


def test_one_slice_of_a_predicted_size_keeps_the_headroom_of_its_gpu() -> None:
    declared, predicted = Request(GIB), Request(GIB, is_estimated=True, basis="history")
    assert snapshot_rooms(Headroom(yields=True), declared, declared).yielded_bytes > 0
    assert snapshot_rooms(Headroom(yields=True), declared, predicted).yielded_bytes == 0


def test_a_fixed_headroom_never_yields() -> None:
    assert snapshot_rooms(Headroom(), Request(GIB)).yielded_bytes == 0


# Rounds.


def test_p1s_twenty_start_together_and_without_a_stable_minute_nineteen() -> None:
    assert started(admit([room()], jobs(20), 0.0)) == 20
    assert started(admit([room(stable_bytes=None)], jobs(20), 0.0)) == 19


def test_a_batch_of_twenty_is_one_wave_and_25_are_two() -> None:
    assert started(admit([room()], jobs(20, is_batch=True), 0.0)) == 20
    assert started(admit([room(stable_bytes=None)], jobs(20, is_batch=True), 0.0)) == 10
    admission = admit([room()], jobs(25, is_batch=True), 0.0)
    assert started(admission) == 13
    assert {wait.cause for wait in admission.waits} == {Cause.WAVE}


def test_predicted_sizes_keep_their_headroom() -> None:
    assert started(admit([room()], jobs(20, declared=False), 0.0)) == 19


def test_beside_a_predicted_slice_of_the_same_round_headroom_stays() -> None:
    waiting = [*jobs(1, declared=False), *jobs(19)]
    assert started(admit([room()], waiting, 0.0)) == 19


def test_a_predicted_slice_does_not_join_those_that_use_headroom() -> None:
    used = room(granted_bytes=20 * P1_JOB_BYTES)
    assert started(admit([used], jobs(1, MIB, declared=False), 0.0)) == 0
    assert started(admit([used], jobs(1, MIB), 0.0)) == 1


def test_a_job_that_ends_gives_headroom_back_before_a_predicted_slice_counts_on_its_memory() -> None:
    used = room(granted_bytes=20 * P1_JOB_BYTES)
    ends = [(float(second), Held(f"job{second}", 0, (Slice("GPU-0", P1_JOB_BYTES),), 0.0)) for second in range(1, 21)]
    [predicted] = jobs(1, declared=False)
    found = reserve(predicted, [used.gpu], FreeCapacity.of([used]), ends, 0.0)
    assert found is not None
    assert found.start_seconds == 2.0


def test_a_gpu_with_room_is_taken_before_headroom_of_a_fuller_one() -> None:
    full, empty = room(granted_bytes=19 * P1_JOB_BYTES), room(1)
    assert [grant.slices[0].gpu_uuid for grant in admit([full, empty], jobs(1), 0.0).grants] == ["GPU-1"]


def test_a_job_that_waits_for_more_than_is_free_gives_no_negative_amounts() -> None:
    [wait] = admit([room(granted_bytes=20 * P1_JOB_BYTES)], jobs(1), 0.0).waits
    assert wait.reason == "waits for 1.18 GiB on one GPU: 0 B free of 22.99 GiB"


machines = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 20), st.none() | st.integers(0, 20), st.integers(0, 40)), max_size=4
).map(
    lambda parts: [
        room(
            index,
            gib * GIB,
            outsiders_bytes=outsiders * 50 * MIB,
            stable_bytes=None if stable is None else stable * 50 * MIB,
            granted_bytes=granted * GIB,
        )
        for index, (gib, outsiders, stable, granted) in enumerate(parts)
    ]
)
queues = st.lists(st.tuples(st.integers(1, 200), st.integers(1, 2), st.booleans()), max_size=14).map(
    lambda parts: [
        Candidate(f"job{number}", Request(sixteenths * GIB // 16, count), uses_headroom=declared)
        for number, (sixteenths, count, declared) in enumerate(parts)
    ]
)


@given(machines, queues)
def test_grants_stay_within_what_each_kind_of_slice_may_use(machine: list[GpuRoom], queue: list[Candidate]) -> None:
    admission = admit(machine, queue, 0.0)
    declared = {candidate.job_id: candidate.uses_headroom for candidate in queue}
    for each in machine:
        there = [grant.job_id for grant in admission.grants if any(p.gpu_uuid == each.gpu.uuid for p in grant.slices)]
        new_bytes = granted_bytes(admission, each.gpu.uuid)
        may_yield = all(declared[job_id] for job_id in there)
        most_bytes = each.capacity_bytes + (each.yielded_bytes if may_yield else 0)
        assert not there or each.granted_bytes + new_bytes <= most_bytes


@given(machines, queues)
def test_without_headroom_that_yields_nothing_is_granted_otherwise(
    machine: list[GpuRoom], queue: list[Candidate]
) -> None:
    fixed = [replace(each, yielded_bytes=0) for each in machine]
    plain = [replace(candidate, uses_headroom=False) for candidate in queue]
    assert admit(fixed, queue, 0.0).grants == admit(fixed, plain, 0.0).grants


@given(machines, queues)
def test_headroom_that_yields_never_lets_fewer_equal_jobs_start(machine: list[GpuRoom], queue: list[Candidate]) -> None:
    equal = [replace(candidate, request=Request(GIB), uses_headroom=True) for candidate in queue]
    fixed = [replace(each, yielded_bytes=0) for each in machine]
    assert started(admit(fixed, equal, 0.0)) <= started(admit(machine, equal, 0.0))
