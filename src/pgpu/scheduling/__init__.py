"""Pure scheduling decisions: which request starts now, on which GPUs, and what other jobs give up for it.

Functions of values only: no clock, file, socket, randomness or log. Names are imported from their modules on first access:
most commands only need sizes of GPUs, and neither decide nor predict anything.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgpu.scheduling.admission import admit
    from pgpu.scheduling.admission_round import (
        NO_PRECEDENCE,
        Admission,
        Candidate,
        Cause,
        Grant,
        Held,
        OrderRules,
        OverdueReservation,
        Precedence,
        Quota,
        VirtualTime,
        Wait,
    )
    from pgpu.scheduling.capacity import GpuRoom, Headroom, check_can_ever_fit, has_compute, taken_bytes, usable
    from pgpu.scheduling.forecast import expected_starts

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
    "VirtualTime",
    "Wait",
    "admit",
    "check_can_ever_fit",
    "expected_starts",
    "has_compute",
    "taken_bytes",
    "usable",
]

_CAPACITY = {"GpuRoom", "Headroom", "check_can_ever_fit", "has_compute", "taken_bytes", "usable"}
_OTHERS = {"admit": "admission", "expected_starts": "forecast"}


def __getattr__(name: str) -> object:
    # Called only for names that the module does not have (PEP 562).
    if name not in __all__:
        raise AttributeError(f"module 'pgpu.scheduling' has no attribute {name!r}")
    module = "capacity" if name in _CAPACITY else _OTHERS.get(name, "admission_round")
    return getattr(import_module(f"pgpu.scheduling.{module}"), name)
