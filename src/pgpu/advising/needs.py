"""What a job's kernels need of a GPU while they run: the few figures from which it follows what they do to each other."""

from dataclasses import dataclass, field

from pgpu.model import Resource

PIPES = (Resource.TENSOR, Resource.FP32, Resource.FP64, Resource.L2, Resource.PCIE)
"""What is divided among those who use it at the same time, beside multiprocessors and memory bandwidth."""


@dataclass(frozen=True, slots=True)
class Needs:
    """One job's kernels. Times are parts of their time alone: 1 is all of it."""

    sm: float = 1.0
    """0 to 1: of the multiprocessors' room for blocks."""

    spread: float = 1.0
    """0 to 1: on how many of the multiprocessors there are blocks of it."""

    own: float = 1.0
    """What its own threads take with all of their room, if nothing else held them up: latency and arithmetic in turn."""

    pipes: dict[Resource, float] = field(default_factory=dict)
    """What each pipe needs for its work, only of `PIPES` and only what is known."""

    memory: float = 0.0
    """What the memory needs for its work while the job has the L2 cache for itself."""

    lost_memory: float = 0.0
    """Likewise with nothing of its own in the L2 cache; at least `memory`, and often more than 1."""

    footprint: float = 0.0
    """How much of the L2 cache it touches; 1 is all of it, and more than 1 does not fit."""

    stream: float = 0.0
    """What it brings into the L2 cache whatever it keeps there: of the cache's bandwidth, as `pipes` has it."""

    grain: float = 1.0
    """How often it comes back to a line of the L2 cache for each time that it has read as much as a line: 4 where a thread
    walks along a line by sectors. Who comes back more often keeps more."""

    l1: float = 0.0
    """By how much they take longer with the smallest L1 cache instead of the largest; 0 where the next three say more."""

    l1_reuse: float = 0.0
    """How fast the L1 cache is lost: its part that is left is exp(−this · what companions read of L2's bandwidth, on the same
    multiprocessors, until the job comes back to its lines)."""

    l1_reads: float = 0.0
    """What the L2 cache must give without the L1 cache, beyond what `pipes` has."""

    l1_memory: float = 0.0
    """And what the memory must do then, beyond `memory`."""
