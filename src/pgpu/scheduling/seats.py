"""Which GPUs of this machine a job gets of those that can host it now: placement, for admission.

A MIG instance goes before a GPU, the smallest that covers the job: it is of no use to anyone larger. It refuses to know
why a GPU cannot host a job: admission leaves those out.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from pgpu.model import Gpu, Request
from pgpu.scheduling.candidate import Candidate, Held
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.offers import GpuOffer, NodeOffer, Shape
from pgpu.scheduling.outlook import Outlook
from pgpu.scheduling.placement import place

ALL_OF_IT = 1000
"""Thousandths of a GPU's compute."""


MOST_WAITING = 1000
"""Waiting jobs that are taken for those likely to come: the oldest."""


BEST_SHARE = 1.0
"""Weight of the best filling in what free parts are worth. All of it, unlike on a cluster: who waits is known, and where
fillings are equal the best fit keeps GPUs whole."""


class Seats:
    """Chooses GPUs of one machine for one job after the other."""

    def __init__(self, rooms: Sequence[GpuRoom], outlook: Callable[[], Outlook]) -> None:
        """Take the GPUs, and how to learn what is likely to come: asked at most once, when there is a choice."""
        self._most_bytes = {room.gpu.uuid: _most_bytes(room) for room in rooms}
        self._look = outlook
        self._outlook: Outlook | None = None

    def choose(
        self,
        request: Request,
        fitting: Sequence[Gpu],
        free_bytes: Mapping[str, int],
        free_compute: Mapping[str, float],
    ) -> Sequence[Gpu]:
        """Choose as many GPUs as the job asks for.

        Args:
            request: What it asks for.
            fitting: Those that can host it now, in NVML index order: at least as many as it asks for.
            free_bytes: By UUID.
            free_compute: By UUID, 0 to 1.
        """
        instances = [gpu for gpu in fitting if gpu.is_instance]
        if instances and request.gpu_count == 1:
            return [min(instances, key=lambda gpu: gpu.memory_bytes)]
        if len(fitting) == request.gpu_count:
            return fitting
        gpus = tuple(self._offer(gpu, free_bytes[gpu.uuid], free_compute[gpu.uuid]) for gpu in fitting)
        placement = place(_shape(request), [NodeOffer("", gpus)], self._known_outlook())
        chosen = () if placement is None else placement.gpu_uuids
        return [gpu for gpu in fitting if gpu.uuid in chosen]

    def _offer(self, gpu: Gpu, free_bytes: int, free_compute: float) -> GpuOffer:
        return GpuOffer(
            gpu.uuid,
            round(free_compute * ALL_OF_IT),
            free_bytes,
            ALL_OF_IT,
            max(free_bytes, self._most_bytes[gpu.uuid]),
        )

    def _known_outlook(self) -> Outlook:
        if self._outlook is None:
            self._outlook = self._look()
        return self._outlook


def likely(rooms: Sequence[GpuRoom], queue: Sequence[Candidate], held: Iterable[Held]) -> Outlook:
    """Take what is likely to come to be like what waits and runs, and now and then a job that needs all of a GPU.

    Nothing else is known of a small machine. Without the last, equal small jobs would be spread over every idle GPU.
    """
    known = [_shape(candidate.request) for candidate in queue[:MOST_WAITING]]
    known += [_shape_of_held(each) for each in held if each.slices]
    most_bytes = max((_most_bytes(room) for room in rooms), default=0)
    return Outlook([*known, *[Shape(1, 0, most_bytes)] * max(1, len(known) // 10)], best_share=BEST_SHARE)


def _most_bytes(room: GpuRoom) -> int:
    return max(1, room.gpu.memory_bytes - room.headroom_bytes)


def _shape_of_held(held: Held) -> Shape:
    memory_bytes = max(part.memory_bytes for part in held.slices)
    return Shape(len(held.slices), round(held.compute_share * ALL_OF_IT), memory_bytes)


def _shape(request: Request) -> Shape:
    return Shape(request.gpu_count, round((request.compute_share or 0.0) * ALL_OF_IT), request.memory_bytes)
