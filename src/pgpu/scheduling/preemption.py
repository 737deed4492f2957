"""Which running jobs are suspended for a waiting one of a higher priority that asked for that.

Of a suspended job the GPU does no work, and what of its memory can be moved to the host makes room there; it keeps its claim
to both and goes on when whoever took its place has ended. It refuses to suspend anybody in vain, or for an equal, and one
that has just come back.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from pgpu.model import SharingMode, SharingWish, Slice
from pgpu.scheduling.admission_round import Admission, Candidate, Cause, Grant, Held, Wait
from pgpu.scheduling.capacity import IDLE, GpuRoom, taken_bytes

REARM_SECONDS = 60.0
"""So long after a job went on it is not suspended again: two jobs that chase each other would only move memory."""

_ROOM = {Cause.MEMORY, Cause.COMPUTE, Cause.TURN}


@dataclass(frozen=True, slots=True)
class Victim:
    """A running job on one GPU, as far as suspending it goes."""

    job_id: str
    gpu_uuid: str
    priority: int
    granted_at_seconds: float
    frees_bytes: int
    """What it holds of the GPU for good, less what cannot be moved to the host."""

    frees_compute: float = 0.0
    resumed_at_seconds: float | None = None
    """When it went on after it had been suspended; None if it never was."""

    def lost(self, now_seconds: float) -> float:
        """Memory times the time that it has run: what is put off by suspending it."""
        return self.frees_bytes * (now_seconds - self.granted_at_seconds)


def preempt(
    admission: Admission,
    queue: Sequence[Candidate],
    rooms: Sequence[GpuRoom],
    victims: Sequence[Victim],
    now_seconds: float,
) -> Admission:
    """Let the first who may preempt start, if suspending others makes room for it.

    Pure. One job in a round: the next round sees what came of it.

    Args:
        admission: What was decided without anybody being suspended.
        queue: The candidates that it was decided of.
        rooms: The GPUs that it was decided on.
        victims: Every job that might be suspended.
        now_seconds: Seconds since the epoch.

    Returns:
        The same where nobody is suspended.
    """
    asking = {each.job_id: each for each in queue if each.request.preempts}
    if not asking or not victims:
        return admission
    free = _left(rooms, admission.grants)
    for wait in admission.waits:
        candidate = asking.get(wait.job_id)
        found = None if candidate is None or wait.cause not in _ROOM else _place(candidate, free, victims, now_seconds)
        if candidate is not None and found is not None:
            return _suspending(admission, wait, candidate, *found)
    return admission


@dataclass(frozen=True, slots=True)
class _Free:
    room: GpuRoom
    memory_bytes: int
    compute: float


def _left(rooms: Sequence[GpuRoom], grants: Iterable[Grant]) -> list[_Free]:
    """What the round before has left on each GPU, and of GPUs whose jobs share them in turns."""
    parts = list(chain.from_iterable(grant.slices for grant in grants))
    found = []
    for room in rooms:
        if room.tenancy == IDLE or room.tenancy.mode is not SharingMode.TIME_SLICE or room.gpu.is_instance:
            continue
        taken = [part for part in parts if part.gpu_uuid == room.gpu.uuid]
        memory_bytes = room.capacity_bytes - room.granted_bytes - sum(part.memory_bytes for part in taken)
        compute = 1.0 - room.granted_compute - sum(part.compute_share or 0.0 for part in taken)
        found.append(_Free(room, memory_bytes, compute))
    return found


def _place(
    candidate: Candidate, free: Sequence[_Free], victims: Sequence[Victim], now_seconds: float
) -> tuple[GpuRoom, tuple[str, ...]] | None:
    """The GPU on which least is lost, and who is suspended there."""
    request = candidate.request
    if request.gpu_count != 1 or request.sharing not in {SharingWish.TIME_SLICE, SharingWish.AUTO}:
        return None
    found = []
    for each in (each for each in free if candidate.can_use(each.room.gpu)):
        there = [victim for victim in victims if victim.gpu_uuid == each.room.gpu.uuid]
        chosen = _chosen(candidate, each, there, now_seconds)
        if chosen:
            lost = sum(victim.lost(now_seconds) for victim in chosen)
            key = (max(victim.priority for victim in chosen), lost, each.room.gpu.index)
            found.append((key, each.room, tuple(victim.job_id for victim in chosen)))
    return min(found, key=lambda each: each[0])[1:] if found else None


def _chosen(candidate: Candidate, free: _Free, victims: Sequence[Victim], now_seconds: float) -> list[Victim]:
    """As few as make room: those of the lowest priority, of these the youngest, first. Nobody where all are not enough."""
    may = [victim for victim in victims if _may_suspend(victim, candidate, now_seconds)]
    may.sort(key=lambda each: (each.priority, -each.granted_at_seconds, each.lost(now_seconds), each.job_id))
    chosen: list[Victim] = []
    for victim in may:
        if _has_room(candidate, free, chosen):
            break
        chosen.append(victim)
    if not _has_room(candidate, free, chosen):
        return []
    for victim in reversed(chosen.copy()):
        rest = [each for each in chosen if each is not victim]
        if _has_room(candidate, free, rest):
            chosen = rest
    return chosen


def _may_suspend(victim: Victim, candidate: Candidate, now_seconds: float) -> bool:
    is_settled = victim.resumed_at_seconds is None or now_seconds - victim.resumed_at_seconds >= REARM_SECONDS
    return victim.priority < candidate.request.priority and is_settled


def _has_room(candidate: Candidate, free: _Free, chosen: Sequence[Victim]) -> bool:
    memory_bytes = free.memory_bytes + sum(victim.frees_bytes for victim in chosen)
    compute = free.compute + sum(victim.frees_compute for victim in chosen)
    wanted = candidate.request.compute_share or 0.0
    return candidate.request.memory_bytes <= memory_bytes and wanted <= compute + 1e-9


def _suspending(
    admission: Admission, wait: Wait, candidate: Candidate, room: GpuRoom, job_ids: tuple[str, ...]
) -> Admission:
    request = candidate.request
    part = Slice(room.gpu.uuid, request.memory_bytes, request.compute_share)
    return replace(
        admission,
        grants=(*admission.grants, Grant(candidate.job_id, (part,))),
        waits=[each for each in admission.waits if each.job_id != wait.job_id],
        suspended=tuple((job_id, candidate.job_id) for job_id in job_ids),
    )


Play = Callable[[Sequence[GpuRoom], Sequence[Candidate], Sequence[Held]], Admission]
"""Plays a round on rooms that may be emptier and a queue that may be shorter than they are."""


@dataclass(frozen=True, slots=True)
class EvictableLease:
    """An idle lease that its holder does without if somebody needs it."""

    job_id: str
    priority: int
    """As of its request: nobody of a lower one gets it."""

    value: float
    """What it saves to keep it, 0 or more, in any unit that all holders share, such as seconds of waiting to be expected."""


@dataclass(frozen=True, slots=True)
class ReclaimedRound:
    """What a round comes to with the leases that are taken."""

    admission: Admission
    rooms: Sequence[GpuRoom]
    """As they are once those leases are gone: what the grants were made on."""


def reclaim_leases(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    held: Sequence[Held],
    offers: Sequence[EvictableLease],
    play: Play,
) -> ReclaimedRound:
    """Decide a round, and take as few and as cheap of the offered leases as let more of the queue start.

    Pure. Cheap is a low value for each byte that becomes free. Jobs of the highest priority are looked at first.

    Args:
        rooms: Every GPU.
        queue: Who waits, oldest first.
        held: Who holds leases, those on offer among them.
        offers: Which of these may be taken.
        play: Decides a round.
    """
    machine = _Machine(rooms, queue, {each.job_id: each for each in held}, play)
    before = machine.played(frozenset())
    taken, admission = _taken(machine, offers, before)
    while taken and (dear := _past_their_priority(machine, offers, before, admission)) & taken:
        offers = [each for each in offers if each.job_id not in dear]
        taken, admission = _taken(machine, offers, before)
    return ReclaimedRound(replace(admission, reclaimed=tuple(sorted(taken))), machine.rooms_without(taken))


def _taken(
    machine: "_Machine", offers: Sequence[EvictableLease], admission: Admission
) -> tuple[frozenset[str], Admission]:
    """Return what is taken, and the round that is played without it; `admission` is the one with everything there."""
    taken, steps = frozenset[str](), 0
    while offers and (more := machine.one_step(offers, taken, admission)):
        taken, steps = taken | more, steps + 1
        admission = machine.played(taken)
    if steps > 1:  # a later one may have made needless what an earlier one took
        taken = machine.without_the_vain(taken, offers, admission)
        admission = machine.played(taken)
    return taken, admission


def _past_their_priority(
    machine: "_Machine", offers: Sequence[EvictableLease], before: Admission, after: Admission
) -> frozenset[str]:
    """Return the offers of a higher priority than any job has that gains: of several steps one can undo what another gave."""
    gained = _started(after) - _started(before)
    most = max(each.request.priority for each in machine.queue if each.job_id in gained) if gained else _LEAST
    return frozenset(each.job_id for each in offers if each.priority > most)


_LEAST = -1_000_000
"""Less than any priority."""


def _priorities(admission: Admission, queue: Sequence[Candidate]) -> list[int]:
    """Of those that wait, or that would give up now, the highest first."""
    started = _started(admission)
    return sorted({each.request.priority for each in queue if each.job_id not in started}, reverse=True)


@dataclass(frozen=True, slots=True)
class _Machine:
    rooms: Sequence[GpuRoom]
    queue: Sequence[Candidate]
    held: Mapping[str, Held]
    play: Play

    def played(self, gone: frozenset[str], queue: Sequence[Candidate] | None = None) -> Admission:
        """Play a round without some leases."""
        rest = [each for job_id, each in self.held.items() if job_id not in gone]
        return self.play(self.rooms_without(gone), self.queue if queue is None else queue, rest)

    def rooms_without(self, gone: frozenset[str]) -> Sequence[GpuRoom]:
        """Return the rooms as they are once some leases are gone."""
        left = {room.gpu.uuid: room for room in self.rooms}
        for job_id in sorted(gone):
            held = self.held[job_id]
            for part in held.slices:
                if part.gpu_uuid in left:
                    left[part.gpu_uuid] = _without(left[part.gpu_uuid], held, part.memory_bytes)
        return list(left.values())

    def cheapest_first(self, offers: Sequence[EvictableLease]) -> list[str]:
        """Return the ids by value for each byte; of equals the larger first, so that few are enough."""

        def key(offer: EvictableLease) -> tuple[float, int, str]:
            size_bytes = sum(part.memory_bytes for part in self.held[offer.job_id].slices)
            return offer.value / max(1, size_bytes), -size_bytes, offer.job_id

        return [each.job_id for each in sorted(offers, key=key)]

    def one_step(self, offers: Sequence[EvictableLease], taken: frozenset[str], admission: Admission) -> frozenset[str]:
        """Return what to take next, for the highest priority that gains by anything; nothing where none does."""
        for priority in _priorities(admission, self.queue):
            may = [each for each in offers if each.priority <= priority and each.job_id not in taken]
            more = self.taken_for(priority, self.cheapest_first(may), taken, admission)
            if more:
                return more
        return frozenset()

    def without_the_vain(
        self, taken: frozenset[str], offers: Sequence[EvictableLease], admission: Admission
    ) -> frozenset[str]:
        """Return as few of what was taken step by step as let the same jobs start."""
        cheapest = self.cheapest_first([each for each in offers if each.job_id in taken])
        return frozenset(_needed(cheapest, lambda some: _started(admission) <= _started(self.played(frozenset(some)))))

    def taken_for(
        self, priority: int, cheapest: Sequence[str], taken: frozenset[str], before: Admission
    ) -> frozenset[str]:
        """Return which leases let those jobs of a priority start, and of higher ones, that all of them together would."""
        if not cheapest:
            return frozenset()
        priorities = {each.job_id: each.request.priority for each in self.queue}
        started = _started(self.played(taken | set(cheapest)))
        served = {job_id for job_id in started if priorities[job_id] >= priority}
        higher = {job_id for job_id in _started(before) if priorities[job_id] > priority}
        if served <= _started(before) or not higher <= started:
            return frozenset()
        for queue in (self._up_to(served, started, before), self.queue):

            def is_enough(some: Sequence[str], line: Sequence[Candidate] = queue) -> bool:
                gone = taken | set(some)
                return self._has_memory_for(served, gone) and served <= _started(self.played(gone, line))

            found = frozenset(_fewest(cheapest, is_enough))
            if served <= _started(self.played(taken | found)):
                break
        return found

    def _has_memory_for(self, served: Collection[str], gone: frozenset[str]) -> bool:
        """Whether enough is free without some leases, wherever it is: asked first, since rounds are dear."""
        requests = [each.request for each in self.queue if each.job_id in served]
        wanted_bytes = sum(request.memory_bytes * request.gpu_count for request in requests)
        return wanted_bytes <= sum(room.free_bytes for room in self.rooms_without(gone))

    def _up_to(self, served: Collection[str], started: Collection[str], before: Admission) -> list[Candidate]:
        """Return the queue as far as it matters to these: who starts, and whoever is looked at before the last of them.

        Of ten thousand that wait a round takes a tenth of a second, and here are many.
        """
        order = [wait.job_id for wait in before.waits]
        last = max((place for place, job_id in enumerate(order) if job_id in served), default=-1)
        matter = {*order[: last + 1], *started, *_started(before)}
        return [each for each in self.queue if each.job_id in matter]


def _started(admission: Admission) -> set[str]:
    return {grant.job_id for grant in admission.grants}


def _fewest(cheapest: Sequence[str], is_enough: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return some of these of which each is needed: as many from the front as are enough, then without whom it is, too.

    All together are enough.
    """
    few, many = 0, len(cheapest)
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if is_enough(cheapest[:middle]) else (middle + 1, many)
    return _needed(cheapest[:many], is_enough)


def _needed(cheapest: Sequence[str], is_enough: Callable[[Sequence[str]], bool]) -> list[str]:
    """Leave out one after the other, the dearest first, as long as the rest is enough.

    Again until each was needed in one go: rounds are no sums, and what is needed beside another may not be without it.
    """
    chosen, before = list(cheapest), -1
    while len(chosen) != before:
        before = len(chosen)
        for dearest in reversed(chosen.copy()):
            rest = [each for each in chosen if each != dearest]
            chosen = rest if is_enough(rest) else chosen
    return chosen


def _without(room: GpuRoom, held: Held, memory_bytes: int) -> GpuRoom:
    return replace(
        room,
        granted_bytes=room.granted_bytes - taken_bytes(room.gpu, memory_bytes),
        granted_compute=room.granted_compute - held.compute_share,
        tenancy=room.tenancy.left(),
    )


def jobs_to_restart_elsewhere(
    admission: Admission, queue: Sequence[Candidate], play: Callable[[Sequence[Candidate]], Admission]
) -> tuple[str, ...]:
    """Return the ids of those who wait for their own GPU, and would start now if any would do.

    Args:
        admission: What the round came to.
        queue: Who was in it.
        play: Decides the same round for another queue.
    """
    started = {grant.job_id for grant in admission.grants}
    bound = {each.job_id for each in queue if each.gpu_uuid is not None and each.job_id not in started}
    if not bound:
        return ()
    found = play([replace(each, gpu_uuid=None) if each.job_id in bound else each for each in queue])
    return tuple(grant.job_id for grant in found.grants if grant.job_id in bound)
