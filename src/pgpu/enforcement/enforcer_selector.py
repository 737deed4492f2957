"""Selects the strongest enforcer that works on a set of GPUs, and runs its self-test before the first job.

There is no silent fallback: a failed self-test is an error and does not select a weaker enforcer.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pgpu.enforcement import Enforcer, SliceUse
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.enforcement.self_test import SelfTest
from pgpu.enforcement.without_gpu import WithoutGpu
from pgpu.errors import EnforcementError
from pgpu.model import Delivery, Gpu, Job, Lease


@dataclass(frozen=True, slots=True)
class Rung:
    """An enforcer and the GPUs that it can be used on."""

    enforcer: Enforcer
    works_on: Callable[[Gpu], bool]
    unaided: Enforcer | None = None
    """The enforcer that the self-test tests instead, where the shim beside `enforcer` could cause the failed allocation."""


_WITHOUT_GPU = Rung(WithoutGpu(), lambda _gpu: False)
"""For leases without slices; it gets no GPU."""


class Ladder:
    """All enforcers of this machine behind one `Enforcer`."""

    def __init__(self, rungs: Sequence[Rung], gpus: Callable[[], Sequence[Gpu]], self_test: SelfTest) -> None:
        """Test nothing yet.

        Args:
            rungs: Strongest first; the first one can read and remove a slice of any of them.
            gpus: All GPUs that jobs may be given.
            self_test: Tests an enforcer before its first job.
        """
        self._rungs = tuple(rungs)
        self._gpus = gpus
        self._self_test = self_test

    @property
    def name(self) -> str:
        """Names of the enforcers of all GPUs, separated by commas."""
        return ", ".join(dict.fromkeys(self.for_gpus([gpu]).name for gpu in self._gpus()))

    @property
    def does_not_cover(self) -> str:
        return "; ".join(dict.fromkeys(self.for_gpus([gpu]).does_not_cover for gpu in self._gpus()))

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:
        """Return the first enforcer that works on all of these GPUs; without GPUs, the one that hides them.

        Raises:
            EnforcementError: None works.
        """
        return self._rung_on(gpus).enforcer

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Reject a slice in which no program could use this GPU.

        Raises:
            RequestError: It is smaller than one CUDA context.
            EnforcementError: No enforcer works on this GPU.
        """
        self.for_gpus([gpu]).check_slice(memory_bytes, gpu)

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Run the self-test where its result is not cached, then create the slice's files.

        Raises:
            RequestError: The slice is smaller than one CUDA context.
            EnforcementError: The limit could not be set, or does not bind.
        """
        rung = self._rung_on(gpus)
        for gpu in {gpu.name: gpu for gpu in gpus}.values():
            self._self_test.prove(rung.unaided or rung.enforcer, job, gpu, is_metered=rung.unaided is None)
        return rung.enforcer.prepare(job, gpus)

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        self._of(lease).resize(lease, memory_bytes)

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        self._of(lease).set_compute(lease, words)

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        self._of(lease).hold(lease, gpu_uuid, hold, is_held=is_held)

    def words(self, lease: Lease) -> Sequence[ComputeWord]:
        return self._of(lease).words(lease)

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:
        return self._of(lease).boards(lease)

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        self._of(lease).set_overhead(lease, gpu_uuid, overhead_bytes)

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        return self._of(lease).use(lease)

    def trace(self, lease: Lease) -> bytes | None:
        return self._of(lease).trace(lease)

    def is_held(self, lease: Lease) -> bool:
        return self._of(lease).is_held(lease)

    def release(self, lease: Lease) -> None:
        """Remove the slice's files and those of its self-test; no effect where they are gone."""
        if not lease.slices:
            return
        self._self_test.forget(self._of(lease), lease)
        self._of(lease).release(lease)

    def _rung_on(self, gpus: Sequence[Gpu]) -> Rung:
        if not gpus:
            return _WITHOUT_GPU
        for rung in self._rungs:
            if all(rung.works_on(gpu) for gpu in gpus):
                return rung
        names = ", ".join(gpu.name for gpu in gpus)
        raise EnforcementError(f"no limit can be made to bind on {names}", hint="`pgpu doctor` says what is missing")

    def _of(self, lease: Lease) -> Enforcer:
        if not lease.slices:
            return _WITHOUT_GPU.enforcer
        named = (rung.enforcer for rung in self._rungs if rung.enforcer.name == lease.enforcer)
        return next(named, self._rungs[0].enforcer)
