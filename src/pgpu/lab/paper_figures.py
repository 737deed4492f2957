"""The measurements of the papers P1 to P5, as data.

P1: Kim and Kang, Korea University, 2023. P2: Kang and Gil, Korea University and Daegu Catholic University, 2022.
P3: Son, Kim and Han, SKKU, 2018, on a GTX 980 Ti. P4: "pGPU", thesis abstract, 2022. P5: Hwang and others,
KETI, 2019, on Kubernetes. On one RTX 3090 unless noted. Figures of our own do not belong here.
"""

from dataclasses import dataclass
from typing import Literal

P1_DEVICE_MIB = 24_265
"""Usable memory of P1's and P2's RTX 3090."""

P1_JOB_MIB = 1_205
"""Memory of one of P1's jobs, context included."""


@dataclass(frozen=True, slots=True)
class P1Row:
    """One line of P1's table: containers started at one moment."""

    jobs: int
    shortest_seconds: float
    longest_seconds: float
    saw_refusal: int | None
    """Containers with an out-of-memory error; None if the paper gives no figure."""

    failed: int


P1_TABLE = (
    P1Row(2, 8.383, 8.502, 0, 0),
    P1Row(3, 8.473, 8.535, 0, 0),
    P1Row(4, 8.485, 8.727, 0, 0),
    P1Row(5, 8.701, 8.932, 0, 0),
    P1Row(6, 8.97, 9.135, 0, 0),
    P1Row(7, 9.005, 9.21, 0, 0),
    P1Row(8, 8.935, 9.313, 0, 0),
    P1Row(9, 8.816, 9.182, 0, 0),
    P1Row(10, 7.909, 8.272, 0, 0),
    P1Row(11, 8.016, 8.454, 0, 0),
    P1Row(12, 8.44, 8.84, 0, 0),
    P1Row(13, 8.661, 9.131, 0, 0),
    P1Row(14, 8.919, 9.651, 0, 0),
    P1Row(15, 9.283, 10.922, 0, 0),
    P1Row(16, 9.568, 10.401, 0, 0),
    P1Row(17, 10.075, 10.906, 0, 0),
    P1Row(18, 10.483, 15.053, 0, 0),
    P1Row(19, 11.094, 15.987, 0, 0),
    P1Row(20, 11.508, 16.632, 0, 0),
    P1Row(21, 11.781, 15.952, 5, 0),
    P1Row(22, 11.554, 13.858, 7, 0),
    P1Row(23, 12.418, 24.608, 8, 0),
    P1Row(24, 11.728, 25.678, None, 6),
    P1Row(25, 10.75, 13.924, None, 15),
)
"""Source: P1. At 24 and 25 over repeated runs 7 to 16 of the jobs failed."""


def p1_row(jobs: int) -> P1Row | None:
    """Return P1's line for a number of containers, or None."""
    return next((row for row in P1_TABLE if row.jobs == jobs), None)


P2_HELD_MIB = 22_885
"""Memory that one training job allocates by default: 94 % of the GPU. Source: P2."""

P2_USED_MIB = 1_205
"""The part of it that is used. Source: P2."""

P2_GROWTH_COST_PERCENT = 0.6
"""Difference in run time with memory growth: about 0.5 s of 10 epochs. Source: P2."""

P3_OVERHEAD_SECONDS = 0.96
"""Mean time that `docker exec` adds to a program, independent of the program. Source: P3."""

P3_FITTING_CONTAINERS = 52
"""Containers of hotspot3D that ran together in 93 % of 6 GB; of more, most failed. Source: P3."""


@dataclass(frozen=True, slots=True)
class P3Cell:
    """Run time of the cache-sensitive program beside another one, in seconds."""

    size: int
    """P3's input size."""

    neighbour: Literal["CS", "CI"]
    """Another cache-sensitive program, or a cache-insensitive one."""

    mps_seconds: float
    turns_seconds: float
    """Without MPS: the programs take turns."""

    @property
    def mps_wins(self) -> bool:
        """Whether it ran shorter under MPS."""
        return self.mps_seconds < self.turns_seconds


P3_TABLE = (
    P3Cell(5_120, "CS", 0.73984, 1.4952),
    P3Cell(10_240, "CS", 2.72925, 3.24161),
    P3Cell(20_480, "CS", 13.38374, 12.57792),
    P3Cell(40_960, "CS", 223.60555, 61.51608),
    P3Cell(5_120, "CI", 0.70990, 1.49199),
    P3Cell(10_240, "CI", 1.58436, 3.35677),
    P3Cell(20_480, "CI", 6.75526, 12.37545),
    P3Cell(40_960, "CI", 40.67550, 50.70506),
)
"""Source: P3."""

P4_BEFORE = "who exceeds the share is put into state STOP until somebody sets it to RUN"
P4_WITH = "only that process's request is refused; the container keeps running"


@dataclass(frozen=True, slots=True)
class P5Row:
    """Response time of 100 requests to an SSD detector in TensorFlow, as one kind of function."""

    kind: Literal["cpu", "gpu"]
    before_seconds: float
    """Mean, where each call declared the model and loaded its weights."""

    before_deviation_seconds: float
    after_seconds: float
    """Mean of the callable object, which does so once."""

    after_deviation_seconds: float


P5_TABLE = (
    P5Row("cpu", 1.87, 1.062, 0.26, 0.012),
    P5Row("gpu", 56.55, 150.710, 0.02, 0.001),
)
"""Source: P5."""
