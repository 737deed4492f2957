"""The interface to the server that stores functions and runs their replicas, and its implementation over the server's HTTP API.

All methods may block and may raise `PgpuError`; the gateway calls them in threads (`ControlPlaneThreads`).
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pgpu.client import Client
from pgpu.client.remote_service import HttpFunctions
from pgpu.errors import CapacityError, FunctionNotFoundError, JobNotFoundError, RequestError
from pgpu.functions.router.replica_connection import ReacquireResult
from pgpu.model import ColdStart, Function, Job, JobState, Replica, ReplicaState, Version, VersionState
from pgpu.services.messages import Bearer, Judgement, ReplicaAsk, Shown
from pgpu.units import GIB


@dataclass(frozen=True, slots=True)
class ReplicaJob:
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
        """Start to install the packages of a pending version; return the id of the job."""

    def is_built(self, version: Version, job_id: str) -> bool:
        """Whether the installation has ended and the version was judged; one that takes too long is ended first."""

    def bearer(self, token: str) -> Bearer:
        """Return what a token permits."""


_GRACE_SECONDS = 10.0
"""A replica drains on SIGTERM by itself; the gateway has stopped sending calls before."""

_LEAST_FREE_BYTES = 2 * GIB
"""Free space that an installation of packages must leave on the disk of the server's state, where the ledger is."""

BUILD_SECONDS = 1800.0
"""Limit for the packages of one version; see the setting `build_timeout`."""


class HttpControlPlane:
    """Joins the server's functions with its jobs; see `ControlPlane`."""

    def __init__(
        self,
        serving: HttpFunctions,
        client: Client,
        most_build_seconds: float = BUILD_SECONDS,
        free_bytes: Callable[[], int] = lambda: _LEAST_FREE_BYTES,
    ) -> None:
        """Use a server.

        Args:
            serving: Its functions.
            client: Its jobs.
            most_build_seconds: Limit for the installation of a version's packages.
            free_bytes: Returns the free space of the disk for packages.
        """
        self._serving, self._client = serving, client
        self._most_build_seconds, self._free_bytes = most_build_seconds, free_bytes

    def functions(self) -> Sequence[Function]:
        return self._serving.functions()

    def replica_jobs(self) -> Sequence[ReplicaJob]:
        replicas = self._serving.all_replicas()
        if not replicas:
            return []
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
        """Judge an installation that has ended, or that may not go on."""
        job = self._client.job(job_id).job
        if job.state.is_final:
            self._judge(version, job)
            return True
        if self._free_bytes() < _LEAST_FREE_BYTES:
            problem = "the server's disk was nearly full while its packages were installed"
        elif job.started_at_seconds is not None and time.time() - job.started_at_seconds > self._most_build_seconds:
            problem = f"its packages were not installed in {self._most_build_seconds:g} s"
        else:
            return False
        self._client.stop(job_id, grace_seconds=0.0)
        self.fail(version, f"{problem}: pgpu logs {job_id}")
        return True

    def _judge(self, version: Version, job: Job) -> None:
        is_built = job.state is JobState.EXITED and job.exit_code == 0
        state = VersionState.READY if is_built else VersionState.FAILED
        reason = None if is_built else f"its packages could not be installed: pgpu logs {job.id}"
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
    state = job.state if job.wanted_at_seconds is None else JobState.WAITING
    if job.state is JobState.EXITED:
        reason: str | None = f"it ended with exit code {job.exit_code}: pgpu logs {job.id}"
    else:
        reason = job.error or job.reason
    return ReplicaJob(*fields, state, granted, reason)
