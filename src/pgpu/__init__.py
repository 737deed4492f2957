"""Hard slices of a GPU for processes and containers.

Rooms, from the outside in; each may use only those below it (checked by import-linter):

    cli          the command line: the only room that prints and knows exit codes
    app          wiring: picks real or simulated parts
    experiments  the papers' experiments, reproduced
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

It refuses to hold any code itself.
"""
