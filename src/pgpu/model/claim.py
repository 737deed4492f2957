"""What an orchestrator of containers asks of one node: slices for somebody whom it names, on GPUs that it has chosen itself."""

from dataclasses import dataclass

from pgpu.model.delivery import Delivery
from pgpu.model.lease import Slice
from pgpu.model.sharing import SharingWish


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim on slices of certain GPUs. It has no command and no process: it lasts until it is freed."""

    uid: str
    """Whom the slices are for, such as a ResourceClaim's uid: 1 to 63 letters, digits and dashes."""

    namespace: str
    name: str
    """What people call it; both empty where nobody said."""

    slices: tuple[Slice, ...]
    """1 to 16, on distinct GPUs, in the order in which its containers see them; sizes may differ."""

    sharing: SharingWish = SharingWish.TIME_SLICE
    """`EXCLUSIVE` for whole GPUs."""

    is_strict: bool = False
    """Whether it never gets more than its compute shares, even of GPUs that are idle."""

    priority: int = 0
    """-100 to 100: of two that want a GPU's time the one of a higher priority gets more of it."""

    oversubscribes: bool = False
    """Whether its memory may be moved to the host while others use the GPU."""

    wait_for_memory_seconds: float = 0.0
    """How long an allocation inside the slice that the device cannot back right now waits before it fails."""

    note: str = ""
    """The orchestrator's own words, kept with the claim."""


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A claim that has its slices."""

    claim: Claim
    job_id: str
    """As which the node's ledger knows it."""

    delivery: Delivery
    """What its containers must be given."""
