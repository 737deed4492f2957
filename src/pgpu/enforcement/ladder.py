"""Picks, for each set of GPUs, the strongest enforcer that works there, and starts nothing before it was proved.

It refuses to go down a rung silently: a self-test that fails is an error, not a reason to try a weaker one.
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
    """One enforcer and where it can be used."""

    enforcer: Enforcer
    works_on: Callable[[Gpu], bool]
    unaided: Enforcer | None = None
    """What is put to the proof instead, where the shim beside an enforcer could be what refuses."""


_WITHOUT_GPU = Rung(WithoutGpu(), lambda _gpu: False)
"""Of a lease without slices; no GPU is ever given to it."""


class Ladder:
    """All the enforcers of this machine behind one."""

    def __init__(self, rungs: Sequence[Rung], gpus: Callable[[], Sequence[Gpu]], self_test: SelfTest) -> None:
        """Prove nothing yet.

        Args:
            rungs: Strongest first; whatever made a slice, the first can read and remove it.
            gpus: All GPUs that jobs may be given.
            self_test: Proves an enforcer before its first job.
        """
        self._rungs = tuple(rungs)
        self._gpus = gpus
        self._self_test = self_test

    @property
    def name(self) -> str:
        """Names of the enforcers of all GPUs."""
        return ", ".join(dict.fromkeys(self.for_gpus([gpu]).name for gpu in self._gpus()))

    @property
    def does_not_cover(self) -> str:
        """What gets past them."""
        return "; ".join(dict.fromkeys(self.for_gpus([gpu]).does_not_cover for gpu in self._gpus()))

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:
        """Return the first rung that works on all of these GPUs; of none, what keeps GPUs out of sight.

        Raises:
            EnforcementError: None does.
        """
        return self._rung_on(gpus).enforcer

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Refuse a slice in which no program could ever use this GPU.

        Raises:
            RequestError: It is smaller than one CUDA context.
            EnforcementError: No limit can be made to bind on this GPU.
        """
        self.for_gpus([gpu]).check_slice(memory_bytes, gpu)

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Prove the enforcer where that was not done yet, then make the slice's files.

        Raises:
            RequestError: The slice is smaller than one CUDA context.
            EnforcementError: The limit could not be put in place, or does not bind.
        """
        rung = self._rung_on(gpus)
        for gpu in {gpu.name: gpu for gpu in gpus}.values():
            self._self_test.prove(rung.unaided or rung.enforcer, job, gpu, is_metered=rung.unaided is None)
        return rung.enforcer.prepare(job, gpus)

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        """Set every slice of a lease to `memory_bytes`, live."""
        self._of(lease).resize(lease, memory_bytes)

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        """Say how each GPU's time is shared with the job, live."""
        self._of(lease).set_compute(lease, words)

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        """Hold a job's launches on one GPU, or take one's own hold back, live."""
        self._of(lease).hold(lease, gpu_uuid, hold, is_held=is_held)

    def words(self, lease: Lease) -> Sequence[ComputeWord]:
        """Return what the slice says of compute now."""
        return self._of(lease).words(lease)

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:
        """Return what the job tells of its GPU time."""
        return self._of(lease).boards(lease)

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        """Tell the slice what its processes hold beyond what its meter has charged."""
        self._of(lease).set_overhead(lease, gpu_uuid, overhead_bytes)

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        """Read what each slice holds now."""
        return self._of(lease).use(lease)

    def trace(self, lease: Lease) -> bytes | None:
        """Return what a traced job wrote down."""
        return self._of(lease).trace(lease)

    def is_held(self, lease: Lease) -> bool:
        """Whether any process may still hold memory of the slice."""
        return self._of(lease).is_held(lease)

    def release(self, lease: Lease) -> None:
        """Remove the slice's files, and those of its self-test; does nothing where they are gone."""
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
