"""Whether a job that fits on a GPU starts there now, or waits for a less busy one.

Jobs in time slices slow each other down once they need more of a GPU's time than there is. A job's *demand* is the share of the
time that it needs, as its board measures it or as earlier runs of its program did. While the demands on a GPU sum to at most 1,
all that fits starts. Beyond that, two plans are compared by the time that they cost all jobs on the GPU: one more job starts now,
and the jobs there run slower until it has ended; or it starts once the first job there has ended. It waits only if that saves more
than `MARGIN` leaves. Jobs of a batch start in even waves instead (`even_waves`), whatever other jobs need.

The demands of jobs under MPS do not add up. There, if the programs of all these jobs were profiled, what is predicted for just
them together decides: all that fits starts while none of them is slowed down by more than `INTERFERENCE`, and the plans are
compared by the predicted slowdown of each. Else all that fits starts.

A GPU on which no job runs always takes one, only what is known counts, and no job is held back for longer than it runs or than
`HOLD_SECONDS`. So jobs of which nothing is known, and jobs that hardly use the GPU, start as soon as they fit.

Source: processor sharing serves jobs of equal length later on average than one after the other (Kleinrock 1976, section 4.4).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from pgpu.errors import PgpuBug
from pgpu.model import Batch, Gpu, Objective, SharingMode
from pgpu.scheduling.admission_round import (
    Candidate,
    Cause,
    Held,
    PredictSlowdowns,
    ProfiledCall,
    predict_nothing,
)
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.even_waves import HALF, Waves, may_join
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.reservations import expected_end_seconds
from pgpu.structs import Struct

# A job waits only if it costs less than this part of what its start would.
MARGIN = 0.95

# A job is loaded while the last one on the GPU ends: then the GPU is not idle between the two.
START_UP_SECONDS = 3.0

# A job that has waited for so long starts wherever it fits.
HOLD_SECONDS = 1800.0

# The same for a job of unknown duration: holding it back for longer than it runs costs more than contention does.
HOLD_UNKNOWN_SECONDS = 600.0

# A shorter job is never held back but by its batch: its start-up would leave the GPU idle for too large a part of its run.
LEAST_SECONDS = 30.0

# Trying a job on all GPUs takes a fifth of a millisecond: of a long queue of different programs, only so many kinds of jobs are
# tried in a round beyond those that start. The others are held back untried, until there are fewer before them.
MOST_KINDS = 64

# A smaller predicted slowdown counts as none: predictions are off by up to 10 % on average (as `advice.SLACK`).
INTERFERENCE = 1.10


class Load(Struct, frozen=True):
    """One job on a GPU, as the rule weighs it."""

    demand: float
    """Share of the GPU's time that it needs, 0 to 1."""

    left_seconds: float
    """Expected run time that is left, if it ran alone; infinity if that is unknown."""

    is_starting: bool = False
    """Whether its use of the GPU is not measured yet."""

    profiled: ProfiledCall | None = None
    """As in a candidate."""


# How many times longer each job runs together with the others than alone.
Slowdowns = Callable[[Sequence[Load]], Sequence[float]]


def stretch(demand: float) -> float:
    """Return how many times longer jobs run whose demands sum to this."""
    return max(1.0, demand)


def may_start_beside(there: Sequence[Load], new: Load) -> bool:
    """Whether a job that fits on a GPU starts now beside those that are there, by what all of them need."""
    total = sum([each.demand for each in there])
    if total < HALF or total + new.demand <= 1:
        return True
    busy = [each for each in there if each.demand]
    before, beside = [stretch(total)] * len(busy), [stretch(total + new.demand)] * (len(busy) + 1)
    return costs_less_now(busy, new, before, beside, lambda first: stretch(total - busy[first].demand + new.demand))


def may_start_as_predicted(there: Sequence[Load], new: Load, slowdowns: Slowdowns) -> bool:
    """The same by predicted slowdowns, unless the jobs there are measured to leave half of the GPU's time."""
    beside = slowdowns([*there, new])
    is_measured = not any(each.is_starting for each in there)
    if max(beside) <= INTERFERENCE or (is_measured and sum(each.demand for each in there) < HALF):
        return True
    return costs_less_now(
        there, new, slowdowns(there), beside, lambda first: slowdowns([*there[:first], *there[first + 1 :], new])[-1]
    )


def costs_less_now(
    there: Sequence[Load], new: Load, before: Sequence[float], beside: Sequence[float], after: Callable[[int], float]
) -> bool:
    """Whether all jobs together lose no more time if one more starts now than after the first of those there to end.

    Args:
        there: At least one.
        new: The one more.
        before: Slowdowns of the jobs there.
        beside: The same with the new one, which is the last.
        after: Returns the slowdown of the new job once the one with this index has ended.
    """
    lefts_seconds = [each.left_seconds for each in there]
    if new.left_seconds < LEAST_SECONDS or math.inf in lefts_seconds or math.isinf(new.left_seconds):
        return True
    ends_seconds = [left * longer for left, longer in zip(lefts_seconds, before, strict=True)]
    wait_seconds = min(ends_seconds)
    if wait_seconds <= START_UP_SECONDS and not any(each.is_starting for each in there):
        return True
    first = ends_seconds.index(wait_seconds)
    slower = after(first)
    delays_seconds = sum(
        [
            min(left, new.left_seconds) * (longer - now)
            for left, now, longer in zip(lefts_seconds, before, beside[:-1], strict=True)
        ]
    )
    # What the new job has done of its work by the end of that first one.
    done_seconds = min(new.left_seconds, lefts_seconds[first] * beside[first] / beside[-1])
    run_seconds = done_seconds * beside[-1] + (new.left_seconds - done_seconds) * slower
    return delays_seconds + run_seconds <= MARGIN * (wait_seconds + new.left_seconds * slower)


def hold_end_seconds(candidate: Candidate) -> float:
    """Return until when a job may be held back at most, in seconds since the epoch.

    A job of no batch is held back for no longer than it runs: jobs that are never held back may follow each other on its GPU,
    and then its wait gains nothing.
    """
    hold_seconds = HOLD_UNKNOWN_SECONDS if candidate.duration_seconds is None else HOLD_SECONDS
    if candidate.batch is None and candidate.duration_seconds is not None:
        hold_seconds = min(hold_seconds, candidate.duration_seconds)
    return candidate.eligible_at_seconds + hold_seconds


def may_be_held(candidate: Candidate, now_seconds: float) -> bool:
    """Whether a job that fits may wait for a less busy GPU at all.

    Not with the objective `soonest`; if it has waited for long enough; if its wait is limited, since its memory may be gone at
    the end of it; if it returns to its GPU, names models of GPUs or may suspend others; if it shares its GPU in another way than in equal time slices,
    of memory that stays, or under MPS outside of batches with a profile; nor if it belongs to no batch and is urgent or short,
    or its length is not known, or neither its demand nor a profile.
    """
    request, is_bound = candidate.request, candidate.takes_free or candidate.gpu_uuid is not None
    if candidate.deadline_seconds is not None or request.objective is Objective.SOONEST:
        return False
    is_known = bool(candidate.usual_demand or candidate.profiled)
    is_long = (candidate.duration_seconds or 0.0) >= LEAST_SECONDS
    is_urgent = request.priority > 0
    is_over = now_seconds >= hold_end_seconds(candidate)
    if is_over or (candidate.batch is None and (is_urgent or not (is_known and is_long))):
        return False
    is_bound = is_bound or bool(request.gpu_models)
    is_special = request.gpu_count != 1 or request.compute_share or request.preempts or request.oversubscribes
    if is_bound or is_special:
        return False
    mode = candidate.mode
    is_foreseen = mode is SharingMode.MPS and candidate.profiled is not None and candidate.batch is None
    return mode is SharingMode.TIME_SLICE or is_foreseen


class StartRule:
    """The rule in one round: what is known of the jobs on each GPU. False if no job of the queue may be held back."""

    def __init__(
        self,
        rooms: Sequence[GpuRoom],
        queue: Sequence[Candidate],
        held: Sequence[Held],
        now_seconds: float,
        predict: PredictSlowdowns = predict_nothing,
    ) -> None:
        """Start a round; arguments as for `admit`."""
        self._rooms = rooms
        self._now_seconds = now_seconds
        self._predict = predict
        self._applies = any(may_be_held(candidate, now_seconds) for candidate in queue)
        self._there: defaultdict[str, list[Held]] = defaultdict(list)
        self._loads: dict[str, list[Load]] = {}  # of `_there`, made when they are first needed
        self._waves: dict[Batch, tuple[Waves, Mapping[str, int]]] = {}
        # Kinds of jobs that no GPU admits, with the UUIDs of the GPUs where they fit.
        self._closed: dict[object, Sequence[str]] = {}
        self._closed_outside_batches = 0
        for each in held if self._applies else ():
            self.take(each)

    def __bool__(self) -> bool:
        return self._applies

    @property
    def has_held_back(self) -> bool:
        """Whether a job that fits is held back in this round."""
        return bool(self._closed)

    def take(self, held: Held) -> None:
        """Add a job that runs or starts."""
        for part in held.slices:
            self._there[part.gpu_uuid].append(held)
            self._loads.pop(part.gpu_uuid, None)

    def give(self, held: Held) -> None:
        """Remove a job; the opposite of `take`."""
        for part in held.slices:
            self._there[part.gpu_uuid].remove(held)
            self._loads.pop(part.gpu_uuid, None)

    def admits(self, gpu_uuid: str, candidate: Candidate, space: FreeCapacity) -> bool:
        """Whether a job that fits on a GPU may start there; `space` is what is free on all GPUs now."""
        there = self._there[gpu_uuid]
        if not there or not may_be_held(candidate, self._now_seconds):
            return True
        if candidate.batch is not None:
            waves, wave_by_gpu = self._waves_of(candidate.batch, candidate, space)
            running = sum(each.batch == candidate.batch for each in there)
            return waves.count == 1 or may_join(wave_by_gpu[gpu_uuid], running, [each.demand for each in there])
        new, loads = _new_load(candidate), self._loads_on(gpu_uuid)
        if candidate.mode is SharingMode.MPS:
            known = [each for each in loads if each.demand or each.profiled]
            return self._predicted(gpu_uuid, [*known, new]) is None or may_start_as_predicted(
                known, new, lambda loads: self._predicted(gpu_uuid, loads) or [1.0] * len(loads)
            )
        return not new.demand or may_start_beside(loads, new)

    def least_busy(self, gpus: list[Gpu], candidate: Candidate) -> list[Gpu]:
        """Return those of the GPUs that have time for a job; if none has, the one with the least demand or slowdown."""
        if not may_be_held(candidate, self._now_seconds) or len(gpus) < 2:  # noqa: PLR2004 - one leaves no choice
            return gpus
        costs = {gpu.uuid: self._cost(gpu.uuid, candidate) for gpu in gpus}
        return [gpu for gpu in gpus if costs[gpu.uuid] <= 1] or [min(gpus, key=lambda gpu: costs[gpu.uuid])]

    def hold_back(self, candidate: Candidate, fitting: Sequence[str]) -> None:
        """Note that none of the GPUs where a job fits admits it: others like it are not tried again in this round."""
        self._closed[_kind(candidate)] = fitting
        self._closed_outside_batches += candidate.batch is None

    def holds_back(self, candidate: Candidate) -> bool:
        """Whether a job is held back untried: one like it was held back in this round, or too many others that are in no batch."""
        if not self._closed or not may_be_held(candidate, self._now_seconds):
            return False
        is_full = self._closed_outside_batches >= MOST_KINDS and candidate.batch is None
        return is_full or _kind(candidate) in self._closed

    def cause(self, candidate: Candidate) -> Cause:
        """Return why a job is held back."""
        return Cause.WAVE if candidate.batch else Cause.BUSY

    def explain(self, candidate: Candidate) -> str:
        """Format why a job is held back.

        `waits for its batch's next wave: 25 jobs need 2 waves here, and 13 at once contend less for the GPU than 20`,
        `waits up to 9 min for a less busy GPU: the jobs there need 120% of its time, and would end later beside it`,
        `waits up to 9 min for a less busy GPU: by their profiles, one of the jobs would take 2.1 times as long there`,
        `waits up to 9 min for a less busy GPU: 64 other kinds of jobs that wait for one are tried before it`
        """
        if self.cause(candidate) is Cause.BUSY:
            left_seconds = hold_end_seconds(candidate) - self._now_seconds
            wait = f"waits up to {max(1, -(-int(left_seconds) // 60))} min for a less busy GPU"
            fitting = self._closed.get(_kind(candidate))
            if fitting is None:
                return f"{wait}: {MOST_KINDS} other kinds of jobs that wait for one are tried before it"
            predicted = [self._predicted_with(uuid, candidate) for uuid in fitting]
            if slowest := [max(slowdowns) for slowdowns in predicted if slowdowns is not None]:
                return f"{wait}: by their profiles, one of the jobs would take {min(slowest):.1f} times as long there"
            least = min(sum(each.demand for each in self._loads_on(uuid)) for uuid in fitting)
            return f"{wait}: the jobs there need {least:.0%} of its time, and would end later beside it"
        known = self._waves.get(candidate.batch) if candidate.batch else None
        if known is None:
            raise PgpuBug("a job outside of batches waits for a wave")
        waves, _ = known
        return (
            f"waits for its batch's next wave: {waves.size} jobs need {waves.count} waves here, and {waves.at_once} at once"
            f" contend less for the GPU than {waves.fitting}"
        )

    def _loads_on(self, gpu_uuid: str) -> list[Load]:
        known = self._loads.get(gpu_uuid)
        if known is None:
            known = self._loads[gpu_uuid] = [_load(each, self._now_seconds) for each in self._there[gpu_uuid]]
        return known

    def _predicted_with(self, gpu_uuid: str, candidate: Candidate) -> Sequence[float] | None:
        """Return the predicted slowdowns of the jobs on a GPU of which anything is known, and of a candidate as the last."""
        if candidate.mode is not SharingMode.MPS:
            return None
        known = [each for each in self._loads_on(gpu_uuid) if each.demand or each.profiled]
        return self._predicted(gpu_uuid, [*known, _new_load(candidate)])

    def _predicted(self, gpu_uuid: str, loads: Sequence[Load]) -> Sequence[float] | None:
        """Return the predicted slowdowns of jobs together; None if one of them has none."""
        calls = [each.profiled for each in loads if each.profiled is not None]
        return self._predict(gpu_uuid, calls) if len(calls) == len(loads) else None

    def _cost(self, gpu_uuid: str, candidate: Candidate) -> float:
        """Return the total demand, or the mean predicted slowdown, with one more job; at most 1 if the GPU has time for it."""
        predicted = self._predicted_with(gpu_uuid, candidate)
        if predicted is not None:
            return 1.0 if max(predicted) <= INTERFERENCE else sum(predicted) / len(predicted)
        if candidate.mode is SharingMode.MPS:
            return 1.0
        return sum(each.demand for each in self._loads_on(gpu_uuid)) + (candidate.usual_demand or 0.0)

    def _waves_of(self, batch: Batch, candidate: Candidate, space: FreeCapacity) -> tuple[Waves, Mapping[str, int]]:
        # Once a round, at the first job of the batch: grants of the batch itself change nothing of it.
        known = self._waves.get(batch)
        if known is None:
            fitting = {}
            for room in self._rooms:
                uuid = room.gpu.uuid
                fitting[uuid] = sum(each.batch == batch for each in self._there[uuid])
                if space.hosts(room.gpu, candidate, yields=True):
                    # A MIG instance has one job, whatever its size.
                    more = space.bytes_for(uuid, candidate) // candidate.request.memory_bytes
                    fitting[uuid] += 1 if room.gpu.is_instance else more
            waves = Waves(batch.size, max(1, sum(fitting.values())))
            known = self._waves[batch] = waves, {uuid: waves.on_gpu(count) for uuid, count in fitting.items()}
        return known


def _load(held: Held, now_seconds: float) -> Load:
    # Both have to show that the GPU is busy: an average over earlier runs contains their pauses, and may be outdated.
    known = [demand for demand in (held.demand, held.usual_demand) if demand is not None]
    left_seconds = expected_end_seconds(held, math.inf, now_seconds) - now_seconds
    return Load(min(known, default=0.0), left_seconds, held.demand is None, held.profiled)


def _new_load(candidate: Candidate) -> Load:
    demand, seconds = candidate.usual_demand or 0.0, candidate.end_seconds(0.0)
    return Load(demand, seconds, is_starting=True, profiled=candidate.profiled)


def _kind(candidate: Candidate) -> object:
    return candidate.batch or (
        candidate.request,
        candidate.duration_seconds,
        candidate.usual_demand,
        candidate.profiled,
    )
