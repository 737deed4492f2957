"""Jobs of many submissions on busy GPUs, replayed in time steps: with the rule of `start_rule` against filled GPUs.

Programs have run before, so lengths and demands are known. A law maps the demands of the jobs that compute on one GPU to how many
times longer each of them runs.
"""

import random
from collections.abc import Callable, Sequence
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.model import Gpu, Objective, Request
from pgpu.scheduling import Candidate, GpuRoom, Held, admit
from pgpu.scheduling.start_rule import hold_end_seconds
from pgpu.structs import Struct, replace
from pgpu.units import GIB

TICK_SECONDS = 10.0
START_UP_SECONDS = 2.5
MEASURED_AFTER_SECONDS = 3.5
GPU_GIB = 24

Law = Callable[[Sequence[float]], list[float]]


def linear(demands: Sequence[float]) -> list[float]:
    return [max(1.0, sum(demands))] * len(demands)


def super_linear(demands: Sequence[float]) -> list[float]:
    return [max(1.0, sum(demands) ** 1.3)] * len(demands)


def max_min(demands: Sequence[float]) -> list[float]:
    """Light jobs are not slowed down."""
    left, rest, level = 1.0, len(demands), 1.0
    for demand in sorted(demands):
        if demand > left / rest:
            level = left / rest
            break
        left, rest = left - demand, rest - 1
    return [max(1.0, demand / level) for demand in demands]


def no_contention(demands: Sequence[float]) -> list[float]:
    return [1.0] * len(demands)


class Kind(Struct, frozen=True):
    """A program."""

    demand: float
    gib: int
    seconds: float
    """Of GPU work alone, start-up not counted."""


SMALL = [
    *(Kind(0.02, 1, 30), Kind(0.05, 1, 120), Kind(0.1, 2, 60), Kind(0.25, 2, 300)),
    *(Kind(0.5, 2, 180), Kind(0.8, 2, 600), Kind(0.95, 2, 900)),
]
HEAVY = [Kind(0.5, 2, 300), Kind(1.0, 2, 300), Kind(1.0, 1, 120), Kind(0.8, 1, 600)]
LIGHT = [replace(kind, demand=0.01) for kind in SMALL]
LIMITED_BY_MEMORY = [
    *(Kind(0.02, 1, 30), Kind(0.05, 2, 120), Kind(0.1, 3, 60), Kind(0.25, 4, 300)),
    *(Kind(0.5, 6, 180), Kind(0.8, 5, 600), Kind(0.95, 8, 900)),
]


class Arrival(Struct, frozen=True):
    """One job as it really is, and as the rule knows it."""

    kind: Kind
    work_seconds: float
    candidate: Candidate


def arrivals(
    kinds: Sequence[Kind], count: int, seed: int, *, load: float | None = None, error: float = 0.0
) -> list[Arrival]:
    """Return jobs that all come at second 0, or with this mean load of a GPU; known demands are off by up to `error`."""
    dice, now, found = random.Random(seed), 0.0, []
    gap_seconds = 0.0 if load is None else fmean(kind.demand * kind.seconds for kind in kinds) / load
    for number in range(count):
        kind = dice.choice(kinds)
        work_seconds = kind.seconds * dice.lognormvariate(0, 0.3)
        now += dice.expovariate(1 / gap_seconds) if gap_seconds else 0.0
        # Averages over a run contain its start-up.
        usual = kind.demand * kind.seconds / (kind.seconds + START_UP_SECONDS) * (1 + dice.uniform(-error, error))
        candidate = Candidate(f"job{number}", Request(kind.gib * GIB), None, 0, now, kind.seconds, usual_demand=usual)
        found.append(Arrival(kind, work_seconds, candidate))
    return found


class _Running(Struct):
    held: Held
    kind: Kind
    left_seconds: float

    def computes(self, now: float) -> bool:
        return now >= self.held.granted_at_seconds + START_UP_SECONDS - 1e-9


class Replay:
    """One run of the clock to the last end."""

    def __init__(self, coming: Sequence[Arrival], law: Law, gpus: int, objective: Objective) -> None:
        self.responses: dict[str, float] = {}
        self.end = 0.0
        self._gpus = [
            Gpu(f"GPU-{index}", "Test", index, GPU_GIB * GIB, "1.0", is_simulated=True) for index in range(gpus)
        ]
        self._law = law
        self._coming = [
            replace(
                each, candidate=replace(each.candidate, request=replace(each.candidate.request, objective=objective))
            )
            for each in coming
        ]
        self._waiting: dict[str, Arrival] = {}
        self._running: dict[str, _Running] = {}
        self._came = {each.candidate.job_id: each.candidate.eligible_at_seconds for each in coming}
        while self._coming or self._waiting or self._running:
            self._arrive()
            holds_back = self._start()
            self._go_on(holds_back=holds_back)

    @property
    def mean(self) -> float:
        return fmean(self.responses.values())

    def _arrive(self) -> None:
        while self._coming and self._coming[0].candidate.eligible_at_seconds <= self.end + 1e-9:
            arrival = self._coming.pop(0)
            self._waiting[arrival.candidate.job_id] = arrival

    def _start(self) -> bool:
        now = self.end
        held = [
            replace(each.held, demand=each.kind.demand)
            if now - each.held.granted_at_seconds >= MEASURED_AFTER_SECONDS
            else each.held
            for each in self._running.values()
        ]
        taken = {gpu.uuid: 0 for gpu in self._gpus}
        for each in held:
            taken[each.slices[0].gpu_uuid] += each.slices[0].memory_bytes
        rooms = [GpuRoom(gpu, 0, 0, taken[gpu.uuid]) for gpu in self._gpus]
        queue = [arrival.candidate for arrival in self._waiting.values()]
        admission = admit(rooms, queue, now, held=held)
        for grant in admission.grants:
            arrival = self._waiting.pop(grant.job_id)
            known = arrival.candidate
            started = Held(
                known.job_id,
                known.owner_uid,
                grant.slices,
                now,
                duration_seconds=known.duration_seconds,
                usual_demand=known.usual_demand,
            )
            self._running[grant.job_id] = _Running(started, arrival.kind, arrival.work_seconds)
        self._check(admission.holds_back, now)
        return admission.holds_back

    def _check(self, holds_back: bool, now: float) -> None:
        used = {each.held.slices[0].gpu_uuid for each in self._running.values()}
        if self._waiting:
            assert used == {gpu.uuid for gpu in self._gpus}, "no GPU is idle while a job waits that fits"
        if holds_back:
            may_wait = [now < hold_end_seconds(arrival.candidate) for arrival in self._waiting.values()]
            assert any(may_wait), "nothing is held back for longer than that"

    def _go_on(self, *, holds_back: bool) -> None:
        now = self.end
        until = [self._coming[0].candidate.eligible_at_seconds] if self._coming else []
        paces: dict[str, float] = {}
        for gpu in self._gpus:
            there = {job_id: each for job_id, each in self._running.items() if each.held.slices[0].gpu_uuid == gpu.uuid}
            computing = {job_id: each for job_id, each in there.items() if each.computes(now)}
            stretches = self._law([each.kind.demand for each in computing.values()])
            paces |= dict(zip(computing, (1 / each for each in stretches), strict=True))
            until += [
                now + each.left_seconds / paces[job_id]
                if job_id in computing
                else each.held.granted_at_seconds + START_UP_SECONDS
                for job_id, each in there.items()
            ]
        self.end = min([*until, now + TICK_SECONDS] if holds_back else until)
        for job_id, pace in paces.items():
            job = self._running[job_id]
            job.left_seconds -= (self.end - now) * pace
            if job.left_seconds <= 1e-6:
                del self._running[job_id]
                self.responses[job_id] = self.end - self._came[job_id]


def ratios(jobs: Sequence[Arrival], law: Law, gpus: int = 1) -> tuple[float, float]:
    """Return mean response and end with the rule, over those with filled GPUs."""
    rule, filled = (Replay(jobs, law, gpus, objective) for objective in (Objective.RESPONSE, Objective.SOONEST))
    return rule.mean / filled.mean, rule.end / filled.end


@pytest.mark.parametrize(
    ("kinds", "law", "most"),
    [
        (SMALL, linear, 0.99),
        (SMALL, super_linear, 0.99),
        (SMALL, max_min, 1.0),
        (HEAVY, linear, 0.96),
        (HEAVY, super_linear, 0.92),
        (HEAVY, max_min, 0.95),
        ([Kind(1.0, 1, 300)], linear, 1.0),
        (LIMITED_BY_MEMORY, linear, 1.02),
        (LIMITED_BY_MEMORY, super_linear, 1.02),
        (LIMITED_BY_MEMORY, max_min, 1.02),
    ],
)
def test_jobs_that_came_together_end_earlier_on_average_where_time_is_short(
    kinds: Sequence[Kind], law: Law, most: float
) -> None:
    """Where memory is what they wait for, the rule changes little."""
    found = [ratios(arrivals(kinds, 40, seed), law) for seed in range(3)]
    assert fmean(mean for mean, _ in found) <= most
    assert fmean(end for _, end in found) <= 1.03


@pytest.mark.parametrize("law", [linear, super_linear, max_min])
def test_a_stream_of_jobs_is_served_earlier_on_average(law: Law) -> None:
    found = [ratios(arrivals(SMALL, 60, seed, load=0.9), law) for seed in range(3)]
    assert fmean(mean for mean, _ in found) <= 0.97
    assert fmean(end for _, end in found) <= 1.03


def test_a_stream_of_short_jobs_at_most_doubles_the_response_of_a_job_of_another_user() -> None:
    """Jobs of 20 s are never held back, and memory takes four of them: the GPU is never less busy."""
    short = Candidate("", Request(5 * GIB), duration_seconds=20.0, usual_demand=0.9)
    jobs = [Arrival(Kind(0.9, 5, 20), 20.0, replace(short, job_id=f"short{number}")) for number in range(150)]
    long = Candidate("long", Request(4 * GIB), owner_uid=1, duration_seconds=300.0, usual_demand=0.9)
    jobs.append(Arrival(Kind(0.9, 4, 300), 300.0, long))
    held, soonest = (
        Replay(jobs, linear, 1, each).responses["long"] for each in (Objective.RESPONSE, Objective.SOONEST)
    )
    assert held <= 2 * soonest


def test_demands_that_are_off_by_a_third_are_good_enough() -> None:
    found = [ratios(arrivals(SMALL, 40, seed, error=0.33), linear) for seed in range(3)]
    assert fmean(mean for mean, _ in found) <= 0.99


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), gpus=st.integers(1, 3), count=st.integers(1, 40))
def test_light_jobs_that_do_not_contend_end_as_with_filled_gpus(seed: int, gpus: int, count: int) -> None:
    mean, end = ratios(arrivals(LIGHT, count, seed), no_contention, gpus)
    assert mean <= 1.02
    assert end <= 1.02


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 10_000),
    gpus=st.integers(1, 2),
    law=st.sampled_from([linear, super_linear, max_min, no_contention]),
)
def test_no_gpu_is_idle_and_no_job_is_held_for_longer_than_it_may_be(seed: int, gpus: int, law: Law) -> None:
    """`Replay` checks it in each round."""
    jobs = arrivals([*SMALL, Kind(1.0, 1, 7200)], 20, seed)
    assert len(Replay(jobs, law, gpus, Objective.RESPONSE).responses) == 20
