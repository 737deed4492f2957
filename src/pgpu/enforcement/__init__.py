"""The enforcers of memory limits: one module for each, behind the `Enforcer` protocol.

An enforcer prepares the slice's files before the job's first CUDA call, proves that the limit binds, changes limits of a
running job and reads the use of a slice. It fails closed: a limit that cannot be enforced raises `EnforcementError`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from pgpu.enforcement.board import BoardGpu
from pgpu.enforcement.compute_word import ComputeWord, Hold
from pgpu.model import Delivery, Gpu, Job, Lease
from pgpu.structs import Struct

if TYPE_CHECKING:
    from pgpu.enforcement.growth_channel import GrowthChannel

DRIVER = "driver"
"""Name of the enforcer whose limits the driver keeps."""


class SliceUse(Struct, frozen=True):
    """Memory that a job's processes hold in one slice, as its meter counts it."""

    gpu_uuid: str
    used_bytes: int
    """CUDA contexts and overhead included."""

    peak_bytes: int
    """Largest `used_bytes` since the slice was made."""

    refusals: int
    """Allocations refused because they would have passed the slice."""

    attempted_bytes: int = 0
    """Largest `used_bytes` that a refused allocation would have made; 0 if none was refused."""

    context_bytes: int = 0
    """Bytes charged for each CUDA context."""

    resident_bytes: int | None = None
    """The part of `used_bytes` that cannot move to the host; None where nothing can."""

    stays: bool = False
    """True if a process of the job has had memory that drivers cannot checkpoint: managed, or shared with another process."""

    device_refusals: int = 0
    """Allocations within the slice that failed because the GPU was full."""

    sizes_itself: bool = False
    """True if a process of the job took half or more of the memory that it was shown before it held any."""

    processes: int = 0
    """Number of live processes of the job that have, or are about to create, a CUDA context on any GPU."""


class Enforcer(Protocol):
    """Makes memory limits bind on a kind of GPU."""

    @property
    def name(self) -> str:
        """`mig`, `driver` or `shim`; `none` where no job can start."""
        ...

    @property
    def does_not_cover(self) -> str:
        """Known gaps of this enforcer, in one line, for `pgpu gpus` and SECURITY.md."""
        ...

    def for_gpus(self, gpus: Sequence[Gpu]) -> "Enforcer":
        """Return the enforcer for a job on these GPUs: `self`, except for the selector."""
        ...

    def check_slice(self, memory_bytes: int, gpu: Gpu) -> None:
        """Reject a slice in which no program could use this GPU, before anything is stored. Changes nothing.

        A slice that cannot be checked now passes; `prepare` checks again.

        Raises:
            RequestError: It is smaller than one CUDA context.
        """
        ...

    def prepare(self, job: Job, gpus: Sequence[Gpu]) -> Delivery:
        """Create the slice's files. `job.lease` is set, and `gpus` are its GPUs in the same order.

        Raises:
            EnforcementError: The limit could not be set, or the self-test found that it does not bind.
        """
        ...

    def resize(self, lease: Lease, memory_bytes: int) -> None:
        """Set every slice of a lease to `memory_bytes` while the job runs.

        A larger limit applies at once. A smaller one fails new allocations until use falls below it.
        """
        ...

    def set_compute(self, lease: Lease, words: Sequence[ComputeWord]) -> None:
        """Set the compute word of each GPU of a lease, in its order, while the job runs; the hold bits stay."""
        ...

    def hold(self, lease: Lease, gpu_uuid: str, hold: Hold, *, is_held: bool) -> None:
        """Set or clear one hold on a job's launches and copies on one GPU of its lease, while the job runs.

        Launches continue once all hold bits are clear.

        Raises:
            EnforcementError: There is no slice, or its version cannot be held.
        """
        ...

    def words(self, lease: Lease) -> Sequence[ComputeWord]:
        """Return the compute words of the slice, in the lease's order; empty before `prepare`."""
        ...

    def boards(self, lease: Lease) -> Sequence[BoardGpu]:
        """Return the GPU time that the job reports, in the lease's order; empty before one of its processes uses a GPU."""
        ...

    def set_overhead(self, lease: Lease, gpu_uuid: str, overhead_bytes: int) -> None:
        """Set the bytes that the slice's processes hold on the GPU beyond what its meter has charged, while the job runs.

        The engine measures them once a second. No effect where the enforcer itself counts exactly.
        """
        ...

    def use(self, lease: Lease) -> Sequence[SliceUse]:
        """Read the use of each slice, in the lease's order; never blocks on the job; empty before `prepare`."""
        ...

    def growth(self, lease: Lease) -> "GrowthChannel | None":
        """Return where the job wishes for larger slices; None where they do not grow, and before `prepare`."""
        ...

    def trace(self, lease: Lease) -> bytes | None:
        """Return the log of a traced job in the format of `trace.read`; None where there is none."""
        ...

    def is_held(self, lease: Lease) -> bool:
        """True if any process may still hold memory of the slice, including a forked child with its parent's descriptors."""
        ...

    def release(self, lease: Lease) -> None:
        """Remove the slice's files; no effect where they are gone."""
        ...


class Facts(Protocol):
    """Durable cache of measured facts, text by key. The ledger implements it; this room does not import the ledger."""

    def get(self, key: str) -> str | None:
        """Return the last value of a key; None if there is none."""
        ...

    def put(self, key: str, value: str) -> None:
        """Store the value of a key, replacing the previous one."""
        ...
