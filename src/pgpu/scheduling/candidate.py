"""What admission is told of jobs: those that wait, those that hold memory, and what each user may hold.

Values only; who fills them in reads the ledger.
"""

from dataclasses import dataclass, replace

from pgpu.model import Gpu, Request, SharingMode, Slice
from pgpu.scheduling.capacity import usable
from pgpu.scheduling.tenancy import mode_of


@dataclass(frozen=True, slots=True)
class Candidate:
    """One waiting job."""

    job_id: str
    request: Request
    deadline_seconds: float | None = None
    """When its wait runs out, in seconds since the epoch; None for never."""

    owner_uid: int = 0
    eligible_at_seconds: float = 0.0
    """Since when only memory and its turn keep it waiting, in seconds since the epoch: its wait is counted from there."""

    duration_seconds: float | None = None
    """How long it will probably run: the median of its history; None where there is none."""

    takes_free: bool = False
    """Whether nobody knows its need: it then takes what is free where it is placed, and no less than its request."""

    gpu_uuid: str | None = None
    """The only GPU that will do; None for any."""

    @property
    def mode(self) -> SharingMode:
        """How it shares its GPUs."""
        return mode_of(self.request.sharing)

    @property
    def compute_share(self) -> float:
        """What it takes of each GPU's time, 0 to 1: all of one that it has alone."""
        return 1.0 if self.mode is SharingMode.EXCLUSIVE else self.request.compute_share or 0.0

    def can_use(self, gpu: Gpu) -> bool:
        """Whether a GPU will do, whatever is free of it."""
        return self.gpu_uuid in {None, gpu.uuid} and usable(gpu, self.request.gpu_count)

    def asking(self, memory_bytes: int) -> "Candidate":
        """Return the same job with a request for so much on each of its GPUs."""
        if memory_bytes == self.request.memory_bytes:
            return self
        return replace(self, request=replace(self.request, memory_bytes=memory_bytes))


@dataclass(frozen=True, slots=True)
class Held:
    """One job whose slices count."""

    job_id: str
    owner_uid: int
    slices: tuple[Slice, ...]
    granted_at_seconds: float
    compute_share: float = 0.0
    """Of each of its GPUs, 0 to 1."""

    duration_seconds: float | None = None
    """As of a candidate."""

    mode: SharingMode = SharingMode.TIME_SLICE
    """How it shares its GPUs."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What one user may hold at a time."""

    memory_bytes: int | None = None
    """Over all GPUs; None for as much as there is."""

    jobs: int | None = None
    """Granted at a time; None for any number."""

    weight: float = 1.0
    """Above 0: a user of weight 2 is entitled to twice the share of one of weight 1."""


NO_QUOTA = Quota()
