"""Hard slices of a GPU for processes and containers.

Rooms, from the outside in; each may use only those below it (checked by import-linter):

    cli          the command line: the only room that prints and knows exit codes
    app          wiring: picks real or simulated parts
    experiments  the papers' experiments, reproduced
    functions    warm callable objects: what a function is, its worker, its front
    kubernetes   slices for the pods of a node: kubelet, API server, devices
    server       the engine for many users, over HTTP
    client       one protocol for callers of the engine
    engine       admit, start, watch, reclaim
    runtimes     put a job into a lease: process, docker, oci
    enforcement  make a lease bind: shim, driver, mig
    gpu          what a GPU tells, and the simulated one
    ledger       SQLite: the one truth that survives a crash
    scheduling   pure decisions: who starts now, and where
    model        frozen values: Gpu, Request, Slice, Lease, Job
    workloads    real CUDA programs over the public driver API
    errors units

It refuses to hold any code itself: what a function's author writes, `pgpu.function`, `pgpu.Batch` and `pgpu.Context`,
comes from its room when it is first named, so `import pgpu` stays free.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgpu.functions.api import Batch, Context, function

__all__ = ["Batch", "Context", "function"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'pgpu' has no attribute {name!r}")
    return getattr(import_module("pgpu.functions.api"), name)
