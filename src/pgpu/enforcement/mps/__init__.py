"""MPS: programs of several jobs run on one GPU at the same moment, as clients of one server.

One control daemon for each GPU that has such jobs, with a pipe directory of its own: a fault hits all clients that share
a GPU, so clients of different GPUs never share a server. Its limits are ceilings, for each process; a slice is still
kept by the shim, which stays on. This room refuses to know jobs' states: who calls it does.
"""

from pgpu.enforcement.mps.client import percentage_of
from pgpu.enforcement.mps.control import MpsControl, ServerStatus, find_control
from pgpu.enforcement.mps.daemon import GpuDaemon, Health, MpsDaemons
from pgpu.enforcement.mps.proof import MpsProof

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
