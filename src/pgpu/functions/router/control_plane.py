"""What the gateway asks of whoever keeps functions and runs their replicas.

Every method may block and may raise `PgpuError`: it is asked in threads. It refuses to say how: a server is asked over
its API, and tests have one of their own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from pgpu.model import ColdStart, Function, JobState, ReplicaState, Version
from pgpu.services.messages import Bearer


@dataclass(frozen=True, slots=True)
class ReplicaJob:
    """One replica and how its job stands."""

    job_id: str
    function: str
    version: int
    directory: Path
    """Where its front listens."""

    state: JobState
    granted_at_seconds: float | None = None
    """Since the epoch; None until its job got its lease."""

    reason: str | None = None
    """Why it waits, or why it ended; in one line."""


class ReacquireResult(Enum):
    """What came of claiming a lease."""

    KEPT = "kept"
    """It was not taken, and nobody takes it."""

    COMING = "coming"
    """It was, and the replica is parked: it waits for it again, and says itself when it is hot."""

    LOST = "lost"
    """It was, and the replica ends."""


class ControlPlane(Protocol):
    """Functions and their replicas."""

    def functions(self) -> Sequence[Function]:
        """Return everybody's functions."""

    def standings(self) -> Sequence[ReplicaJob]:
        """Return every replica that was asked for and not forgotten, those too whose jobs have ended."""

    def changes(self) -> Iterator[str]:
        """Tell what changes as it does, until whoever tells is gone: a job's id, or an empty text for functions.

        The first, of functions, comes once nothing is missed any more; of what was before it tells nothing.
        """

    def start(self, version: Version) -> ReplicaJob:
        """Ask for one more replica, as a job of the function's owner.

        Raises:
            RequestError: It can never be had.
            CapacityError: Not now.
        """

    def stop(self, job_id: str) -> None:
        """End a replica and forget it; nothing happens if it is not there."""

    def offer(self, job_id: str, value: float) -> None:
        """Let the engine take an idle replica's lease if somebody needs it more."""

    def claim(self, job_id: str) -> ReacquireResult:
        """Take the offer back, or have a parked replica wait for its lease."""

    def park(self, job_id: str) -> None:
        """Have an idle replica live on without its lease.

        Raises:
            RequestError: It cannot.
        """

    def fail(self, version: Version, reason: str) -> None:
        """Give a version up, and let the traffic be what it was before."""

    def note(self, job_id: str, state: ReplicaState) -> None:
        """Keep where a replica is in its life, for who lists them."""

    def note_start(self, start: ColdStart) -> None:
        """Keep how long a start took."""

    def build(self, version: Version) -> str:
        """Have the packages of a pending version installed; return the job that does."""

    def is_built(self, version: Version, job_id: str) -> bool:
        """Whether that is over, and the version judged; what takes too long is ended first."""

    def bearer(self, token: str) -> Bearer:
        """Tell what a token is good for."""
