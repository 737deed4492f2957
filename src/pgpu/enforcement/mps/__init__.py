"""MPS: programs of several jobs run on one GPU concurrently, as clients of one server.

Each GPU with such jobs has its own control daemon and pipe directory: a fault affects all clients of a server, so clients
of different GPUs never share one. MPS memory limits are per-process ceilings; the shim still enforces the slice. Job
states are tracked by the callers. Names are imported from their modules on first access: commands only look for the program.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgpu.enforcement.mps.control import MpsControl, MpsProof, ServerStatus, percentage_of
    from pgpu.enforcement.mps.daemon import GpuDaemon, Health, MpsDaemons
    from pgpu.enforcement.mps.daemon_process import find_control

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

_MODULES = {"GpuDaemon": "daemon", "Health": "daemon", "MpsDaemons": "daemon", "find_control": "daemon_process"}


def __getattr__(name: str) -> object:
    # Called only for names that the module does not have (PEP 562).
    if name not in __all__:
        raise AttributeError(f"module 'pgpu.enforcement.mps' has no attribute {name!r}")
    return getattr(import_module(f"pgpu.enforcement.mps.{_MODULES.get(name, 'control')}"), name)
