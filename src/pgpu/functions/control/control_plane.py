"""The interface to the server that stores functions and runs their replicas, and its implementation over the server's HTTP API.

All methods of `ControlPlane` may block and may raise `PgpuError`. The gateway calls them in threads (`ControlPlaneThreads`), so
that a slow server never blocks the event loop, and follows changes in a thread of its own (`ChangeFeed`).

`PackageBuilds` installs the packages of pending versions and fills their caches: one version of each owner at a time, so that owners do not delay each
other. An installation is a job that is polled, so one that hangs occupies no thread. `ControlPlane.build` returns the same job for
a version that is being installed already, so the next gateway continues it.
"""

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pgpu.client import Client
from pgpu.client.remote_service import HttpFunctions
from pgpu.errors import CapacityError, FunctionNotFoundError, JobNotFoundError, PgpuError, RequestError
from pgpu.functions.deploy.version_jobs import FILL, output_directory_of
from pgpu.functions.router.replica_connection import ReacquireResult
from pgpu.model import ColdStart, Function, Job, JobState, Replica, ReplicaState, Version, VersionState
from pgpu.services.messages import Bearer, Judgement, ReplicaAsk, Shown
from pgpu.structs import Struct
from pgpu.units import GIB

_GRACE_SECONDS = 10.0
"""A replica drains on SIGTERM by itself; the gateway has stopped sending calls before."""

_LEAST_FREE_BYTES = 2 * GIB
"""Free space that an installation of packages must leave on the disk of the server's state, where the ledger is."""

BUILD_SECONDS = 1800.0
"""Limit for the packages of one version; see the setting `build_timeout`."""

_MOST_CACHE_BYTES = 20 * GIB
"""As of `bundle_store`, which takes long to import."""

_THREADS = 8
"""At most so many requests to the server at a time."""

_FEED_RETRY_SECONDS = 0.5
"""Before a new attempt to follow changes."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_BUILD_POLL_SECONDS = 1.0
"""Between two polls of an installation, which takes seconds at least."""


class ReplicaJob(Struct, frozen=True):
    """One replica and the state of its job."""

    job_id: str
    function: str
    version: int
    directory: Path
    """Of the replica's sockets."""

    state: JobState
    granted_at_seconds: float | None = None
    """Since the epoch; None until its job got its lease."""

    reason: str | None = None
    """Why it waits, or why it ended; in one line."""


class ControlPlane(Protocol):
    """Functions and their replicas."""

    def functions(self) -> Sequence[Function]:
        """Return the functions of all users."""

    def replica_jobs(self) -> Sequence[ReplicaJob]:
        """Return every replica that was started and not forgotten, also those with jobs that have ended."""

    def changes(self) -> Iterator[str]:
        """Yield each change as it happens, until the connection ends: a job's id, or an empty string for functions.

        The first change, of functions, is yielded once no later change can be missed; earlier ones are not reported.
        """

    def start(self, version: Version) -> ReplicaJob:
        """Start one more replica, as a job of the function's owner.

        Raises:
            RequestError: The job is impossible.
            CapacityError: It is not possible now.
        """

    def stop(self, job_id: str) -> None:
        """End a replica and forget it; does nothing for an unknown one."""

    def mark_evictable(self, job_id: str, value: float) -> None:
        """Allow the engine to take an idle replica's lease for another job."""

    def reacquire(self, job_id: str) -> ReacquireResult:
        """Undo `mark_evictable`, or have a parked replica wait for its lease."""

    def park(self, job_id: str) -> None:
        """Free an idle replica's lease while its process stays.

        Raises:
            RequestError: The replica cannot park.
        """

    def fail(self, version: Version, reason: str) -> None:
        """Mark a version as failed and restore the previous traffic."""

    def note_state(self, job_id: str, state: ReplicaState) -> None:
        """Store a replica's state for listings."""

    def note_start(self, start: ColdStart) -> None:
        """Store the phases of a cold start."""

    def build(self, version: Version) -> str:
        """Start to install the packages of a pending version, or to fill its cache; return the id of the job."""

    def is_built(self, version: Version, job_id: str) -> bool:
        """Whether the job has ended and the version was judged; one that takes too long is ended first."""

    def bearer(self, token: str) -> Bearer:
        """Return what a token permits."""


class HttpControlPlane:
    """Joins the server's functions with its jobs; see `ControlPlane`."""

    def __init__(
        self,
        serving: HttpFunctions,
        client: Client,
        most_build_seconds: float = BUILD_SECONDS,
        free_bytes: Callable[[], int] = lambda: _LEAST_FREE_BYTES,
        most_cache_bytes: int = _MOST_CACHE_BYTES,
    ) -> None:
        """Use a server.

        Args:
            serving: Its functions.
            client: Its jobs.
            most_build_seconds: Limit for the installation of a version's packages.
            free_bytes: Returns the free space of the disk for packages and caches.
            most_cache_bytes: After which a job that fills a cache is ended; the store checks all of a user's again.
        """
        self._serving, self._client = serving, client
        self._most_build_seconds, self._free_bytes = most_build_seconds, free_bytes
        self._most_cache_bytes = most_cache_bytes

    def functions(self) -> Sequence[Function]:
        return self._serving.functions()

    def replica_jobs(self) -> Sequence[ReplicaJob]:
        replicas = self._serving.all_replicas()
        if not replicas:
            return []
        # One request for all running jobs; only ended ones, of which there are few, are requested one by one.
        live = {report.job.id: report.job for report in self._client.jobs(include_final=False)}
        return [_replica_job(each, live.get(each.job_id) or self._ended_job(each.job_id)) for each in replicas]

    def changes(self) -> Iterator[str]:
        for event in self._serving.events():
            if event is None or event.kind == "function":
                yield ""
            elif event.job_id is not None:
                yield event.job_id

    def start(self, version: Version) -> ReplicaJob:
        replica = self._serving.start_replica(ReplicaAsk(version.function, version.number))
        directory = Path(replica.socket_directory)
        return ReplicaJob(replica.job_id, replica.function, replica.version, directory, JobState.WAITING)

    def stop(self, job_id: str) -> None:
        with contextlib.suppress(JobNotFoundError, RequestError):  # it has ended already, or never existed
            self._client.stop(job_id, grace_seconds=_GRACE_SECONDS)
        self._serving.forget_replica(job_id)

    def mark_evictable(self, job_id: str, value: float) -> None:
        self._client.offer(job_id, value)

    def reacquire(self, job_id: str) -> ReacquireResult:
        try:
            job = self._client.claim(job_id)
        except (CapacityError, JobNotFoundError):
            return ReacquireResult.LOST
        return ReacquireResult.COMING if job.is_aside else ReacquireResult.KEPT

    def park(self, job_id: str) -> None:
        self._client.park(job_id)

    def fail(self, version: Version, reason: str) -> None:
        self._serving.judge(
            version.function, Judgement(version.number, VersionState.FAILED, reason, version.created_at_seconds)
        )

    def note_state(self, job_id: str, state: ReplicaState) -> None:
        with contextlib.suppress(FunctionNotFoundError):  # it was forgotten meanwhile
            self._serving.note_replica(job_id, state)

    def note_start(self, start: ColdStart) -> None:
        with contextlib.suppress(FunctionNotFoundError):  # the function was removed meanwhile
            self._serving.note_cold_start(start.function, start)

    def build(self, version: Version) -> str:
        return self._serving.build(ReplicaAsk(version.function, version.number)).id

    def is_built(self, version: Version, job_id: str) -> bool:
        # The caller polls: no thread waits for a job of minutes.
        job = self._client.job(job_id).job
        if job.state.is_final:
            self._judge(version, job)
            return True
        if self._free_bytes() < _LEAST_FREE_BYTES:
            problem = "the server's disk was nearly full while it was built"
        elif job.started_at_seconds is not None and time.time() - job.started_at_seconds > self._most_build_seconds:
            problem = f"it was not built in {self._most_build_seconds:g} s"
        elif self._fills_too_much(job):
            problem = f"its cache would hold more than {self._most_cache_bytes // GIB} GiB"
        else:
            return False
        self._client.stop(job_id, grace_seconds=0.0)
        self.fail(version, f"{problem}: pgpu logs {job_id}")
        return True

    def _fills_too_much(self, job: Job) -> bool:
        """Whether a job that fills a cache has written more than all caches of a user may hold."""
        if job.spec.command[:2] != FILL:
            return False
        from pgpu.functions.deploy.bundle_store import disk_bytes  # noqa: PLC0415 - a tenth of a gateway's start, and few caches

        return disk_bytes(Path(output_directory_of(job.spec) or "")) > self._most_cache_bytes

    def _judge(self, version: Version, job: Job) -> None:
        is_built = job.state is JobState.EXITED and job.exit_code == 0
        state = VersionState.READY if is_built else VersionState.FAILED
        reason = None
        if not is_built:
            is_fill = job.spec.command[:2] == FILL
            failed = "its cache could not be filled" if is_fill else "its packages could not be installed"
            reason = f"{failed}: pgpu logs {job.id}"
        try:
            self._serving.judge(version.function, Judgement(version.number, state, reason, version.created_at_seconds))
        except FunctionNotFoundError:
            return  # it was removed meanwhile
        except RequestError as error:  # the job installed nothing, and would do so again
            self.fail(version, str(error))

    def bearer(self, token: str) -> Bearer:
        return self._serving.bearer(Shown(token))

    def _ended_job(self, job_id: str) -> Job | None:
        try:
            return self._client.job(job_id).job
        except JobNotFoundError:
            return None


def _replica_job(replica: Replica, job: Job | None) -> ReplicaJob:
    fields = (replica.job_id, replica.function, replica.version, Path(replica.socket_directory))
    if job is None:
        return ReplicaJob(*fields, JobState.FAILED, reason="its job is not known")
    granted = None if job.lease is None else job.lease.granted_at_seconds
    # A parked job that requested its slice again runs, but its replica waits as a new one does.
    state = job.state if job.wanted_at_seconds is None else JobState.WAITING
    if job.state is JobState.EXITED:
        reason: str | None = f"it ended with exit code {job.exit_code}: pgpu logs {job.id}"
    else:
        reason = job.error or job.reason
    return ReplicaJob(*fields, state, granted, reason)


class BackgroundTasks:
    """Tasks of an event loop that nothing awaits; an exception of one is logged."""

    def __init__(self, problem: str) -> None:
        """Begin without tasks; `problem` starts the line in the log."""
        self._problem = problem
        # asyncio refers to tasks weakly only: without this set the garbage collector could remove a waiting one.
        self._tasks: set[asyncio.Task[object]] = set()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _on_done(self, task: "asyncio.Task[object]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s: %r", self._problem, error)


class ControlPlaneThreads:
    """Calls blocking methods in threads, and runs background tasks, for one event loop."""

    def __init__(self) -> None:
        # Bounded: with a server that hangs, further calls wait in the pool's queue instead of in threads of their own.
        self._threads = ThreadPoolExecutor(_THREADS, "control-plane")
        self._tasks = BackgroundTasks("a bug of the gateway")
        self.start = self._tasks.start
        self.is_away = False
        """Whether the last `call` failed."""

    async def call(self, method: Callable[..., _T], *arguments: Any) -> _T | None:
        """Call a method; None if it fails, which is logged once until a call succeeds."""
        try:
            result = await self.call_strictly(method, *arguments)
        except PgpuError as error:
            if not self.is_away:
                _log.info("the server does not answer as it should: %s", error)
            self.is_away = True
            return None
        self.is_away = False
        return result

    async def call_strictly(self, method: Callable[..., _T], *arguments: Any) -> _T:
        """Call a method, and raise what it raises."""
        call = functools.partial(method, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    def close(self) -> None:
        """Cancel all background tasks and pending calls."""
        self._tasks.cancel()
        # Without a wait: a thread may be blocked in a request to a server that has ended.
        self._threads.shutdown(wait=False, cancel_futures=True)


class ChangeFeed:
    """Follows a control plane's changes in a thread of its own.

    A change that is missed between two connections is found by polling, since each connection begins with a change of functions.
    """

    def __init__(self, control_plane: ControlPlane, on_change: Callable[[str], None]) -> None:
        """Prepare; `start()` begins.

        Args:
            control_plane: Reports the changes.
            on_change: Called on this event loop with each change: a job's id, or an empty string for functions.
        """
        self._control_plane, self._on_change = control_plane, on_change
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self.is_connected = False
        """Whether changes are reported now; else the caller must poll."""

    def start(self) -> None:
        """Start the thread. A daemon, never joined: it may block until the next change."""
        threading.Thread(target=self._follow, name="change-feed", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _follow(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(PgpuError):  # the controller's polling logs that the server is away
                try:
                    for change in self._control_plane.changes():
                        self._pass_on(change)
                        if self._ended.is_set():
                            return
                finally:
                    # None on the loop: the feed is disconnected, and the controller polls at its usual interval.
                    self._pass_on(None)
            self._ended.wait(_FEED_RETRY_SECONDS)

    def _pass_on(self, change: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(self._on_thread_change, change)

    def _on_thread_change(self, change: str | None) -> None:
        self.is_connected = change is not None
        if change is not None and not self._ended.is_set():
            self._on_change(change)


class PackageBuilds:
    """Installations for all functions of one gateway."""

    def __init__(
        self,
        control_plane: ControlPlane,
        threads: ControlPlaneThreads,
        on_judged: Callable[[], Coroutine[Any, Any, None]],
        poll_seconds: float = _BUILD_POLL_SECONDS,
    ) -> None:
        """Begin with none.

        Args:
            control_plane: Installs packages.
            threads: Calls its methods.
            on_judged: Called after a version was judged.
            poll_seconds: Between two polls of an installation.
        """
        self._control_plane, self._threads, self._on_judged = control_plane, threads, on_judged
        self._poll_seconds = poll_seconds
        self._owners: set[int] = set()
        """Owners with an installation under way."""

        self._attempts: Counter[str] = Counter()
        """By the versions' labels: a version with a failed attempt comes after those without one."""

    def start_pending(self, functions: Sequence[Function]) -> None:
        """Start an installation for each owner with pending versions and none under way."""
        # In order of failed attempts: a version that can never be installed does not block its owner's others.
        pending = [each for known in functions for each in known.versions if each.state is VersionState.PENDING]
        for version in sorted(pending, key=lambda each: self._attempts[each.label]):
            if version.owner_uid not in self._owners:
                self._owners.add(version.owner_uid)
                self._attempts[version.label] += 1
                self._threads.start(self._build(version))

    async def _build(self, version: Version) -> None:
        call = self._threads.call_strictly
        is_judged = False
        try:
            job_id = await call(self._control_plane.build, version)
            while not await call(self._control_plane.is_built, version, job_id):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(self._poll_seconds)
            is_judged = True
        except PgpuError as error:
            _log.info("the packages of %s cannot be installed now: %s", version.label, error)
        finally:
            # Also after a failure: the next poll of functions tries the owner's versions again.
            self._owners.discard(version.owner_uid)
        if is_judged:
            await self._on_judged()
