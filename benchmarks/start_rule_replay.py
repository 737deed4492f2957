"""Jobs on busy GPUs, replayed in time steps with the rule of `start_rule` or with filled GPUs; what is known of them is an input.

Programs have run before, so lengths and demands are known. A law maps the programs that compute on one GPU to how many times
longer each of them runs.
"""

import random
from collections.abc import Callable, Sequence
from statistics import fmean

from pgpu.model import Gpu, Objective, Request
from pgpu.scheduling import Candidate, GpuRoom, Held, admit
from pgpu.scheduling.admission_round import PredictSlowdowns, predict_nothing
from pgpu.scheduling.start_rule import hold_end_seconds
from pgpu.structs import Struct, replace
from pgpu.units import GIB

TICK_SECONDS = 10.0
START_UP_SECONDS = 2.5
MEASURED_AFTER_SECONDS = 3.5
GPU_GIB = 24


class Kind(Struct, frozen=True):
    """A program."""

    demand: float
    gib: int
    seconds: float
    """Of GPU work alone, start-up not counted."""

    name: str = ""
    """Of its profile; empty without."""


Law = Callable[[Sequence[Kind]], Sequence[float]]


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
        candidate = replace(candidate, profiled=(kind.name, 0) if kind.name else None)
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

    def __init__(
        self,
        coming: Sequence[Arrival],
        law: Law,
        gpus: int,
        objective: Objective,
        predict: PredictSlowdowns = predict_nothing,
    ) -> None:
        self.responses: dict[str, float] = {}
        self.end = 0.0
        self._gpus = [
            Gpu(f"GPU-{index}", "Test", index, GPU_GIB * GIB, "1.0", is_simulated=True) for index in range(gpus)
        ]
        self._law = law
        self._predict = predict
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
        admission = admit(rooms, queue, now, held=held, predict=self._predict)
        for grant in admission.grants:
            arrival = self._waiting.pop(grant.job_id)
            known = arrival.candidate
            started = Held(
                known.job_id,
                known.owner_uid,
                grant.slices,
                now,
                duration_seconds=known.duration_seconds,
                mode=grant.mode,
                usual_demand=known.usual_demand,
                profiled=known.profiled,
            )
            self._running[grant.job_id] = _Running(started, arrival.kind, arrival.work_seconds)
        self._check(now, holds_back=admission.holds_back)
        return admission.holds_back

    def _check(self, now: float, *, holds_back: bool) -> None:
        used = {each.held.slices[0].gpu_uuid for each in self._running.values()}
        if self._waiting and len(used) < len(self._gpus):
            raise AssertionError("a GPU is idle while a job waits that fits")
        if holds_back and all(now >= hold_end_seconds(arrival.candidate) for arrival in self._waiting.values()):
            raise AssertionError("a job is held back for longer than it may be")

    def _go_on(self, *, holds_back: bool) -> None:
        now = self.end
        until = [self._coming[0].candidate.eligible_at_seconds] if self._coming else []
        paces: dict[str, float] = {}
        for gpu in self._gpus:
            there = {job_id: each for job_id, each in self._running.items() if each.held.slices[0].gpu_uuid == gpu.uuid}
            computing = {job_id: each for job_id, each in there.items() if each.computes(now)}
            stretches = self._law([each.kind for each in computing.values()])
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
