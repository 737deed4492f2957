"""The interface to the server that stores functions and runs their replicas, as far as the gateway uses it.

All methods may block and may raise `PgpuError`; the gateway calls them in threads (`ControlPlaneThreads`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pgpu.functions.router.replica_connection import ReacquireResult
from pgpu.model import ColdStart, Function, JobState, ReplicaState, Version
from pgpu.services.messages import Bearer


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
        """Return every replica that was started and not forgotten, also those whose jobs have ended."""

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
