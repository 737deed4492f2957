"""Slices for an orchestrator that has chosen GPUs and sizes itself: held until it frees them, whatever dies meanwhile.

It refuses to queue: what does not fit now is an error, and asked for again.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from pgpu.enforcement import SliceUse
from pgpu.ledger import ClaimRecord
from pgpu.model import Claim, Gpu, HeldClaim
from pgpu.units import MIB

STEP_BYTES = 256 * MIB
"""Slices of claims are whole multiples of it, so that what is left of a GPU can be told exactly."""


@dataclass(frozen=True, slots=True)
class ClaimableGpu:
    """What claims may take of one GPU."""

    gpu: Gpu
    memory_bytes: int
    """In all: without headroom, and without what others than claims hold of it now."""

    held_bytes: int
    """What claims hold of it."""

    is_closed: bool
    """Whether the administrator lets nothing new start there."""

    has_mps: bool = False
    """Whether claims can share it under MPS."""

    oversubscription: float = 1.0
    """How many times its memory claims that oversubscribe may sum to, about; 1 where none can."""


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
        """Give a claim its slices, and return when they bind. The same claim again gets the same ones, made anew if they are gone.

        Args:
            claim: To be held.
            gpus: What `gpus` returned a moment ago: its NVML reading is used again. None: NVML is read here.

        Raises:
            RequestError: It can never be, such as a slice smaller than a CUDA context; or its uid is held with other slices.
            CapacityError: There is no room for it now.
            NodeError: A GPU is gone, or a limit cannot be enforced.
        """
        ...

    def free(self, uid: str) -> None:
        """Take a claim's slices away, and return once their memory is free; does nothing where nobody holds that uid.

        Whatever still runs inside is killed. Works where the GPU is gone.

        Raises:
            NodeError: Somebody still holds memory of it; it stays noted, and is asked for again.
        """
        ...

    def held(self) -> Sequence[HeldClaim]:
        """Return every claim that is held, its slices made anew where they are gone: after a reboot all are.

        One whose slices cannot be made is left out, and told in the log; it is tried again with the next call.

        Raises:
            NodeError: The ledger cannot be used.
        """
        ...

    def records(self) -> Mapping[str, ClaimRecord]:
        """Return by uid whom slices were given and not taken back, whether they are there now or not. Makes none, waits for none.

        Raises:
            NodeError: The ledger cannot be read.
        """
        ...

    def uses(self) -> Mapping[str, Sequence[SliceUse]]:
        """Return what each held claim's containers hold of its slices, by uid.

        Raises:
            NodeError: The ledger cannot be read.
        """
        ...

    def close(self) -> None:
        """Let this process go; slices stay."""
        ...
