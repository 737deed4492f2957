"""Batches that should end soonest: the play, the plan, and admission that follows it."""

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import Candidate, Cause, GpuRoom, Held, admit, expected_starts
from pgpu.scheduling.batch_simulation import BatchJob, RunningBatchJob, SimulatedBatch, simulate
from pgpu.scheduling.makespan import MOST_PLANNED, plan_batch, plan_waiting
from pgpu.scheduling.order import NO_PLAN, BatchPlan
from pgpu.scheduling.run_times import KNOWN, is_significantly_less, sample_left_seconds
from pgpu.units import GIB, MIB

CARD_BYTES = 24 * GIB
NOW = 10_000.0

P1_MOST_SECONDS = (
    8.502, 8.502, 8.535, 8.727, 8.932, 9.135, 9.21, 9.313, 9.182, 8.272, 8.454, 8.84, 9.131,
    9.651, 10.922, 10.401, 10.906, 15.053, 15.987, 16.632,
)  # fmt: skip
"""P1's table: by the number of jobs that run together, from 1 (taken as 2) on."""


def p1_slowdown(count: int) -> float:
    return P1_MOST_SECONDS[min(count, 20) - 1] / min(P1_MOST_SECONDS)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[BatchJob], list[int], list[RunningBatchJob]]:
    capacity = draw(st.lists(st.integers(4, 24).map(lambda gib: gib * GIB), min_size=1, max_size=3))
    jobs = [
        BatchJob(
            f"job{number}",
            draw(st.integers(0, max(capacity) // GIB)) * GIB,
            draw(st.integers(0, 100)) / 2,
            draw(st.sampled_from((0.0, 0.0, 0.1, 0.5, 1.0))),
            draw(st.sampled_from((0.0, 0.0, 3.0, 20.0))),
        )
        for number in range(draw(st.integers(0, 9)))
    ]
    busy = [
        RunningBatchJob(gpu, capacity[gpu] // 2, draw(st.integers(1, 50)), 1.0, 0.25)
        for gpu in draw(st.sets(st.just(0)))
    ]
    return jobs, capacity, busy


def over_capacity(batch: SimulatedBatch, starts: Sequence[float], ends: Sequence[float], gpus: Sequence[int]) -> bool:
    """Whether memory or compute of any GPU is exceeded when any job has just started."""
    for moment, (gpu, capacity) in itertools.product({0.0, *starts}, enumerate(batch.capacity_bytes)):
        at_work = [job for job, start in enumerate(starts) if gpus[job] == gpu and start <= moment < ends[job]]
        busy = [
            each
            for each, left in zip(batch.busy, batch.busy_left_seconds, strict=True)
            if each.gpu == gpu and moment < left
        ]
        memory = sum(batch.memory_bytes[job] for job in at_work) + sum(each.memory_bytes for each in busy)
        compute = sum(batch.compute_share[job] for job in at_work) + sum(each.compute_share for each in busy)
        if memory > capacity or compute > 1 + 1e-6:
            return True
    return False


@settings(max_examples=40)
@given(batches(), st.randoms(use_true_random=False))
def test_a_played_batch_never_exceeds_a_gpu_and_starts_every_job_once_it_came(
    drawn: tuple[list[BatchJob], list[int], list[RunningBatchJob]], dice: random.Random
) -> None:
    jobs, capacity, busy = drawn
    batch = SimulatedBatch.of(jobs, capacity, busy)
    order = dice.sample(range(len(jobs)), len(jobs))
    holds = {job: dice.randrange(len(jobs)) for job in order[::2]}
    played = simulate(batch, order, holds)
    assert not over_capacity(batch, played.starts_seconds, played.ends_seconds, played.gpus)
    for job, start, end in zip(jobs, played.starts_seconds, played.ends_seconds, strict=True):
        assert start >= job.release_seconds
        assert end == pytest.approx(start + job.duration_seconds)
    assert played.end_seconds >= batch.least_seconds() * (1 - 1e-9) or busy


@settings(max_examples=40)
@given(batches(), st.integers(1, 3))
def test_no_more_jobs_run_at_once_than_told(
    drawn: tuple[list[BatchJob], list[int], list[RunningBatchJob]], most_at_once: int
) -> None:
    jobs, capacity, _ = drawn
    played = simulate(SimulatedBatch.of(jobs, capacity), range(len(jobs)), {}, most_at_once)
    for moment, gpu in itertools.product(played.starts_seconds, range(len(capacity))):
        together = sum(
            start <= moment < end
            for start, end, place in zip(played.starts_seconds, played.ends_seconds, played.gpus, strict=True)
            if place == gpu
        )
        assert together <= most_at_once


@settings(deadline=None, max_examples=25)
@given(batches(), st.sampled_from((0.0, 0.7)))
def test_a_plan_names_every_job_once_is_the_same_each_time_and_no_worse_than_the_order_of_arrival(
    drawn: tuple[list[BatchJob], list[int], list[RunningBatchJob]], doubt: float
) -> None:
    jobs, capacity, busy = drawn
    plan = plan_batch(jobs, capacity, busy=busy, doubt=doubt, effort=600)
    assert sorted(plan.order) == sorted(job.job_id for job in jobs)
    assert plan == plan_batch(jobs, capacity, busy=busy, doubt=doubt, effort=600)
    if not doubt:
        assert plan.end_seconds <= simulate(SimulatedBatch.of(jobs, capacity, busy), range(len(jobs))).end_seconds
    assert plan.least_seconds <= max(plan.end_seconds, *(each.duration_seconds for each in busy), 0) + 1e-6


def test_durations_that_are_nearly_known_are_planned_as_known() -> None:
    jobs = random_jobs(4, 12)
    assert plan_batch(jobs, [CARD_BYTES], doubt=KNOWN, effort=900) == plan_batch(jobs, [CARD_BYTES], effort=900)


def test_gpus_of_which_outsiders_hold_everything_have_an_empty_plan() -> None:
    plan = plan_batch([], [0, 0])

    assert (plan.order, plan.end_seconds, plan.least_seconds) == ((), 0.0, 0.0)


def test_under_doubt_a_plan_ends_sooner_on_average_than_every_plain_order() -> None:
    ends: dict[str, float] = {}
    for seed in range(6):
        jobs = random_jobs(seed, 12)
        batch, places = SimulatedBatch.of(jobs, [CARD_BYTES]), range(len(jobs))
        places_of = {job.job_id: place for place, job in enumerate(jobs)}
        plan = plan_batch(jobs, [CARD_BYTES], doubt=0.5, effort=3000)
        futures = batch.sample_worlds(0.5, 64, random.Random(1000 + seed))
        orders = {
            "largest memory-time first": sorted(places, key=lambda job: -batch.work[job]),
            "longest first": sorted(places, key=lambda job: -batch.duration_seconds[job]),
            "largest first": sorted(places, key=lambda job: -batch.memory_bytes[job]),
        }
        holds = {places_of[job]: places_of[first] for job, first in plan.holds.items()}
        played = {name: [simulate(future, order).end_seconds for future in futures] for name, order in orders.items()}
        played["plan"] = [
            simulate(future, [places_of[job] for job in plan.order], holds).end_seconds for future in futures
        ]
        for name, each in played.items():
            ends[name] = ends.get(name, 0.0) + sum(each) / batch.least_seconds()
    assert ends["plan"] < min(end for name, end in ends.items() if name != "plan")


def test_under_doubt_nothing_replaces_largest_memory_time_first_without_being_surely_better() -> None:
    dice = random.Random(3)
    one_by_one = [BatchJob(f"job{number}", 20 * GIB, dice.lognormvariate(4, 0.8)) for number in range(8)]
    plan = plan_batch(one_by_one, [CARD_BYTES], doubt=0.5, effort=3000)
    by_length = sorted(one_by_one, key=lambda job: -job.duration_seconds)
    assert plan.order == tuple(job.job_id for job in by_length)


def test_chance_is_not_taken_for_an_advantage() -> None:
    dice = random.Random(2)
    ends = [dice.lognormvariate(3, 0.3) for _ in range(64)]
    assert not is_significantly_less(ends, ends)
    assert not is_significantly_less([end * dice.lognormvariate(0, 0.1) for end in ends], ends)
    assert is_significantly_less([0.97 * end * dice.lognormvariate(0, 0.03) for end in ends], ends)
    assert not is_significantly_less(ends, [0.97 * end for end in ends])


def random_jobs(seed: int, count: int) -> list[BatchJob]:
    dice = random.Random(seed)
    return [BatchJob(f"job{number}", dice.randint(2, 18) * GIB, dice.lognormvariate(4, 0.8)) for number in range(count)]


@settings(deadline=None, max_examples=12)
@given(st.lists(st.tuples(st.integers(1, 24), st.integers(1, 30)), min_size=1, max_size=5))
def test_a_plan_of_few_jobs_is_as_good_as_the_best_of_all_orders(pairs: list[tuple[int, int]]) -> None:
    jobs = [BatchJob(f"job{number}", gib * GIB, seconds) for number, (gib, seconds) in enumerate(pairs)]
    batch = SimulatedBatch.of(jobs, [CARD_BYTES])
    best = min(simulate(batch, order).end_seconds for order in itertools.permutations(range(len(jobs))))
    assert batch.least_seconds() <= best * (1 + 1e-9)
    assert plan_batch(jobs, [CARD_BYTES], effort=3000).end_seconds <= best * (1 + 1e-9)


def test_the_papers_25_jobs_end_soonest_as_13_and_12() -> None:
    jobs = [BatchJob(f"job{number}", 1205 * MIB, min(P1_MOST_SECONDS)) for number in range(25)]
    plan = plan_batch(jobs, [24_265 * MIB], slowdown=p1_slowdown, effort=5000)
    assert plan.end_seconds <= 1.001 * 17.971
    filled = plan_batch(jobs, [24_265 * MIB], effort=5000)
    assert filled.most_at_once == 0


def test_a_long_job_that_comes_later_finds_its_memory_free_if_others_let_it_start_first() -> None:
    jobs = [
        BatchJob("first", 10 * GIB, 30),
        BatchJob("long", 20 * GIB, 100, release_seconds=10),
        BatchJob("last", 10 * GIB, 30, release_seconds=105),
    ]
    plan = plan_batch(jobs, [CARD_BYTES], effort=600)
    assert plan.holds == {"first": "long"}
    assert plan.end_seconds == pytest.approx(140)


def test_a_job_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="job7 fits on none of 2 GPUs"):
        plan_batch([BatchJob("job7", 25 * GIB, 1)], [CARD_BYTES, GIB])


def test_effort_bounds_the_search() -> None:
    dice = random.Random(4)
    jobs = [BatchJob(f"job{number}", dice.randint(1, 12) * GIB, dice.uniform(1, 99)) for number in range(30)]
    ends = [plan_batch(jobs, [CARD_BYTES], effort=effort).end_seconds for effort in (0, 300, 9_000)]
    assert ends == sorted(ends, reverse=True)
    assert ends[2] < ends[0]


@given(st.floats(0.1, 1e4), st.floats(0, 1e6), st.floats(0.05, 2))
def test_what_may_be_left_of_a_run_is_never_negative_and_has_its_prediction_in_the_middle(
    duration: float, elapsed: float, doubt: float
) -> None:
    draws = sample_left_seconds(duration, elapsed, doubt, 9, random.Random(1))
    assert len(draws) == 9
    assert min(draws) >= 0
    if not elapsed:
        assert sorted(draws)[4] == pytest.approx(duration)


def room(index: int = 0, granted_gib: int = 0) -> GpuRoom:
    gpu = Gpu(f"GPU-{index}", "Test", index, CARD_BYTES, "1.0", is_simulated=False)
    return GpuRoom(gpu, 0, 0, granted_gib * GIB)


def waits(name: str, gib: int, *, lasts: float = 60, gpus: int = 1, priority: int = 0, waited: float = 0) -> Candidate:
    return Candidate(name, Request(gib * GIB, gpus, priority=priority), None, 0, NOW - waited, lasts)


def test_admission_follows_the_plan_and_says_why_a_job_that_fits_waits() -> None:
    queue = [waits("short", 2), waits("held", 2), waits("long", 20)]
    plan = BatchPlan(("long", "held", "short"), holds={"held": "long"})
    admission = admit([room(granted_gib=8)], queue, NOW, plan=plan)
    assert [grant.job_id for grant in admission.grants] == ["short"]
    assert {wait.job_id: wait.cause for wait in admission.waits} == {"long": Cause.MEMORY, "held": Cause.PLAN}
    assert "its batch ends sooner if it starts later" in admission.waits[1].reason
    assert [grant.job_id for grant in admit([room()], queue, NOW, plan=plan).grants] == ["long", "held", "short"]


def test_no_more_jobs_share_a_gpu_than_the_plan_says() -> None:
    held = [Held("running", 0, (Slice("GPU-0", 2 * GIB),), NOW)]
    queue = [waits(f"job{number}", 2) for number in range(4)]
    plan = BatchPlan(tuple(each.job_id for each in queue), most_at_once=2)
    admission = admit([room(granted_gib=2), room(1)], queue, NOW, held=held, plan=plan)
    assert sorted(part.gpu_uuid for grant in admission.grants for part in grant.slices) == ["GPU-0", "GPU-1", "GPU-1"]
    assert [wait.cause for wait in admission.waits] == [Cause.PLAN]


def test_a_priority_goes_before_the_plan_and_whoever_is_overdue_before_both() -> None:
    queue = [waits("first", 20), waits("urgent", 20, priority=1)]
    plan = BatchPlan(("first", "urgent"))
    assert admit([room()], queue, NOW, plan=plan).grants[0].job_id == "urgent"
    queue.append(waits("overdue", 20, waited=2000))
    assert admit([room()], queue, NOW, plan=plan).grants[0].job_id == "overdue"


def test_what_no_plan_names_goes_before_planned_jobs_of_lower_priority_and_after_those_of_its_own() -> None:
    low = [waits(f"low{number}", 12, priority=-50) for number in range(4)]
    machine = [room(), room(index=1)]
    for priority, names in ((50, ["wide", "low0", "low1"]), (-50, ["low0", "low1", "low2", "low3"])):
        queue = [waits("wide", 12, gpus=2, priority=priority), *low]
        admission = admit(machine, queue, NOW, plan=BatchPlan(("low0", "low1", "low2", "low3")))
        assert [grant.job_id for grant in admission.grants] == names


def test_memory_is_kept_for_what_no_plan_names_from_planned_jobs_of_lower_priority() -> None:
    running = Held("running", 0, (Slice("GPU-1", 20 * GIB),), NOW - 60, 0.0, 600.0)
    machine = [room(), room(1, granted_gib=20)]
    queue = [waits("wide", 20, gpus=2, priority=50), waits("low", 12, lasts=6000, priority=-50)]
    assert not admit(machine, queue, NOW, held=[running], plan=BatchPlan(("low",))).grants


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 500), st.integers(1, 2)), max_size=12),
    st.lists(st.integers(1, 24), max_size=2),
)
def test_planned_admission_never_grants_past_memory_and_forgets_nobody(
    asked: list[tuple[int, int, int]], running: list[int]
) -> None:
    rooms = [room(index, gib) for index, gib in enumerate([*running, 0, 0][:2])]
    held = [Held(f"old{gpu}", 0, (Slice(f"GPU-{gpu}", gib * GIB),), NOW - 9) for gpu, gib in enumerate(running)]
    queue = [waits(f"job{place}", gib, lasts=lasts, gpus=gpus) for place, (gib, lasts, gpus) in enumerate(asked)]
    plan = plan_waiting(rooms, queue, NOW, held=held, effort=500)
    admission = admit(rooms, queue, NOW, held=held, plan=plan)
    for each in rooms:
        granted = [part for grant in admission.grants for part in grant.slices if part.gpu_uuid == each.gpu.uuid]
        assert sum(part.memory_bytes for part in granted) <= each.free_bytes
    answered = [*(grant.job_id for grant in admission.grants), *(wait.job_id for wait in admission.waits)]
    assert sorted(answered) == sorted(candidate.job_id for candidate in queue)


def test_of_a_long_queue_the_largest_are_planned_and_the_others_go_after_them() -> None:
    queue = [waits(f"job{number}", 1 + number % 20, lasts=1 + number) for number in range(MOST_PLANNED + 50)]
    plan = plan_waiting([room()], queue, NOW, effort=0)
    assert sorted(plan.order) == sorted(candidate.job_id for candidate in queue)
    assert "job0" in plan.order[MOST_PLANNED:]


def test_a_plan_that_is_made_again_is_no_worse_than_the_one_before() -> None:
    dice = random.Random(4)
    jobs = [BatchJob(f"job{number}", dice.randint(1, 12) * GIB, dice.uniform(1, 99)) for number in range(30)]
    long_sought = plan_batch(jobs, [CARD_BYTES], effort=9000)
    again = plan_batch(jobs, [CARD_BYTES], last=long_sought, effort=0)
    assert again.end_seconds <= long_sought.end_seconds
    with_a_new_job = [BatchJob("new", GIB, 1), *jobs[3:]]
    plan = plan_batch(with_a_new_job, [CARD_BYTES], last=long_sought, effort=0)
    assert sorted(plan.order) == sorted(job.job_id for job in with_a_new_job)


def test_expected_starts_follow_the_plan() -> None:
    queue = [waits("short", 20, lasts=10), waits("long", 20, lasts=100)]
    plan = BatchPlan(("long", "short"))

    def start_times(plan: BatchPlan) -> dict[str, float]:
        return {job_id: start.at_seconds for job_id, start in expected_starts([room()], queue, NOW, plan=plan).items()}

    assert start_times(plan) == {"long": NOW, "short": NOW + 100}
    assert start_times(NO_PLAN) == {"short": NOW, "long": NOW + 10}
