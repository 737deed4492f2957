"""Slices for an orchestrator that chooses GPUs and sizes itself; held until it frees them, across crashes and reboots.

There is no queue: a claim that does not fit now is an error, and the orchestrator tries again.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from pgpu.enforcement import SliceUse
from pgpu.errors import RequestError
from pgpu.ledger import ClaimRecord
from pgpu.model import Claim, Gpu, HeldClaim
from pgpu.structs import Struct
from pgpu.units import MIB

STEP_BYTES = 256 * MIB
"""Granularity of claims' slices, so that what is left of a GPU is known exactly."""

_MOST_GPUS = 16


class ClaimableGpu(Struct, frozen=True):
    """One GPU as claims see it."""

    gpu: Gpu
    memory_bytes: int
    """Of all claims together: without headroom, and without memory held from outside of claims now."""

    held_bytes: int
    """By claims."""

    is_closed: bool
    """Whether the administrator has closed it to new jobs."""

    has_mps: bool = False
    """Whether claims can share it under MPS."""

    oversubscription: float = 1.0
    """How many times its memory oversubscribing claims may sum to, about; 1 where none can."""


def check_words(claim: Claim) -> None:
    """Raise RequestError for a claim that no node could hold."""
    uuids = [part.gpu_uuid for part in claim.slices]
    if not 1 <= len(uuids) <= _MOST_GPUS or len(set(uuids)) != len(uuids):
        raise RequestError(f"a claim is for slices of 1 to {_MOST_GPUS} GPUs, of each GPU one")
    if not all(part.memory_bytes > 0 for part in claim.slices):
        raise RequestError("a slice must have memory")
    if len({part.compute_share for part in claim.slices}) != 1:
        raise RequestError("the slices of one claim must have the same share of their GPUs' time")


class Claims(Protocol):
    """The claims of one node. Safe for many threads."""

    def gpus(self) -> Sequence[ClaimableGpu]:
        """Return every GPU, in the driver's order.

        Raises:
            NodeError: They cannot be read.
        """
        ...

    def lock(self, uid: str) -> AbstractContextManager[None]:
        """Serialise what threads do with one claim; `hold` and `free` take the same lock, which is reentrant."""
        ...

    def hold(self, claim: Claim, gpus: Sequence[ClaimableGpu] | None = None) -> HeldClaim:
        """Make a claim's slices, and return when they bind. Idempotent: the same claim gets the same slices, remade if they are gone.

        Args:
            claim: To be held.
            gpus: A recent result of `gpus`; its NVML reading is used again. None: NVML is read here.

        Raises:
            RequestError: It can never be held, such as a slice smaller than a CUDA context; or its uid is held with other slices.
            CapacityError: There is no room for it now.
            NodeError: A GPU is gone, or a limit cannot be enforced.
        """
        ...

    def free(self, uid: str) -> None:
        """Remove a claim's slices, and return once their memory is free; does nothing for an unknown uid.

        Kills what still runs inside. Works if the GPU is gone.

        Raises:
            NodeError: Memory of it is still held. The claim stays recorded as freed; call again.
        """
        ...

    def held(self) -> Sequence[HeldClaim]:
        """Return every held claim, its slices remade where they are gone: after a reboot all are.

        A claim without slices that could be made is logged and left out; the next call tries again.

        Raises:
            NodeError: The ledger cannot be used.
        """
        ...

    def records(self) -> Mapping[str, ClaimRecord]:
        """Return the recorded claims by uid, whether their slices exist now or not. Makes none, waits for none.

        Raises:
            NodeError: The ledger cannot be read.
        """
        ...

    def uses(self) -> Mapping[str, Sequence[SliceUse]]:
        """Return the memory that each held claim's containers use, by uid.

        Raises:
            NodeError: The ledger cannot be read.
        """
        ...

    def close(self) -> None:
        """Close the ledger; slices stay."""
        ...
