"""Selects the strongest enforcer that works on a set of GPUs, and runs its self-test before the first job.

There is no silent fallback: a failed self-test is an error and does not select a weaker enforcer. The last candidate rejects all
jobs, with a reason. A lease without GPUs gets an enforcer of its own, which sets no limit and hides all GPUs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from pgpu.enforcement import Enforcer, SliceUse
from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.enforcement.growth_channel import GrowthChannel
from pgpu.enforcement.self_test import SelfTest
from pgpu.enforcement.shim import LARGEST_CONTEXT_BYTES
from pgpu.errors import EnforcementError
from pgpu.model import Delivery, Gpu, Job, Lease
from pgpu.structs import Struct


class RejectingEnforcer:
    """An `Enforcer` that rejects every job with a reason."""

    def __init__(self, reason: str, hint: str) -> None:
        """Keep the texts of the error.

        Args:
            reason: Why no limit can be enforced, in one line.
            hint: How to fix it.
        """
        self._reason = reason
        self._hint = hint

    @property
    def name(self) -> str:
        return "none"

    @property
    def does_not_cover(self) -> str:
        return f"anything: {self._reason}"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:  # noqa: ARG002 - the same for every GPU
        return self

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Pass: the cause may be fixed before the job starts."""

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:  # noqa: ARG002 - the same for every job
        """Reject the job.

        Raises:
            EnforcementError: Always.
        """
        names = ", ".join(gpu.name for gpu in gpus)
        raise EnforcementError(f"no limit can be made to bind on {names}: {self._reason}", hint=self._hint)

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        """No effect: there is no slice."""

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        """No effect: there is no slice."""

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        """No effect: there is no slice."""

    def words(self, lease: Lease) -> Sequence[ComputeWord]:  # noqa: ARG002 - there is no slice
        return ()

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:  # noqa: ARG002 - there is no slice
        return ()

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        """No effect: there is no slice."""

    def use(self, lease: Lease) -> Sequence[SliceUse]:  # noqa: ARG002 - there is no slice
        return ()

    def growth(self, lease: Lease) -> GrowthChannel | None:  # noqa: ARG002 - there is no slice
        return None

    def trace(self, lease: Lease) -> bytes | None:  # noqa: ARG002 - there is no slice
        return None

    def is_held(self, lease: Lease) -> bool:  # noqa: ARG002 - there is no slice
        return False

    def release(self, lease: Lease) -> None:
        """No effect: there is no slice."""


NO_GPU = (("CUDA_VISIBLE_DEVICES", ""), ("NVIDIA_VISIBLE_DEVICES", "void"))
"""Source: CUDA Programming Guide, "CUDA Environment Variables"; NVIDIA Container Toolkit, "Specialized Configurations"."""

_NOWHERE = Path("/nonexistent")
"""Never opened (`Delivery.has_slice`)."""


class WithoutGpu(RejectingEnforcer):
    """The `Enforcer` of a lease without slices."""

    def __init__(self) -> None:
        super().__init__("there is no GPU in this lease", "ask for one with --gpus")

    @property
    def does_not_cover(self) -> str:
        return "a process that sets CUDA_VISIBLE_DEVICES itself"

    def for_gpus(self, gpus: Sequence[Gpu]) -> Enforcer:  # noqa: ARG002 - there are none
        return self

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:  # noqa: ARG002 - the same for every job
        """Create nothing; return a delivery with an environment that hides the GPUs."""
        return Delivery(_NOWHERE, _NOWHERE, (), environment=NO_GPU)


class EnforcerCandidate(Struct, frozen=True):
    """An enforcer and the GPUs that it can be used on."""

    enforcer: Enforcer
    works_on: Callable[[Gpu], bool]
    unaided: Enforcer | None = None
    """The enforcer that the self-test tests instead, where the shim beside `enforcer` could cause the failed allocation."""


_WITHOUT_GPU = EnforcerCandidate(WithoutGpu(), lambda _gpu: False)
"""For leases without slices; it gets no GPU."""


class EnforcerSelector:
    """All enforcers of this machine behind one `Enforcer`."""

    def __init__(
        self, candidates: Sequence[EnforcerCandidate], gpus: Callable[[], Sequence[Gpu]], self_test: SelfTest
    ) -> None:
        """Test nothing yet.

        Args:
            candidates: Strongest first; the first one can read and remove a slice of any of them.
            gpus: All GPUs that jobs may be given.
            self_test: Tests an enforcer before its first job.
        """
        self._candidates = tuple(candidates)
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
        return self._candidate_on(gpus).enforcer

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Reject a slice in which no program could use this GPU.

        Raises:
            RequestError: It is smaller than one CUDA context.
            EnforcementError: No enforcer works on this GPU.
        """
        if memory_bytes < LARGEST_CONTEXT_BYTES:  # the choice of an enforcer asks the driver
            self.for_gpus([gpu]).check_slice(memory_bytes, gpu)

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Run the self-test where its result is not cached, then create the slice's files.

        Raises:
            RequestError: The slice is smaller than one CUDA context.
            EnforcementError: The limit could not be set, or does not bind.
        """
        candidate = self._candidate_on(gpus)
        for gpu in {gpu.name: gpu for gpu in gpus}.values():
            self._self_test.prove(
                candidate.unaided or candidate.enforcer, job, gpu, is_metered=candidate.unaided is None
            )
        return candidate.enforcer.prepare(job, gpus)

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

    def growth(self, lease: Lease) -> GrowthChannel | None:
        return self._of(lease).growth(lease)

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

    def _candidate_on(self, gpus: Sequence[Gpu]) -> EnforcerCandidate:
        if not gpus:
            return _WITHOUT_GPU
        for candidate in self._candidates:
            if all(candidate.works_on(gpu) for gpu in gpus):
                return candidate
        names = ", ".join(gpu.name for gpu in gpus)
        raise EnforcementError(f"no limit can be made to bind on {names}", hint="`pgpu doctor` shows what is missing")

    def _of(self, lease: Lease) -> Enforcer:
        if not lease.slices:
            return _WITHOUT_GPU.enforcer
        # By the name in the lease: a running job stays with its enforcer, even if the selection for new jobs has changed.
        named = (candidate.enforcer for candidate in self._candidates if candidate.enforcer.name == lease.enforcer)
        return next(named, self._candidates[0].enforcer)
