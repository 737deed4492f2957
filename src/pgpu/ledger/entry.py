"""What the ledger keeps of one job: the job itself, and what only the engine needs to know of it."""

from dataclasses import dataclass

from pgpu.model import Job, ProcessHolder


@dataclass(frozen=True, slots=True)
class Entry:
    """One job, its place in the queue, and who looks after it."""

    job: Job

    sequence: int = 0
    """Order of arrival; the ledger gives it when the entry is added."""

    wait_deadline_seconds: float | None = None
    """When the wait for a grant runs out, in seconds since the epoch; None for never."""

    supervisor: ProcessHolder | None = None
    """Who looks after the job; None before its supervisor reported and after it went in peace."""

    spawned_at_seconds: float | None = None
    """When a supervisor was last started for it."""

    stop_grace_seconds: float | None = None
    """Set once somebody asked it to stop: seconds between SIGTERM and SIGKILL."""

    lease_released_at_seconds: float | None = None
    """When the memory of its lease was free again; None before, and where there was no lease."""

    @property
    def is_lease_held(self) -> bool:
        """Whether its slices still count against their GPUs."""
        return self.job.lease is not None and self.lease_released_at_seconds is None

    @property
    def is_counted(self) -> bool:
        """Whether others have to do without them: a parked job's are anybody's."""
        return self.is_lease_held and self.job.parked_at_seconds is None

    @property
    def is_live(self) -> bool:
        """Whether anything may still happen to it: it is not final, or its memory is not free yet."""
        return not self.job.state.is_final or self.is_lease_held
