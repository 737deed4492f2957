"""What running jobs give up for waiting ones: suspension of jobs of a lower priority, and reclaiming of idle leases.

Suspension (`preempt`) happens for a waiting job that asked for it. A suspended job gets no GPU time, and what of its memory
can move to the host makes room; it continues once the job that took its place has ended. Jobs of equal priority and jobs that
were just resumed are never suspended, nor is any job if that would not be enough.

Reclaiming (`reclaim_leases`) takes the lease of an idle function replica for a waiting job of the same or a higher priority.
Which jobs would start is decided by a normal round of admission in which those leases are gone, so order, shares, quotas,
reservations and modes hold as always. The set of leases taken is minimal: without any one of them, some job would not start.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import chain

from pgpu.model import SharingMode, SharingWish, Slice
from pgpu.scheduling.admission_round import Admission, Candidate, Cause, Grant, Held
from pgpu.scheduling.capacity import IDLE, GpuRoom, taken_bytes
from pgpu.structs import Struct, replace

# A resumed job is not suspended again for this long: two jobs that suspend each other in turn would only move memory.
REARM_SECONDS = 60.0

_ROOM = {Cause.MEMORY, Cause.COMPUTE, Cause.TURN}


class Victim(Struct, frozen=True):
    """A running job on one GPU that might be suspended."""

    job_id: str
    gpu_uuid: str
    priority: int
    granted_at_seconds: float
    frees_bytes: int
    """Its device memory, less what cannot be moved to the host."""

    frees_compute: float = 0.0
    resumed_at_seconds: float | None = None
    """When it was last resumed; None if it was never suspended."""

    def lost(self, now_seconds: float) -> float:
        """Return memory times run time: the work that suspending it delays."""
        return self.frees_bytes * (now_seconds - self.granted_at_seconds)


class _FreeGpu(Struct, frozen=True):
    room: GpuRoom
    memory_bytes: int
    compute: float

    def hosts(self, candidate: Candidate, chosen: Sequence[Victim] = ()) -> bool:
        """Whether a candidate fits once these victims are suspended."""
        memory_bytes = self.memory_bytes + sum(victim.frees_bytes for victim in chosen)
        compute = self.compute + sum(victim.frees_compute for victim in chosen)
        wanted = candidate.request.compute_share or 0.0
        return candidate.request.memory_bytes <= memory_bytes and wanted <= compute + 1e-9


def preempt(
    admission: Admission,
    queue: Sequence[Candidate],
    rooms: Sequence[GpuRoom],
    victims: Sequence[Victim],
    now_seconds: float,
) -> Admission:
    """Start the first waiting job that may preempt, if suspending others makes room for it.

    Pure. At most one job in a round; the next round starts from the result.

    Args:
        admission: Result of the round without suspension.
        queue: Candidates of that round.
        rooms: GPUs of that round.
        victims: Every job that might be suspended.
        now_seconds: Seconds since the epoch.

    Returns:
        The same admission if no job is suspended.
    """
    preempting = {each.job_id: each for each in queue if each.request.preempts}
    if not preempting or not victims:
        return admission
    free = _free_in_time_slices(rooms, admission.grants)
    for wait in admission.waits:
        candidate = preempting.get(wait.job_id)
        found = (
            None if candidate is None or wait.cause not in _ROOM else _choose_gpu(candidate, free, victims, now_seconds)
        )
        if candidate is not None and found is not None:
            room, job_ids = found
            part = Slice(room.gpu.uuid, candidate.request.memory_bytes, candidate.request.compute_share)
            return replace(
                admission,
                grants=(*admission.grants, Grant(candidate.job_id, (part,))),
                waits=[each for each in admission.waits if each.job_id != wait.job_id],
                suspended=tuple((job_id, candidate.job_id) for job_id in job_ids),
            )
    return admission


def _free_in_time_slices(rooms: Sequence[GpuRoom], grants: Iterable[Grant]) -> list[_FreeGpu]:
    """Return what the round left on each GPU in time-slice mode."""
    parts = list(chain.from_iterable(grant.slices for grant in grants))
    found = []
    for room in rooms:
        if room.tenancy == IDLE or room.tenancy.mode is not SharingMode.TIME_SLICE or room.gpu.is_instance:
            continue
        taken = [part for part in parts if part.gpu_uuid == room.gpu.uuid]
        memory_bytes = room.capacity_bytes - room.granted_bytes - sum(part.memory_bytes for part in taken)
        compute = 1.0 - room.granted_compute - sum(part.compute_share or 0.0 for part in taken)
        found.append(_FreeGpu(room, memory_bytes, compute))
    return found


def _choose_gpu(
    candidate: Candidate, free: Sequence[_FreeGpu], victims: Sequence[Victim], now_seconds: float
) -> tuple[GpuRoom, tuple[str, ...]] | None:
    """Return the GPU on which least work is delayed, and the jobs to suspend there."""
    request = candidate.request
    if request.gpu_count != 1 or request.sharing not in {SharingWish.TIME_SLICE, SharingWish.AUTO}:
        return None
    found = []
    for each in (each for each in free if candidate.can_use(each.room.gpu)):
        there = [victim for victim in victims if victim.gpu_uuid == each.room.gpu.uuid]
        chosen = _choose_victims(candidate, each, there, now_seconds)
        if chosen:
            lost = sum(victim.lost(now_seconds) for victim in chosen)
            key = (max(victim.priority for victim in chosen), lost, each.room.gpu.index)
            found.append((key, each.room, tuple(victim.job_id for victim in chosen)))
    return min(found, key=lambda each: each[0])[1:] if found else None


def _choose_victims(
    candidate: Candidate, free: _FreeGpu, victims: Sequence[Victim], now_seconds: float
) -> list[Victim]:
    # As few as make room, the lowest priority first, then the youngest; none if all together are not enough.
    may = [
        victim
        for victim in victims
        if victim.priority < candidate.request.priority
        and (victim.resumed_at_seconds is None or now_seconds - victim.resumed_at_seconds >= REARM_SECONDS)
    ]
    may.sort(key=lambda each: (each.priority, -each.granted_at_seconds, each.lost(now_seconds), each.job_id))
    chosen: list[Victim] = []
    for victim in may:
        if free.hosts(candidate, chosen):
            break
        chosen.append(victim)
    if not free.hosts(candidate, chosen):
        return []
    # A large victim chosen last may make earlier ones unnecessary.
    for victim in reversed(chosen.copy()):
        rest = [each for each in chosen if each is not victim]
        if free.hosts(candidate, rest):
            chosen = rest
    return chosen


# Decides a round for given rooms, queue and held jobs.
DecideRound = Callable[[Sequence[GpuRoom], Sequence[Candidate], Sequence[Held]], Admission]


class EvictableLease(Struct, frozen=True):
    """An idle lease that its holder marked as evictable."""

    job_id: str
    priority: int
    """Of its request: jobs of a lower priority cannot have it."""

    value: float
    """Cost of losing it, 0 or more, in a unit common to all holders, such as expected seconds of waiting."""


class ReclaimedRound(Struct, frozen=True):
    """Result of a round with the leases that are taken."""

    admission: Admission
    rooms: Sequence[GpuRoom]
    """GPUs without those leases, on which the grants were made."""


def reclaim_leases(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    held: Sequence[Held],
    offers: Sequence[EvictableLease],
    decide: DecideRound,
) -> ReclaimedRound:
    """Decide a round, and take as few and as cheap evictable leases as let more of the queue start.

    Pure. The cost of a lease is its value per byte. Jobs of the highest priority are served first.

    Args:
        rooms: Every GPU.
        queue: Waiting jobs, oldest first.
        held: Jobs that hold leases, evictable ones included.
        offers: Leases that may be taken.
        decide: Decides a round.
    """
    search = _ReclaimSearch(rooms, queue, {each.job_id: each for each in held}, decide)
    before = search.decide_without(frozenset())
    taken, admission = _choose_leases(search, offers, before)
    # Several steps can undo each other's gains. A lease of a higher priority than every job that gains must not be taken.
    while taken:
        gained = _started_ids(admission) - _started_ids(before)
        priorities = [each.request.priority for each in search.queue if each.job_id in gained]
        excluded = frozenset(each.job_id for each in offers if not priorities or each.priority > max(priorities))
        if not excluded & taken:
            break
        offers = [each for each in offers if each.job_id not in excluded]
        taken, admission = _choose_leases(search, offers, before)
    return ReclaimedRound(replace(admission, reclaimed=tuple(sorted(taken))), search.rooms_without(taken))


def _choose_leases(
    search: "_ReclaimSearch", offers: Sequence[EvictableLease], admission: Admission
) -> tuple[frozenset[str], Admission]:
    """Return the leases to take and the round without them; `admission` is the round with all of them."""
    taken, steps = frozenset[str](), 0
    while offers and (more := search.next_leases(offers, taken, admission)):
        taken, steps = taken | more, steps + 1
        admission = search.decide_without(taken)
    if steps > 1:  # a later step may make leases of an earlier one unnecessary
        cheapest = search.cheapest_first([each for each in offers if each.job_id in taken])
        started = _started_ids(admission)
        taken = frozenset(
            _drop_unneeded(cheapest, lambda some: started <= _started_ids(search.decide_without(frozenset(some))))
        )
        admission = search.decide_without(taken)
    return taken, admission


class _ReclaimSearch(Struct, frozen=True):
    rooms: Sequence[GpuRoom]
    queue: Sequence[Candidate]
    held: Mapping[str, Held]
    decide: DecideRound

    def decide_without(self, gone: frozenset[str], queue: Sequence[Candidate] | None = None) -> Admission:
        rest = [each for job_id, each in self.held.items() if job_id not in gone]
        return self.decide(self.rooms_without(gone), self.queue if queue is None else queue, rest)

    def rooms_without(self, gone: frozenset[str]) -> Sequence[GpuRoom]:
        left = {room.gpu.uuid: room for room in self.rooms}
        for job_id in sorted(gone):
            held = self.held[job_id]
            for part in held.slices:
                room = left.get(part.gpu_uuid)
                if room is not None:
                    left[part.gpu_uuid] = replace(
                        room,
                        granted_bytes=room.granted_bytes - taken_bytes(room.gpu, part.memory_bytes),
                        granted_compute=room.granted_compute - held.compute_share,
                        tenancy=room.tenancy.without_job(),
                    )
        return list(left.values())

    def cheapest_first(self, offers: Sequence[EvictableLease]) -> list[str]:
        """Return the ids by value per byte; of equals the larger first, so that few are enough."""

        def key(offer: EvictableLease) -> tuple[float, int, str]:
            size_bytes = sum(part.memory_bytes for part in self.held[offer.job_id].slices)
            return offer.value / max(1, size_bytes), -size_bytes, offer.job_id

        return [each.job_id for each in sorted(offers, key=key)]

    def next_leases(
        self, offers: Sequence[EvictableLease], taken: frozenset[str], admission: Admission
    ) -> frozenset[str]:
        """Return what to take next, for the highest priority of waiting jobs that gains; empty if none does."""
        started = _started_ids(admission)
        for priority in sorted(
            {each.request.priority for each in self.queue if each.job_id not in started}, reverse=True
        ):
            may = [each for each in offers if each.priority <= priority and each.job_id not in taken]
            more = self.leases_for(priority, self.cheapest_first(may), taken, admission)
            if more:
                return more
        return frozenset()

    def leases_for(
        self, priority: int, cheapest: Sequence[str], taken: frozenset[str], before: Admission
    ) -> frozenset[str]:
        """Return a minimal set of leases that serves the same jobs of this priority and above as all of them together."""
        if not cheapest:
            return frozenset()
        priorities = {each.job_id: each.request.priority for each in self.queue}
        started = _started_ids(self.decide_without(taken | set(cheapest)))
        served = {job_id for job_id in started if priorities[job_id] >= priority}
        higher = {job_id for job_id in _started_ids(before) if priorities[job_id] > priority}
        if served <= _started_ids(before) or not higher <= started:
            return frozenset()
        # First with a shortened queue, then, if its solution does not hold for the whole queue, with all of it.
        for queue in (self._up_to(served, started, before), self.queue):

            def is_enough(some: Sequence[str], line: Sequence[Candidate] = queue) -> bool:
                gone = taken | set(some)
                return self._has_memory_for(served, gone) and served <= _started_ids(self.decide_without(gone, line))

            found = frozenset(_find_fewest(cheapest, is_enough))
            if served <= _started_ids(self.decide_without(taken | found)):
                break
        return found

    def _has_memory_for(self, served: Collection[str], gone: frozenset[str]) -> bool:
        # A cheap check before a round is decided.
        requests = [each.request for each in self.queue if each.job_id in served]
        wanted_bytes = sum(request.memory_bytes * request.gpu_count for request in requests)
        return wanted_bytes <= sum(room.free_bytes for room in self.rooms_without(gone))

    def _up_to(self, served: Collection[str], started: Collection[str], before: Admission) -> list[Candidate]:
        # Those that start, and all that are considered before the last of them. With ten thousand waiting jobs a round takes
        # a tenth of a second, and a search decides many.
        order = [wait.job_id for wait in before.waits]
        last = max((place for place, job_id in enumerate(order) if job_id in served), default=-1)
        matter = {*order[: last + 1], *started, *_started_ids(before)}
        return [each for each in self.queue if each.job_id in matter]


def _started_ids(admission: Admission) -> set[str]:
    return {grant.job_id for grant in admission.grants}


def _find_fewest(cheapest: Sequence[str], is_enough: Callable[[Sequence[str]], bool]) -> list[str]:
    # The shortest sufficient prefix by bisection, less what it does not need.
    few, many = 0, len(cheapest)
    while few < many:
        middle = (few + many) // 2
        few, many = (few, middle) if is_enough(cheapest[:middle]) else (middle + 1, many)
    return _drop_unneeded(cheapest[:many], is_enough)


def _drop_unneeded(cheapest: Sequence[str], is_enough: Callable[[Sequence[str]], bool]) -> list[str]:
    # The most expensive first, as long as the rest is enough. Repeated until nothing is dropped, since rounds are not
    # additive: a lease needed beside another one may not be needed without it.
    chosen, before = list(cheapest), -1
    while len(chosen) != before:
        before = len(chosen)
        for dearest in reversed(chosen.copy()):
            rest = [each for each in chosen if each != dearest]
            chosen = rest if is_enough(rest) else chosen
    return chosen


def jobs_to_restart_elsewhere(
    admission: Admission,
    queue: Sequence[Candidate],
    decide: Callable[[Sequence[Candidate]], Admission],
    staying: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the ids of parked jobs that wait for their own GPU, and would start now if they could use any.

    They would start again from the beginning there. Decided by the same round with their GPU left open.

    Args:
        admission: Result of the round.
        queue: Its candidates.
        decide: Decides the same round for another queue.
        staying: Ids of parked jobs that do not start again: their work would be lost.
    """
    kept = _started_ids(admission).union(staying)
    bound = {each.job_id for each in queue if each.gpu_uuid is not None and each.job_id not in kept}
    if not bound:
        return ()
    found = decide([replace(each, gpu_uuid=None) if each.job_id in bound else each for each in queue])
    return tuple(grant.job_id for grant in found.grants if grant.job_id in bound)
