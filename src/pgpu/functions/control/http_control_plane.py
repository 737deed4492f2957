"""The desk of a server: asked over its API, like everybody asks.

It refuses to remember: what the server says is what there is.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pgpu.client import Client
from pgpu.client.protocol import GatewayClient
from pgpu.errors import CapacityError, FunctionNotFoundError, JobNotFoundError, RequestError
from pgpu.functions.router.control_plane import ReacquireResult, ReplicaJob
from pgpu.model import ColdStart, Function, Job, JobState, Replica, ReplicaState, Version, VersionState
from pgpu.services.messages import Bearer, Judgement, ReplicaAsk, Shown
from pgpu.units import GIB

_GRACE_SECONDS = 10.0
"""A front drains on SIGTERM by itself; the gateway has seen before that it has nothing to do."""


_LEAST_FREE_BYTES = 2 * GIB
"""Of the disk of the server's state: packages that are being installed leave so much, since the server's ledger lies there, too."""

BUILD_SECONDS = 1800.0
"""For the packages of one version; see the setting `build_timeout`."""


class HttpControlPlane:
    """Joins what a server says of functions with what it says of jobs."""

    def __init__(
        self,
        serving: GatewayClient,
        client: Client,
        most_build_seconds: float = BUILD_SECONDS,
        free_bytes: Callable[[], int] = lambda: _LEAST_FREE_BYTES,
    ) -> None:
        """Ask a server.

        Args:
            serving: Answers about functions.
            client: Answers about jobs.
            most_build_seconds: In which the packages of a version must be installed.
            free_bytes: Tells what is left of the disk that they are installed on.
        """
        self._serving, self._client = serving, client
        self._most_build_seconds, self._free_bytes = most_build_seconds, free_bytes

    def functions(self) -> Sequence[Function]:
        """Return everybody's functions; see `ControlPlane`."""
        return self._serving.functions()

    def standings(self) -> Sequence[ReplicaJob]:
        """Return every replica with its job's state; see `ControlPlane`."""
        replicas = self._serving.all_replicas()
        if not replicas:
            return []
        live = {report.job.id: report.job for report in self._client.jobs(include_final=False)}
        return [self._standing(each, live.get(each.job_id) or self._ended(each.job_id)) for each in replicas]

    def changes(self) -> Iterator[str]:
        """Tell what changes; see `ControlPlane`."""
        for event in self._serving.events():
            if event is None or event.kind == "function":
                yield ""
            elif event.job_id is not None:
                yield event.job_id

    def start(self, version: Version) -> ReplicaJob:
        """Ask for one more; see `ControlPlane`."""
        replica = self._serving.start_replica(ReplicaAsk(version.function, version.number))
        return ReplicaJob(
            replica.job_id, replica.function, replica.version, Path(replica.socket_directory), JobState.WAITING
        )

    def stop(self, job_id: str) -> None:
        """End it and forget it; see `ControlPlane`."""
        with contextlib.suppress(JobNotFoundError, RequestError):  # it has ended already, or never was
            self._client.stop(job_id, grace_seconds=_GRACE_SECONDS)
        self._serving.forget_replica(job_id)

    def offer(self, job_id: str, value: float) -> None:
        """Offer its lease; see `ControlPlane`."""
        self._client.offer(job_id, value)

    def claim(self, job_id: str) -> ReacquireResult:
        """Claim its lease; see `ControlPlane`."""
        try:
            job = self._client.claim(job_id)
        except (CapacityError, JobNotFoundError):
            return ReacquireResult.LOST
        return ReacquireResult.COMING if job.is_aside else ReacquireResult.KEPT

    def park(self, job_id: str) -> None:
        """Have it do without its lease; see `ControlPlane`."""
        self._client.park(job_id)

    def fail(self, version: Version, reason: str) -> None:
        """Give a version up; see `ControlPlane`."""
        self._serving.judge(
            version.function, Judgement(version.number, VersionState.FAILED, reason, version.created_at_seconds)
        )

    def note(self, job_id: str, state: ReplicaState) -> None:
        """Keep its state; see `ControlPlane`."""
        with contextlib.suppress(FunctionNotFoundError):  # it was forgotten meanwhile
            self._serving.note_replica(job_id, state)

    def note_start(self, start: ColdStart) -> None:
        """Keep a cold start; see `ControlPlane`."""
        try:
            self._serving.note_cold_start(start)
        except FunctionNotFoundError:
            return  # it was undeployed meanwhile

    def build(self, version: Version) -> str:
        """Have packages installed; see `ControlPlane`."""
        return self._serving.build(ReplicaAsk(version.function, version.number)).id

    def is_built(self, version: Version, job_id: str) -> bool:
        """Look at an installation and judge; see `ControlPlane`."""
        job = self._client.job(job_id).job
        if job.state.is_final:
            self._judge(version, job)
            return True
        if (trouble := self._trouble(job)) is None:
            return False
        self._client.stop(job_id, grace_seconds=0.0)
        self.fail(version, f"{trouble}: pgpu logs {job_id}")
        return True

    def _trouble(self, job: Job) -> str | None:
        """Return why an installation cannot go on; None: it can."""
        if self._free_bytes() < _LEAST_FREE_BYTES:
            return "the server's disk was nearly full while its packages were installed"
        if job.started_at_seconds is not None and time.time() - job.started_at_seconds > self._most_build_seconds:
            return f"its packages were not installed in {self._most_build_seconds:g} s"
        return None

    def _judge(self, version: Version, job: Job) -> None:
        is_built = job.state is JobState.EXITED and job.exit_code == 0
        state = VersionState.READY if is_built else VersionState.FAILED
        reason = None if is_built else f"its packages could not be installed: pgpu logs {job.id}"
        try:
            self._serving.judge(version.function, Judgement(version.number, state, reason, version.created_at_seconds))
        except FunctionNotFoundError:
            return  # it was undeployed meanwhile
        except RequestError as error:  # it installed nothing, and would again
            self.fail(version, str(error))

    def bearer(self, token: str) -> Bearer:
        """Tell what a token is good for; see `ControlPlane`."""
        return self._serving.bearer(Shown(token))

    def _ended(self, job_id: str) -> Job | None:
        try:
            return self._client.job(job_id).job
        except JobNotFoundError:
            return None

    def _standing(self, replica: Replica, job: Job | None) -> ReplicaJob:
        said = (replica.job_id, replica.function, replica.version, Path(replica.socket_directory))
        if job is None:
            return ReplicaJob(*said, JobState.FAILED, reason="its job is not known")
        granted = None if job.lease is None else job.lease.granted_at_seconds
        state = job.state if job.wanted_at_seconds is None else JobState.WAITING
        return ReplicaJob(*said, state, granted, _reason(job))


def _reason(job: Job) -> str | None:
    if job.state is JobState.EXITED:
        return f"it ended with exit code {job.exit_code}: pgpu logs {job.id}"
    return job.error or job.reason
