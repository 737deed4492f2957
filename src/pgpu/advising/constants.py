"""The few numbers that the advice cannot read from profiles: what sharing itself costs on a GPU.

The defaults are ours and unproven; `pgpu calibrate` fits them on a machine's own GPU. It refuses to know where they are kept.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Constants:
    """What sharing costs on one model of GPU under one driver."""

    switch_overhead: float = 0.03
    """By this fraction everybody gets slower while several contexts take turns. Source: design's 1.03, unproven."""

    crowd_overhead: float = 0.0
    """By this fraction kernels get slower for each companion that runs at once under MPS, beyond what they compete for."""

    l1_weight: float = 1.0
    """How much of the slowdown with the smallest L1 carve-out a companion on the same multiprocessors causes."""

    l2_weight: float = 1.0
    """How much of the L2 cache companions take, as a multiple of what they touch."""

    is_calibrated: bool = False
    """Whether they were fitted on this model of GPU and driver."""
