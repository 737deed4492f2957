"""How a lease is made to bind: one file for each enforcer, behind one protocol.

An enforcer prepares what must be there before the job's first CUDA call, proves that it binds, changes limits live and
reads a slice's use. It refuses to start jobs and to choose GPUs, and it fails closed: what cannot be enforced raises.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.model import Delivery, Gpu, Job, Lease


@dataclass(frozen=True, slots=True)
class SliceUse:
    """What the job's processes hold of one slice, as its meter counts."""

    gpu_uuid: str
    used_bytes: int
    """Contexts and overhead included."""

    peak_bytes: int
    """Largest `used_bytes` since the slice was made."""

    refusals: int
    """Allocations refused because they would have passed the slice."""

    attempted_bytes: int = 0
    """Largest `used_bytes` that a refused allocation would have made; 0 if none was refused."""

    context_bytes: int = 0
    """What each CUDA context is charged."""

    resident_bytes: int | None = None
    """Of `used_bytes` what cannot be moved to the host; None where nothing can."""

    stays: bool = False
    """Whether a process of the job has had memory that drivers cannot checkpoint: managed, or shared with another."""

    processes: int = 0
    """Living ones of the job that have a context, or are about to make one, on any GPU."""


class Enforcer(Protocol):
    """Makes memory limits bind on a kind of GPU."""

    @property
    def name(self) -> str:
        """`mig`, `driver` or `shim`; `none` where nothing is ever started."""
        ...

    @property
    def does_not_cover(self) -> str:
        """What gets past it, in one line, for `pgpu gpus` and SECURITY.md."""
        ...

    def for_gpus(self, gpus: Sequence[Gpu]) -> "Enforcer":
        """Return the one that a job on these GPUs gets: itself, unless it stands for several."""
        ...

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Refuse a slice in which no program could ever use this GPU, before anything is stored; changes nothing.

        What cannot be found out now is let through: `prepare` refuses it.

        Raises:
            RequestError: It is smaller than one CUDA context.
        """
        ...

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Make the slice's files; `job.lease` is set and `gpus` are its GPUs in the same order.

        Raises:
            EnforcementError: The limit could not be put in place, or the self-test found that it does not bind.
        """
        ...

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        """Set every slice of a lease to `memory_bytes`, live.

        A larger limit holds at once; a smaller one refuses new allocations until use falls below it.
        """
        ...

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        """Say of each GPU of a lease, in its order, how its time is shared with the job, live; a hold stays."""
        ...

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        """Hold a job's launches and copies on one GPU of its lease, or take one's own hold back, live.

        They go on once nobody holds them.

        Raises:
            EnforcementError: There is no slice, or it is of a version that cannot be held.
        """
        ...

    def words(self, lease: Lease) -> Sequence[ComputeWord]:
        """Return what the slice says of compute now, in the lease's order; empty before `prepare`."""
        ...

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:
        """Return what the job tells of its GPU time, in the lease's order; empty before a process of it uses a GPU."""
        ...

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        """Tell the slice what its processes hold on the GPU beyond what its meter has charged, live.

        The engine measures it once a second; does nothing where the enforcer counts exactly by itself.
        """
        ...

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        """Read what each slice holds now, in the lease's order; never waits for the job; empty before `prepare`."""
        ...

    def trace(self, lease: Lease) -> bytes | None:
        """Return what a traced job wrote down, as `trace.read` takes it; None where nothing was."""
        ...

    def is_held(self, lease: Lease) -> bool:
        """Whether any process may still hold memory of the slice, a forked child with its parent's descriptors included."""
        ...

    def release(self, lease: Lease) -> None:
        """Remove the slice's files; does nothing where they are gone."""
        ...
