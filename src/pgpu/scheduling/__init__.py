"""Pure decisions: which request starts now, and on which GPUs.

Functions of values only: no clock, file, socket, randomness or log.
"""

from pgpu.scheduling.admission import Admission, Candidate, Grant, Wait, admit
from pgpu.scheduling.capacity import GpuRoom, Headroom, check_can_ever_fit, taken_bytes, usable

__all__ = [
    "Admission",
    "Candidate",
    "GpuRoom",
    "Grant",
    "Headroom",
    "Wait",
    "admit",
    "check_can_ever_fit",
    "taken_bytes",
    "usable",
]
