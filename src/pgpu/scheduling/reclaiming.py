"""Which idle leases are taken back for jobs that wait.

Whoever serves a function may offer its lease while it is idle; it is taken for a waiting job of the same or a higher priority
that would not start otherwise. Whether it would, the ordinary round says, played as if offered leases were gone: so order,
shares, quotas, reservations and modes are what they are anyhow. It refuses to take a lease in vain: without any one of
those taken, some job that starts now would wait.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from pgpu.scheduling.admission_round import Admission
from pgpu.scheduling.candidate import Candidate, Held
from pgpu.scheduling.capacity import GpuRoom, taken_bytes

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
