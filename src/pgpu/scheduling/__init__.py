"""Pure decisions: which request starts now, and on which GPUs.

Functions of values only: no clock, file, socket, randomness or log.
"""

from pgpu.scheduling.admission import Admission, Cause, Grant, Wait, admit
from pgpu.scheduling.candidate import Candidate, Held, Quota
from pgpu.scheduling.capacity import GpuRoom, Headroom, check_can_ever_fit, taken_bytes, usable
from pgpu.scheduling.forecast import expected_starts
from pgpu.scheduling.order import OrderRules

__all__ = [
    "Admission",
    "Candidate",
    "Cause",
    "GpuRoom",
    "Grant",
    "Headroom",
    "Held",
    "OrderRules",
    "Quota",
    "Wait",
    "admit",
    "check_can_ever_fit",
    "expected_starts",
    "taken_bytes",
    "usable",
]
