"""The controller of all replicas: polls the control plane, lets the policy decide, and applies its steps.

It runs on the event loop. Requests to the control plane are slow and may fail; the loop goes on meanwhile, and the next poll shows
the result. A server that is away changes nothing for running replicas. The policy itself is `pgpu.functions.scaling`.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from pgpu.errors import PgpuError
from pgpu.functions.control.control_plane import (
    ChangeFeed,
    ControlPlane,
    ControlPlaneThreads,
    PackageBuilds,
    ReplicaJob,
)
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import FunctionRouter, RouterTable
from pgpu.functions.router.replica_connection import ReplicaConnection
from pgpu.functions.scaling.eviction_value import ValueClock
from pgpu.functions.scaling.replica_policy import (
    DrainReplica,
    FailVersion,
    ParkReplica,
    Phase,
    StartReplica,
    Step,
    StopReplica,
    WakeReplica,
    excess_parked,
    plan_steps,
)
from pgpu.model import ColdStart, JobState, ReplicaState

_TICK_SECONDS = 0.05
"""Accuracy of a process's start time: the kernel's clock ticks are 10 ms, rounded down."""

_POLL_SECONDS = 1.0
_STARTING_POLL_SECONDS = 0.25
"""Between two polls of jobs while a replica starts; also between two decisions."""

_CONNECTED_POLL_SECONDS = 15.0
"""Between two polls while the change feed is connected; they should find nothing new."""

_UNKNOWN_JOB = "requested-"
"""Prefix of a replica's id until its job is known."""

_MEMINFO = Path("/proc/meminfo")
_LEAST_FREE = 0.1
"""Part of the host's memory that is left to others: parked replicas hold memory of the host, so they end first."""

_STATES = {
    Phase.HOT: ReplicaState.HOT,
    Phase.PARKED: ReplicaState.PARKED,
    Phase.WAITING: ReplicaState.STARTING,
    Phase.DRAINING: ReplicaState.DRAINING,
    Phase.FAILED: ReplicaState.FAILED,
}
_log = logging.getLogger(__name__)


class ReplicaController:
    """Controls the replicas of all functions of one gateway; on the event loop only."""

    def __init__(self, routers: RouterTable, control_plane: ControlPlane, metrics: GatewayMetrics) -> None:
        self._routers, self._control_plane, self._metrics = routers, control_plane, metrics
        self._threads = ControlPlaneThreads()
        self._leases = ReplicaLeases(control_plane, self._threads)
        self._builds = PackageBuilds(control_plane, self._threads, self._update_functions)
        self._feed = ChangeFeed(control_plane, self._on_change)
        self._dirty: set[FunctionRouter] = set()
        """Functions that need a decision before the next regular one."""

        self._woken = asyncio.Event()
        """Set while `_dirty` has members."""

        self._changed = asyncio.Event()
        """Set when the server reported a change; ends the pause before the next poll."""

        self._ids = itertools.count(1)
        self._starting = 0
        """Replicas that were requested, with jobs that are not known yet."""

        self._stopping: set[str] = set()
        """Jobs that are being ended."""

        self._stopped: set[str] = set()
        """Jobs that have ended since the current poll began; its result may still contain them."""

        self._is_stale = True
        """Whether the server's functions may have changed."""

        self._updated_seconds = 0.0
        self._is_memory_short = False
        routers.events.wake, routers.events.on_phase = self._wake, self._on_phase
        routers.events.reacquire, routers.events.on_first_answer = self._leases.reacquire, self._on_first_answer

    async def open(self) -> bool:
        """Get the functions and replicas before the first decision; False: the server does not answer."""
        if await self.refresh():
            await self._poll()
        return not self._threads.is_away

    async def refresh(self) -> bool:
        """Get the server's functions now, for a call of an unknown function; False: the server does not answer."""
        await self._update_functions()
        return not self._threads.is_away

    async def run(self) -> None:
        """Poll and decide until cancelled.

        In three tasks, so that a slow answer of the server delays no decision about known replicas.
        """
        self._feed.start()
        try:
            async with asyncio.TaskGroup() as working:
                working.create_task(self._keep_polling())
                working.create_task(self._keep_deciding())
                working.create_task(self._keep_time())
        finally:
            self._feed.close()
            self._threads.close()

    async def _keep_polling(self) -> None:
        while True:
            # Cleared before the poll, so that a change during it triggers the next one.
            self._changed.clear()
            await self._poll()
            self._decide_all()
            is_connected = self._feed.is_connected and not self._is_stale
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CONNECTED_POLL_SECONDS if is_connected else self._pause_seconds):
                    await self._changed.wait()

    async def _keep_deciding(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            dirty, self._dirty = self._dirty, set()
            for router in dirty:
                self._decide(router)

    async def _keep_time(self) -> None:
        """Decide at an interval: a replica becomes idle or late without an event."""
        while True:
            await asyncio.sleep(self._pause_seconds)
            self._decide_all()

    @property
    def _pause_seconds(self) -> float:
        starting = {Phase.WAITING, Phase.STARTING}
        is_starting = any(each.phase in starting for router in self._routers for each in router.replicas.values())
        return _STARTING_POLL_SECONDS if is_starting else _POLL_SECONDS

    def _wake(self, router: FunctionRouter) -> None:
        self._dirty.add(router)
        self._woken.set()

    def _on_change(self, change: str) -> None:
        """Poll after a change of functions, or of a replica's job."""
        self._is_stale = self._is_stale or not change
        if not change or any(change in router.replicas for router in self._routers):
            self._changed.set()

    async def _update_functions(self) -> None:
        self._is_stale = False
        # The flag was cleared before the request: a change during it makes the result stale again.
        functions = await self._threads.call(self._control_plane.functions)
        if functions is None:
            self._is_stale = True
        else:
            self._updated_seconds = time.monotonic()
            self._routers.adopt(functions)
            self._builds.start_pending(functions)

    async def _poll(self) -> None:
        # Before the request: a replica that is added during it may be missing in the result, and must not count as ended.
        known = {replica.job_id for router in self._routers for replica in router.replicas.values()}
        is_starting = self._starting > 0
        # Jobs that ended before this poll began cannot be in its result.
        self._stopped.clear()
        if self._is_stale or time.monotonic() - self._updated_seconds >= _POLL_SECONDS:
            await self._update_functions()
        jobs = await self._threads.call(self._control_plane.replica_jobs)
        if jobs is not None:
            self._is_memory_short = any(each.state is JobState.WAITING for each in jobs)
            # Jobs of replicas that are being requested look unknown: unknown jobs are only adopted while there are none.
            self._apply_jobs(jobs, known, is_starting=is_starting or self._starting > 0)

    def _apply_jobs(self, jobs: Sequence[ReplicaJob], known: set[str], *, is_starting: bool) -> None:
        """Update replicas to match their jobs; an unknown job belongs to a replica of an earlier gateway."""
        by_id = {job.job_id: job for job in jobs}
        for router in self._routers:
            for replica in [*router.replicas.values()]:
                if replica.job_id in known and not replica.job_id.startswith(_UNKNOWN_JOB):
                    self._apply_job(router, replica, by_id.get(replica.job_id))
        current = {replica.job_id for router in self._routers for replica in router.replicas.values()}
        current |= self._stopping | self._stopped
        for job in jobs if not is_starting else ():
            if job.job_id not in current:
                self._adopt_replica(job)

    def _apply_job(self, router: FunctionRouter, replica: ReplicaConnection, job: ReplicaJob | None) -> None:
        if job is None or job.state.is_final:
            # Only failed starts count, and delay the next one; a replica that was hot before may end at any time.
            if not replica.hot_since_seconds and replica.phase is not Phase.DRAINING:
                router.loads[replica.version].note_failure()
                reason = job.reason if job is not None else "its job is gone"
                label = f"{router.name}@{replica.version}"
                _log.info("a replica of %s ended before it was ready: %s", label, reason)
            self._remove(router, replica)
            router.refuse_waiting(replica.version)
            self._stop(replica.job_id)
        elif replica.phase is Phase.WAITING and job.state is not JobState.WAITING and not replica.is_woken:
            replica.become(Phase.STARTING)

    def _adopt_replica(self, job: ReplicaJob) -> None:
        router = self._routers.get(job.function)
        if router is None or job.version not in router.loads or job.state.is_final:
            self._stop(job.job_id)
            return
        replica = ReplicaConnection(job.job_id, job.version, router)
        router.add(replica)
        if job.state is not JobState.WAITING:
            replica.become(Phase.STARTING)
        # Its cold start belongs to the earlier gateway and is not measured again.
        replica.has_answered = True
        # The earlier gateway may have marked it evictable, so its lease must be reacquired before its first call.
        replica.offered_value = 0.0
        replica.connect(job.directory)

    def _decide_all(self) -> None:
        for router in self._routers:
            self._decide(router)
        self._end_excess_parked()

    def _end_excess_parked(self) -> None:
        """End parked replicas beyond the host's memory."""
        now = time.monotonic()
        parked = {
            replica.job_id: (router, replica)
            for router in self._routers
            for replica in router.replicas.values()
            if replica.phase is Phase.PARKED and not replica.is_reacquiring
        }
        values = {
            job_id: router.loads[replica.version].view(now, self._leases.clock).value
            for job_id, (router, replica) in parked.items()
        }
        for job_id in excess_parked(values, is_host_short=bool(parked) and _is_host_short()):
            self._apply(parked[job_id][0], StopReplica(job_id))

    def _decide(self, router: FunctionRouter) -> None:
        if not router.is_closed:
            router.choose_window()
            for step in plan_steps(router.view(self._leases.clock, is_memory_short=self._is_memory_short)):
                self._apply(router, step)

    def _apply(self, router: FunctionRouter, step: Step) -> None:
        if isinstance(step, StartReplica):
            replica = ReplicaConnection(f"{_UNKNOWN_JOB}{next(self._ids)}", step.version, router)
            router.add(replica)
            self._metrics.starts[router.name] += 1
            self._threads.start(self._start_replica(router, replica))
            return
        if isinstance(step, FailVersion):
            self._threads.start(self._fail_version(router, step))
            return
        replica = router.replicas[step.job_id]
        if isinstance(step, DrainReplica):
            replica.offered_value = None  # ended by the gateway, not taken by the engine
            replica.become(Phase.DRAINING)
        elif isinstance(step, StopReplica):
            self._remove(router, replica)
            if not replica.job_id.startswith(_UNKNOWN_JOB):
                self._stop(replica.job_id)
        elif isinstance(step, ParkReplica):
            self._leases.park(router, replica)
        elif isinstance(step, WakeReplica):
            replica.wake()
            self._leases.reacquire(router, replica)
        else:
            self._leases.mark_evictable(replica, step.value)

    def _remove(self, router: FunctionRouter, replica: ReplicaConnection) -> None:
        self._leases.note_end(router, replica)
        router.remove(replica)

    async def _start_replica(self, router: FunctionRouter, replica: ReplicaConnection) -> None:
        self._starting += 1
        job = None
        try:
            version = router.function.version(replica.version)
            job = await self._threads.call_strictly(self._control_plane.start, version)
        except PgpuError as error:
            _log.info("no replica of %s@%d can be started: %s", router.name, replica.version, error)
        finally:
            self._starting -= 1
            # Absent if the policy stopped it, or the function was removed, while its job was being submitted. Removed here in any
            # case, since its key changes from the temporary id to that of its job.
            is_needed = router.replicas.pop(replica.job_id, None) is not None
            if job is None:
                router.loads[replica.version].note_failure()
                router.refuse_waiting(replica.version)
        if job is not None and is_needed:
            replica.job_id = job.job_id
            router.add(replica)
            replica.connect(job.directory)
            self._changed.set()  # changes of its job before this moment had an unknown id and were ignored
        elif job is not None:
            self._stop(job.job_id)

    def _stop(self, job_id: str) -> None:
        """End a job in the background; if that fails, the next poll finds it and adopts it again."""
        # Until the job has ended, polls still list it; it must not be adopted as a new replica.
        self._stopping.add(job_id)
        self._threads.start(self._stop_job(job_id))

    async def _stop_job(self, job_id: str) -> None:
        try:
            await self._threads.call_strictly(self._control_plane.stop, job_id)
            self._stopped.add(job_id)
        except PgpuError as error:
            _log.info("%s does not end: %s", job_id, error)
        finally:
            self._stopping.discard(job_id)

    async def _fail_version(self, router: FunctionRouter, step: FailVersion) -> None:
        _log.info("%s@%d is given up: %s", router.name, step.version, step.reason)
        await self._threads.call(self._control_plane.fail, router.function.version(step.version), step.reason)
        await self._update_functions()

    def _on_first_answer(self, router: FunctionRouter, replica: ReplicaConnection) -> None:
        self._threads.start(self._note_start(router.name, replica, time.monotonic()))

    async def _note_start(self, name: str, replica: ReplicaConnection, answered_seconds: float) -> None:
        # Requested now, since the last poll may have seen the job before its grant.
        jobs = await self._threads.call(self._control_plane.replica_jobs) or ()
        job = next((each for each in jobs if each.job_id == replica.job_id), None)
        start = cold_start(name, replica, job, answered_seconds)
        await self._threads.call(self._control_plane.note_start, start)

    def _on_phase(self, replica: ReplicaConnection) -> None:
        router = next((each for each in self._routers if each.replicas.get(replica.job_id) is replica), None)
        if router is not None and replica.phase is Phase.PARKED and router.loads[replica.version].declaration.gpus:
            self._leases.note_end(router, replica)
        state = _STATES.get(replica.phase)
        if state is not None and not replica.job_id.startswith(_UNKNOWN_JOB):
            self._threads.start(self._threads.call(self._control_plane.note_state, replica.job_id, state))


class ReplicaLeases:
    """Requests about the leases of all replicas of one gateway; those about one replica are sent one after the other.

    A replica without a GPU has no lease to free: it ends its worker instead, and starts one when it is woken.
    """

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
            self.clock.note_eviction(replica.offered_value, router.loads[replica.version].size_bytes)
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
    # The ledger has times since the epoch, the replica and this process monotonic ones; both are of one machine.
    epoch = time.time() - time.monotonic()
    granted = job.granted_at_seconds if job is not None else None
    constructing = replica.hot_since_seconds - replica.load_seconds
    process: list[tuple[str, float | None]] = [
        ("runtime", replica.born_seconds or None),
        ("interpreter", constructing - replica.import_seconds),
        ("imports", constructing),
    ]
    is_new = replica.born_seconds > replica.requested_seconds - _TICK_SECONDS or not replica.born_seconds
    ends: list[tuple[str, float | None]] = [
        ("grant", None if granted is None else granted - epoch),
        *(process if is_new else [("restore", constructing)]),
        ("constructor", replica.hot_since_seconds),
        ("first_call", answered_seconds),
    ]
    phases, last = [], replica.requested_seconds
    for name, end in ends:
        if end is not None:
            phases.append((name, max(0.0, end - last)))
            last = max(last, end)
    return ColdStart(function, replica.version, replica.job_id, epoch + replica.requested_seconds, tuple(phases))


def _is_host_short(meminfo: Path = _MEMINFO) -> bool:
    """Whether less than a tenth of the host's memory is available; True where that cannot be read."""
    # MemAvailable includes page cache that can be dropped, MemFree does not: proc_meminfo(5).
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        amounts = {line.split(":")[0]: int(line.split()[1]) for line in lines if ":" in line}
        return amounts["MemAvailable"] < _LEAST_FREE * amounts["MemTotal"]
    except (OSError, ValueError, IndexError, KeyError):
        return True
