"""Pure scheduling decisions: which request starts now, on which GPUs, and what other jobs give up for it.

Functions of values only: no clock, file, socket, randomness or log.
"""

from pgpu.scheduling.admission import admit
from pgpu.scheduling.admission_round import (
    NO_PRECEDENCE,
    Admission,
    Candidate,
    Cause,
    Grant,
    Held,
    OverdueReservation,
    Precedence,
    Quota,
    ServedJob,
    Wait,
)
from pgpu.scheduling.capacity import GpuRoom, Headroom, check_can_ever_fit, has_compute, taken_bytes, usable
from pgpu.scheduling.forecast import expected_starts
from pgpu.scheduling.order import OrderRules

__all__ = [
    "NO_PRECEDENCE",
    "Admission",
    "Candidate",
    "Cause",
    "GpuRoom",
    "Grant",
    "Headroom",
    "Held",
    "OrderRules",
    "OverdueReservation",
    "Precedence",
    "Quota",
    "ServedJob",
    "Wait",
    "admit",
    "check_can_ever_fit",
    "expected_starts",
    "has_compute",
    "taken_bytes",
    "usable",
]
