"""What forbids MPS whatever it would gain.

Sources: NVIDIA, Multi-Process Service (2025), "Volta MPS": 48 clients a device; before Volta clients share one address space, so
that one's stray write reaches another's memory. No fault is contained on any of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pgpu.model import Profile

VOLTA = (7, 0)
MOST_CLIENTS = 48


@dataclass(frozen=True, slots=True)
class GpuKind:
    """What the advice must know of a GPU."""

    name: str
    """As profiles of it are named."""

    compute_capability: tuple[int, int] | None
    """None is not known: then MPS is taken to be as on the newest."""

    is_instance: bool = False
    """Whether it is a MIG instance."""


def gates(profiles: Sequence[Profile], gpu: GpuKind, *, gpu_counts: Sequence[int] = ()) -> tuple[str, ...]:
    """Return what stands against MPS for these jobs together, in words; nothing may.

    Args:
        profiles: The jobs.
        gpu: Which they would share.
        gpu_counts: How many GPUs each of them has; none told: one.
    """
    is_old = gpu.compute_capability is not None and gpu.compute_capability < VOLTA
    against = (
        (
            len({profile.owner_uid for profile in profiles}) > 1,
            "their users do not trust each other: a fault under MPS ends all of its clients",
        ),
        (len(profiles) > MOST_CLIENTS, f"MPS has room for {MOST_CLIENTS} clients on a GPU"),
        (
            any(count > 1 for count in gpu_counts),
            "a job on several GPUs would carry a fault from one GPU's MPS server to another's",
        ),
        (gpu.is_instance, "a MIG instance is granted whole, to one job: nobody is there to share it with"),
        (is_old, "before Volta MPS does not keep clients' memory apart"),
    )
    return tuple(reason for stands, reason in against if stands)
