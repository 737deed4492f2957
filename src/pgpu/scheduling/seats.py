"""Which GPUs of this machine a job gets of those that can host it now: placement, for admission.

A MIG instance goes before a GPU, the smallest that covers the job: it is of no use to anyone larger. Of GPUs the best fit
is taken, and for a job on several those that leave least free. It refuses to know
why a GPU cannot host a job: admission leaves those out.
"""

from collections.abc import Sequence

from pgpu.model import Gpu, Request, SharingMode
from pgpu.scheduling.candidate import Candidate
from pgpu.scheduling.capacity import GpuRoom
from pgpu.scheduling.free_capacity import FreeCapacity
from pgpu.scheduling.offers import GpuResources, JobShape, NodeResources
from pgpu.scheduling.outlook import Outlook
from pgpu.scheduling.placement import NO_PREFERENCE, PlacementPreference, place

ALL_OF_IT = 1000
"""Thousandths of a GPU's compute."""


NOTHING_KNOWN = Outlook([])
"""With it the best fit wins. What waits and runs on one machine is too little to price the jobs to come: prices made of it
left 1.0 % less allocated where half of the jobs are large, 0.6 % less with openb's shares, and 0.3 % more with small ones."""


class GpuChoice:
    """Chooses GPUs of one machine for one job after the other."""

    def __init__(self, rooms: Sequence[GpuRoom]) -> None:
        self._most_bytes = {room.gpu.uuid: _most_bytes(room) for room in rooms}

    def choose(
        self,
        candidate: Candidate,
        fitting: Sequence[Gpu],
        space: FreeCapacity,
    ) -> Sequence[Gpu]:
        """Choose as many GPUs as the job asks for.

        Args:
            candidate: What it asks for.
            fitting: Those that can host it now, in NVML index order: at least as many as it asks for.
            space: What is free of them, and who is there.
        """
        request = candidate.request
        instances = [gpu for gpu in fitting if gpu.is_instance]
        if instances and request.gpu_count == 1:
            return [min(instances, key=lambda gpu: gpu.memory_bytes)]
        if len(fitting) == request.gpu_count:
            return fitting
        gpus = tuple(self._offer(gpu, space) for gpu in fitting)
        placement = place(_shape(request), [NodeResources("", gpus)], NOTHING_KNOWN, _wish(candidate.mode))
        chosen = () if placement is None else placement.gpu_uuids
        return [gpu for gpu in fitting if gpu.uuid in chosen]

    def _offer(self, gpu: Gpu, space: FreeCapacity) -> GpuResources:
        free_bytes = space.free_bytes[gpu.uuid]
        return GpuResources(
            gpu.uuid,
            round(space.free_compute[gpu.uuid] * ALL_OF_IT),
            free_bytes,
            ALL_OF_IT,
            max(free_bytes, self._most_bytes[gpu.uuid]),
            space.tenants[gpu.uuid].mode,
        )


def _most_bytes(room: GpuRoom) -> int:
    return max(1, room.gpu.memory_bytes - room.headroom_bytes)


def _wish(mode: SharingMode) -> PlacementPreference:
    """Whoever wants a GPU alone is asked for idle ones only, whatever outsiders hold of them."""
    return NO_PREFERENCE if mode is SharingMode.EXCLUSIVE else PlacementPreference(mode)


def _shape(request: Request) -> JobShape:
    return JobShape(request.gpu_count, round((request.compute_share or 0.0) * ALL_OF_IT), request.memory_bytes)
