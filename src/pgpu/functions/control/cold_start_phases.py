"""A cold start taken apart: what each phase of it took. Pure.

| phase | from the phase before it, until |
|---|---|
| grant | its job has a lease |
| runtime | the first process in it lives: in a container, or under a supervisor alone |
| interpreter | what front and worker need is loaded, but for what the function itself imports |
| imports | the function's module was imported |
| restore | of one that was parked, instead of these three: it has all that it had, or a worker forked from its zygote |
| constructor | the callable object was constructed, and warmed up |
| first_call | the call that it was started for was answered |

It refuses to guess: a phase whose ends are not known is left out.
"""

import time

from pgpu.functions.router.control_plane import ReplicaJob
from pgpu.functions.router.replica_connection import ReplicaConnection
from pgpu.model import ColdStart

_TICKS_SECONDS = 0.05
"""When a process was born is known in ticks of the kernel's clock, 10 ms each, rounded down."""


def cold_start(
    function: str, link: ReplicaConnection, standing: ReplicaJob | None, answered_seconds: float
) -> ColdStart:
    """Describe the start of a replica whose first call was just answered."""
    epoch = time.time() - time.monotonic()
    granted = standing.granted_at_seconds if standing is not None else None
    constructing = link.hot_since_seconds - link.load_seconds
    begun: list[tuple[str, float | None]] = [
        ("runtime", link.born_seconds or None),
        ("interpreter", constructing - link.import_seconds),
        ("imports", constructing),
    ]
    is_new = link.born_seconds > link.asked_seconds - _TICKS_SECONDS or not link.born_seconds
    ends: list[tuple[str, float | None]] = [
        ("grant", None if granted is None else granted - epoch),
        *(begun if is_new else [("restore", constructing)]),
        ("constructor", link.hot_since_seconds),
        ("first_call", answered_seconds),
    ]
    phases, last = [], link.asked_seconds
    for name, end in ends:
        if end is not None:
            phases.append((name, max(0.0, end - last)))
            last = max(last, end)
    return ColdStart(function, link.version, link.job_id, epoch + link.asked_seconds, tuple(phases))
