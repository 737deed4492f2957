"""Even waves: how many jobs of one batch run at a time on a GPU that cannot take all of them together.

The jobs of a batch are equal requests of one submission. If memory takes 20 of 25 at once, two waves are needed anyway, and 13
and 12 jobs slow each other down less than 20 and 5: the batch ends no later, and its jobs end earlier. So a GPU is filled
beyond its even part of a wave only while its jobs keep it busy for at most half of the time, as measured. A batch that fits
into one wave starts at once, a GPU without a job of the batch always takes one, and no job is held back for longer than
`HOLD_SECONDS`.

Source: P1 (its 25 jobs end in 17.97 s as 12 + 13, in 25.56 s as 20 + 5).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pgpu.errors import PgpuBug
from pgpu.model import Batch, Objective, SharingMode
from pgpu.scheduling.admission_round import Candidate, Held
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.structs import Struct

# Up to this demand of its jobs a GPU takes more than an even wave of them. Covers jobs that need from 1/8 to 1/25 of a GPU.
HALF = 0.5

# A job that has waited for so long starts wherever it fits.
HOLD_SECONDS = 1800.0

# The same for a job of unknown duration: holding it back for longer than it runs costs more than contention does.
HOLD_UNKNOWN_SECONDS = 600.0


class Waves(Struct, frozen=True):
    """Waves of one batch on the GPUs of one round."""

    size: int
    """Jobs of the batch, those that have ended included."""

    fitting: int
    """How many of its jobs memory takes at once on all GPUs, those that run included; at least 1."""

    @property
    def count(self) -> int:
        """Fewest waves in which all jobs run."""
        return -(-self.size // self.fitting)

    @property
    def at_once(self) -> int:
        """Jobs of one wave over all GPUs: an even part of the batch, or all that fit if one wave is enough."""
        return -(-self.size // self.count)

    def on_gpu(self, fitting: int) -> int:
        """Return the jobs of one wave on a GPU that takes `fitting` of them; never less than 1."""
        return fitting if self.count == 1 else max(1, -(-self.at_once * fitting // self.fitting))


def may_join(wave: int, running: int, demands: Sequence[float | None]) -> bool:
    """Whether one more job of a batch may start on a GPU where it fits.

    Args:
        wave: Jobs of one wave of the batch on this GPU; at least 1.
        running: Jobs of the batch there.
        demands: Share of the GPU's time that each job there needs, others than the batch's included, 0 to 1; None if it was not
            measured yet. Such a job counts as its part of a GPU that one wave keeps busy.
    """
    return running < wave or sum(1 / wave if demand is None else demand for demand in demands) <= HALF


def may_be_held(candidate: Candidate, now_seconds: float) -> bool:
    """Whether a job waits for its batch's next wave at all.

    Not with the objective `soonest`; if it has waited for long enough; if its wait is limited, since its memory may be gone at the end of it; if it returns
    to its GPU or may suspend others; nor if it shares its GPU in another way than in equal time slices, of memory that stays.
    """
    request, is_bound = candidate.request, candidate.takes_free or candidate.gpu_uuid is not None
    if candidate.batch is None or candidate.deadline_seconds is not None or request.objective is Objective.SOONEST:
        return False
    hold_seconds = HOLD_UNKNOWN_SECONDS if candidate.duration_seconds is None else HOLD_SECONDS
    if now_seconds - candidate.eligible_at_seconds >= hold_seconds:
        return False
    is_special = request.gpu_count != 1 or request.compute_share or request.preempts or request.oversubscribes
    return not (is_bound or is_special) and candidate.mode is SharingMode.TIME_SLICE


class EvenWaves:
    """The batches of one round: their waves, and their jobs on each GPU. False if no job of a batch waits."""

    def __init__(
        self, rooms: Sequence[GpuRoom], queue: Sequence[Candidate], held: Sequence[Held], now_seconds: float
    ) -> None:
        """Start a round; arguments as for `admit`."""
        self._rooms = rooms
        self._now_seconds = now_seconds
        self._has_batches = any(may_be_held(candidate, now_seconds) for candidate in queue)
        self._there: defaultdict[str, list[Held]] = defaultdict(list)
        self._waves: dict[Batch, tuple[Waves, Mapping[str, int]]] = {}
        self._closed: set[Batch] = set()
        for each in held if self._has_batches else ():
            self.take(each)

    def __bool__(self) -> bool:
        return self._has_batches

    @property
    def has_held_back(self) -> bool:
        """Whether a job waits in this round for its batch's next wave."""
        return bool(self._closed)

    def take(self, held: Held) -> None:
        """Add a job that runs or starts."""
        for part in held.slices:
            self._there[part.gpu_uuid].append(held)

    def give(self, held: Held) -> None:
        """Remove a job; the opposite of `take`."""
        for part in held.slices:
            self._there[part.gpu_uuid].remove(held)

    def admits(self, gpu_uuid: str, candidate: Candidate, space: FreeCapacity) -> bool:
        """Whether a job that fits on a GPU may start there; `space` is what is free on all GPUs now."""
        if candidate.batch is None or not may_be_held(candidate, self._now_seconds):
            return True
        waves, wave_by_gpu = self._waves_of(candidate.batch, candidate, space)
        if waves.count == 1:
            return True
        there = self._there[gpu_uuid]
        running = sum(each.batch == candidate.batch for each in there)
        return may_join(wave_by_gpu[gpu_uuid], running, [each.demand for each in there])

    def hold_back(self, candidate: Candidate) -> None:
        """Note that no GPU admits a job: the rest of its batch is not tried again in this round."""
        if candidate.batch is not None:
            self._closed.add(candidate.batch)

    def holds_back(self, candidate: Candidate) -> bool:
        """Whether an equal job of the same batch was held back in this round."""
        return candidate.batch in self._closed and may_be_held(candidate, self._now_seconds)

    def explain(self, candidate: Candidate) -> str:
        """Format why a job is held back.

        `waits for its batch's next wave: 25 jobs need 2 waves here, and 13 at once contend less for the GPU than 20`
        """
        known = self._waves.get(candidate.batch) if candidate.batch else None
        if known is None:
            raise PgpuBug("a job outside of batches waits for a wave")
        waves, _ = known
        return (
            f"waits for its batch's next wave: {waves.size} jobs need {waves.count} waves here, and {waves.at_once} at once"
            f" contend less for the GPU than {waves.fitting}"
        )

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
