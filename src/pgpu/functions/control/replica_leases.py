"""Requests about replicas' leases, one after the other for each replica; and the phases of their cold starts.

A replica without a GPU has no lease to free: it ends its worker instead, and starts one when it is woken.
"""

import logging
import time

from pgpu.errors import PgpuError
from pgpu.functions.control.control_plane import ControlPlane, ReplicaJob
from pgpu.functions.control.control_plane_threads import ControlPlaneThreads
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.replica_connection import ReplicaConnection
from pgpu.functions.scaling import Phase, ValueClock
from pgpu.model import ColdStart

_TICK_SECONDS = 0.05
"""Accuracy of a process's start time: the kernel's clock ticks are 10 ms, rounded down."""

_log = logging.getLogger(__name__)


class ReplicaLeases:
    """Leases of all replicas of one gateway."""

    def __init__(self, control_plane: ControlPlane, threads: ControlPlaneThreads) -> None:
        self._control_plane, self._threads = control_plane, threads
        self.clock = ValueClock()

    def mark_evictable(self, replica: ReplicaConnection, value: float) -> None:
        replica.offered_value = value
        self._threads.start(self._mark_evictable(replica, value))

    def park(self, router: FunctionRouter, replica: ReplicaConnection) -> None:
        replica.become(Phase.PARKED)
        if router.loads[replica.version].declaration.gpus:
            replica.offered_value = None  # freed by the gateway, not taken by the engine
            self._threads.start(self._park(replica))
        else:
            replica.send_command("park")

    def reacquire(self, router: FunctionRouter, replica: ReplicaConnection) -> None:
        self._threads.start(self._reacquire(router, replica))

    def note_end(self, router: FunctionRouter, replica: ReplicaConnection) -> None:
        """Record the end of a lease: one that was evictable and was not freed by the gateway was taken by the engine."""
        if replica.offered_value is not None:
            self.clock.taken(replica.offered_value, router.loads[replica.version].size_bytes)
            replica.offered_value = None

    async def _mark_evictable(self, replica: ReplicaConnection, value: float) -> None:
        async with replica.lease_lock:
            try:
                await self._threads.call_strictly(self._control_plane.mark_evictable, replica.job_id, value)
            except PgpuError as error:
                _log.info("the lease of %s is not evictable: %s", replica.job_id, error)
                replica.offered_value = None

    async def _park(self, replica: ReplicaConnection) -> None:
        async with replica.lease_lock:
            try:
                await self._threads.call_strictly(self._control_plane.park, replica.job_id)
            except PgpuError as error:
                _log.info("%s is not parked: %s", replica.job_id, error)
                replica.become(Phase.DRAINING)

    async def _reacquire(self, router: FunctionRouter, replica: ReplicaConnection) -> None:
        async with replica.lease_lock:
            result = await self._threads.call(self._control_plane.reacquire, replica.job_id)
            # Inside the lock: the next request about this lease must see the result.
            router.on_reacquired(replica, result)


def cold_start(function: str, replica: ReplicaConnection, job: ReplicaJob | None, answered_seconds: float) -> ColdStart:
    """Return the phases of a replica's start after its first answer; phases without both ends are left out.

    | phase | from the end of the phase before, until |
    |---|---|
    | grant | its job has a lease |
    | runtime | its first process runs: in a container, or under a supervisor |
    | interpreter | replica and worker are loaded, without the function's own imports |
    | imports | the function's module was imported |
    | restore | for a parked replica, instead of these three: the worker was resumed, or forked from its zygote |
    | constructor | the handler was constructed and warmed up |
    | first_call | the call that it was started for was answered |
    """
    epoch = time.time() - time.monotonic()
    granted = job.granted_at_seconds if job is not None else None
    constructing = replica.hot_since_seconds - replica.load_seconds
    process: list[tuple[str, float | None]] = [
        ("runtime", replica.born_seconds or None),
        ("interpreter", constructing - replica.import_seconds),
        ("imports", constructing),
    ]
    is_new = replica.born_seconds > replica.asked_seconds - _TICK_SECONDS or not replica.born_seconds
    ends: list[tuple[str, float | None]] = [
        ("grant", None if granted is None else granted - epoch),
        *(process if is_new else [("restore", constructing)]),
        ("constructor", replica.hot_since_seconds),
        ("first_call", answered_seconds),
    ]
    phases, last = [], replica.asked_seconds
    for name, end in ends:
        if end is not None:
            phases.append((name, max(0.0, end - last)))
            last = max(last, end)
    return ColdStart(function, replica.version, replica.job_id, epoch + replica.asked_seconds, tuple(phases))
