"""Replays a day of jobs through the real `admit`: they arrive, wait, are granted memory, run and end.

Only time is simulated. The predicted durations may differ from the true ones, and companions may
slow jobs down. A grant above a GPU's memory and a job that is never granted are errors.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pgpu.engine.admission import queue_plan
from pgpu.model import Gpu, Request, SharingMode
from pgpu.scheduling import (
    NO_PRECEDENCE,
    Admission,
    Candidate,
    GpuRoom,
    Headroom,
    Held,
    OrderRules,
    Precedence,
    Quota,
    admit,
)
from pgpu.scheduling.admission import machine_of
from pgpu.scheduling.capacity import IDLE
from pgpu.scheduling.makespan import NOTHING_KNOWN, plan_waiting
from pgpu.scheduling.order import NO_PLAN, BatchPlan
from pgpu.scheduling.run_times import Slowdown, SlowdownCurve
from pgpu.scheduling.virtual_clocks import advance
from pgpu.structs import replace

Policy = Callable[[Sequence[GpuRoom], Sequence[Candidate], float, Sequence[Held], Precedence], Admission]
"""Rooms, queue, seconds, what is held, what the rounds before left → the jobs that start."""

_SOON_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class Arrival:
    """One job as it really is."""

    candidate: Candidate
    """Input of admission."""

    duration_seconds: float
    """Alone on its GPU."""

    used_bytes: int = 0
    """At its peak; 0 for all that it asked for."""


@dataclass(frozen=True, slots=True)
class Fate:
    """How a job fared; seconds of the replay."""

    came_seconds: float
    started_seconds: float
    ended_seconds: float
    together: float = 1.0
    """Jobs on its GPU while it ran, itself counted, on average."""

    @property
    def response_seconds(self) -> float:
        """From its arrival to its end."""
        return self.ended_seconds - self.came_seconds


class MemoryFailureError(AssertionError):
    """Jobs hold more than their GPU has: one of them would fail."""


class SharingFailureError(AssertionError):
    """Jobs are together on a GPU that may not be, or were promised more than all of its time."""


def replay(
    gpus: Sequence[Gpu],
    arrivals: Iterable[Arrival],
    policy: Policy,
    *,
    headroom: Headroom | None = None,
    slowdown: Slowdown | None = None,
    quotas: Mapping[int, Quota] | None = None,
) -> Mapping[str, Fate]:
    """Play until the last job has ended; `quotas` are those of the policy, by UID: use is charged by their weights.

    Raises:
        MemoryFailureError: A grant passed what a GPU has.
        SharingFailureError: A grant passed a GPU's time, or combined jobs of incompatible modes or users.
        RuntimeError: A job would wait for ever.
    """
    day = _Day(gpus, arrivals, headroom or Headroom(), slowdown, quotas or {})
    while not day.is_over:
        day.start(policy)
        day.go_on()
    return day.fates


def cards(count: int, memory_bytes: int) -> list[Gpu]:
    """Return so many equal GPUs that nothing but a replay knows."""
    return [
        Gpu(f"GPU-{index:08}-0000-0000-0000-000000000000", "replayed", index, memory_bytes, "", is_simulated=True)
        for index in range(count)
    ]


NO_HEADROOM = Headroom(0, 0.0)


@dataclass(slots=True)
class _Running:
    arrival: Arrival
    held: Held
    left_seconds: float
    """Of work, if it ran alone."""

    company_seconds: float = 0.0
    """Seconds so far, each counted for every job on its GPU."""


class _Day:
    """Everything at one moment of the replay."""

    def __init__(
        self,
        gpus: Sequence[Gpu],
        arrivals: Iterable[Arrival],
        headroom: Headroom,
        slowdown: Slowdown | None,
        quotas: Mapping[int, Quota],
    ) -> None:
        self.fates: dict[str, Fate] = {}
        self._gpus = gpus
        self._headroom = headroom
        self._slowdown = slowdown
        self._quotas = quotas
        self._machine = machine_of(self._rooms([]))
        self._coming = sorted(arrivals, key=lambda arrival: arrival.candidate.eligible_at_seconds)[::-1]
        self._waiting: dict[str, Arrival] = {}
        self._running: list[_Running] = []
        self._now_seconds = 0.0
        self._precedence = NO_PRECEDENCE
        self._let_in()

    @property
    def is_over(self) -> bool:
        return not (self._coming or self._waiting or self._running)

    def start(self, policy: Policy) -> None:
        """Run one round of admission, and verify its grants against the memory of each GPU."""
        held = [running.held for running in self._running]
        queue = [arrival.candidate for arrival in self._waiting.values()]
        admission = policy(self._rooms(held), queue, self._now_seconds, held, self._precedence)
        self._precedence = Precedence(admission.reservation, admission.time)
        for grant in admission.grants:
            arrival = self._waiting.pop(grant.job_id)
            candidate = arrival.candidate
            share = candidate.request.compute_share or 0.0
            job = Held(
                grant.job_id,
                candidate.owner_uid,
                grant.slices,
                self._now_seconds,
                share,
                candidate.duration_seconds,
                grant.mode,
                candidate.batch,
            )
            self._running.append(_Running(arrival, job, arrival.duration_seconds))
        self._check_memory()
        self._check_sharing()

    def go_on(self) -> None:
        """Jump to the next end or arrival."""
        paces = self._paces()
        next_end = min(
            (running.left_seconds * pace for running, pace in zip(self._running, paces, strict=True)), default=None
        )
        until_arrival = self._coming[-1].candidate.eligible_at_seconds - self._now_seconds if self._coming else None
        steps = [seconds for seconds in (next_end, until_arrival) if seconds is not None]
        if not steps:
            raise RuntimeError(f"{len(self._waiting)} jobs would wait for ever")
        self._advance(max(0.0, min(steps)), paces)
        self._let_in()

    def _advance(self, seconds: float, paces: Sequence[float]) -> None:
        self._now_seconds += seconds
        held = [running.held for running in self._running]
        time = advance(self._precedence.time, held, self._machine, self._quotas, seconds)
        self._precedence = replace(self._precedence, time=time)
        counts = self._counts()
        for running, pace in zip(self._running, paces, strict=True):
            running.left_seconds -= seconds / pace
            running.company_seconds += seconds * counts[running.held.slices[0].gpu_uuid]
        ended = [running for running in self._running if running.left_seconds <= _SOON_SECONDS]
        self._running = [running for running in self._running if running.left_seconds > _SOON_SECONDS]
        for running in ended:
            came_seconds, started_seconds = (
                running.arrival.candidate.eligible_at_seconds,
                running.held.granted_at_seconds,
            )
            together = running.company_seconds / max(self._now_seconds - started_seconds, _SOON_SECONDS)
            self.fates[running.held.job_id] = Fate(came_seconds, started_seconds, self._now_seconds, together)

    def _let_in(self) -> None:
        while self._coming and self._coming[-1].candidate.eligible_at_seconds <= self._now_seconds + _SOON_SECONDS:
            arrival = self._coming.pop()
            self._waiting[arrival.candidate.job_id] = arrival

    def _rooms(self, held: Sequence[Held]) -> list[GpuRoom]:
        granted = dict.fromkeys((gpu.uuid for gpu in self._gpus), 0)
        compute = dict.fromkeys(granted, 0.0)
        for each in held:
            for part in each.slices:
                granted[part.gpu_uuid] += part.memory_bytes
                compute[part.gpu_uuid] += each.compute_share
        tenancies = dict.fromkeys(granted, IDLE)
        for each in held:
            for part in each.slices:
                tenancies[part.gpu_uuid] = tenancies[part.gpu_uuid].with_job(each.mode, each.owner_uid)
        return [
            GpuRoom(gpu, self._headroom.of(gpu), 0, granted[gpu.uuid], compute[gpu.uuid], tenancies[gpu.uuid])
            for gpu in self._gpus
        ]

    def _counts(self) -> Mapping[str, int]:
        return Counter(part.gpu_uuid for running in self._running for part in running.held.slices)

    def _paces(self) -> list[float]:
        if self._slowdown is None:
            return [1.0] * len(self._running)
        counts = self._counts()
        return [max(self._slowdown(counts[part.gpu_uuid]) for part in running.held.slices) for running in self._running]

    def _check_memory(self) -> None:
        for gpu in self._gpus:
            held = sum(
                running.arrival.used_bytes or part.memory_bytes
                for running in self._running
                for part in running.held.slices
                if part.gpu_uuid == gpu.uuid
            )
            if held > gpu.memory_bytes:
                raise MemoryFailureError(f"{held} bytes on a GPU of {gpu.memory_bytes}")

    def _check_sharing(self) -> None:
        for gpu in self._gpus:
            there = [each.held for each in self._running if any(part.gpu_uuid == gpu.uuid for part in each.held.slices)]
            modes = {each.mode for each in there}
            users = {each.owner_uid for each in there if each.mode is SharingMode.MPS}
            if sum(each.compute_share for each in there) > 1 + _SOON_SECONDS or len(modes) > 1 or len(users) > 1:
                raise SharingFailureError(f"{there} are on one GPU")
            if SharingMode.EXCLUSIVE in modes and len(there) > 1:
                raise SharingFailureError(f"{there} are on a GPU that one of them has alone")


def default_objective(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    held: Sequence[Held],
    precedence: Precedence,
) -> Admission:
    """Admit as pgpu does by default: for response time."""
    return admit(rooms, queue, now_seconds, held=held, precedence=precedence)


def with_quotas(quotas: Mapping[int, Quota]) -> Policy:
    """Return the default objective where users have quotas and weights, by UID."""

    def policy(
        rooms: Sequence[GpuRoom],
        queue: Sequence[Candidate],
        now_seconds: float,
        held: Sequence[Held],
        precedence: Precedence,
    ) -> Admission:
        return admit(rooms, queue, now_seconds, held=held, quotas=quotas, precedence=precedence)

    return policy


_FOR_EVER_PATIENT = OrderRules(patience_seconds=math.inf)


def _oldest_first(queue: Sequence[Candidate]) -> list[Candidate]:
    """Give each a lower priority than the one before it."""
    return [
        replace(candidate, request=replace(candidate.request, priority=-place)) for place, candidate in enumerate(queue)
    ]


def easy(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    held: Sequence[Held],
    _precedence: Precedence = NO_PRECEDENCE,
) -> Admission:
    """Admit the oldest first, and jobs that do not delay it."""
    return admit(rooms, _oldest_first(queue), now_seconds, held=held, rules=_FOR_EVER_PATIENT)


def fifo(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    now_seconds: float,
    held: Sequence[Held],
    _precedence: Precedence = NO_PRECEDENCE,
) -> Admission:
    """Admit in order of arrival, without backfilling."""
    for count in range(len(queue) + 1):
        admission = easy(rooms, queue[:count], now_seconds, held)
        if len(admission.grants) < count:
            break
    return replace(admission, grants=admission.grants[: max(0, count - 1)] if admission.waits else admission.grants)


def in_order_of(key: Callable[[Candidate], float]) -> Policy:
    """Return a policy that starts whatever fits, the largest key first."""

    def policy(
        rooms: Sequence[GpuRoom],
        queue: Sequence[Candidate],
        now_seconds: float,
        held: Sequence[Held],
        _precedence: Precedence,
    ) -> Admission:
        order = tuple(candidate.job_id for candidate in sorted(queue, key=key, reverse=True))
        return admit(rooms, queue, now_seconds, held=held, plan=BatchPlan(order), rules=_FOR_EVER_PATIENT)

    return policy


def makespan_objective(
    effort: int,
    effort_again: int,
    *,
    slowdown: Slowdown | None = None,
    curves: Mapping[str, SlowdownCurve] = NOTHING_KNOWN,
    doubt: float = 0.0,
) -> Policy:
    """Return a policy that plans anew at each arrival and each end, from the plan before on and with less effort."""

    def plan(*situation: Any, last: BatchPlan, **known: Any) -> BatchPlan:
        spend = effort_again if last.order else effort
        return plan_waiting(*situation, slowdown=slowdown, curves=curves, doubt=doubt, last=last, effort=spend, **known)

    return _planning_anew(plan)


def as_the_engine(curves: Mapping[str, SlowdownCurve] = NOTHING_KNOWN) -> Policy:
    """Return a policy that plans as an agent with `objective = makespan` does, with what it would know of the jobs."""
    return _planning_anew(partial(queue_plan.plan_queue, curves=curves))


def _planning_anew(plan: Callable[..., BatchPlan]) -> Policy:
    """Return a policy that plans in each round, from the plan before on."""
    last = NO_PLAN

    def policy(
        rooms: Sequence[GpuRoom],
        queue: Sequence[Candidate],
        now_seconds: float,
        held: Sequence[Held],
        precedence: Precedence,
    ) -> Admission:
        nonlocal last
        last = plan(rooms, queue, now_seconds, held=held, last=last)
        return admit(rooms, queue, now_seconds, held=held, plan=last, precedence=precedence)

    return policy


def candidate_of(job_id: str, memory_bytes: int, came_seconds: float, predicted_seconds: float | None) -> Candidate:
    """Return one job on one GPU as a candidate of admission."""
    return Candidate(job_id, Request(memory_bytes), None, 0, came_seconds, predicted_seconds)
