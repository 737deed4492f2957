"""MPS: programs of several jobs run on one GPU concurrently, as clients of one server.

Each GPU with such jobs has its own control daemon and pipe directory: a fault affects all clients of a server, so clients
of different GPUs never share one. MPS memory limits are per-process ceilings; the shim still enforces the slice. Job
states are tracked by the callers.
"""

from pgpu.enforcement.mps.control import MpsControl, MpsProof, ServerStatus, find_control, percentage_of
from pgpu.enforcement.mps.daemon import GpuDaemon, Health, MpsDaemons

__all__ = [
    "GpuDaemon",
    "Health",
    "MpsControl",
    "MpsDaemons",
    "MpsProof",
    "ServerStatus",
    "find_control",
    "percentage_of",
]
