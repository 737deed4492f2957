"""Input and output of the scaling policy: one function at one moment, and the steps to take.

All times are in seconds on one monotonic clock.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from pgpu.functions.scaling.call_history import WarmWindow


class Phase(StrEnum):
    """The state of a replica."""

    WAITING = "waiting"
    """Its job waits for its slice."""

    STARTING = "starting"
    """Its job runs, but accepts no calls yet."""

    HOT = "hot"
    FAILED = "failed"
    """Its start failed several times in a row; it retries by itself."""

    PARKED = "parked"
    """It runs without its slice, frozen or with only its imports done, and accepts calls once it has a slice again."""

    DRAINING = "draining"
    """It gets no new calls and ends after its last one."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica."""

    job_id: str
    version: int
    phase: Phase
    since_seconds: float
    """When its phase began."""

    in_flight: int = 0
    """Calls that it has, queued or running."""

    idle_since_seconds: float = 0.0
    """When its last call ended; meaningless while it has one."""

    offered_value: float | None = None
    """The value at which its lease is evictable; None: it is not evictable."""

    retry_at_seconds: float = 0.0
    """A parked replica is not woken before."""


@dataclass(frozen=True, slots=True)
class VersionView:
    """One version that gets traffic."""

    number: int
    has_been_ready: bool
    """A replica of it was hot once."""

    queued: int = 0
    """Requests that wait in the gateway for a replica of it."""

    minimum: int = 0
    maximum: int = 1
    slots: int = 1
    """Calls that one replica runs at a time."""

    exec_seconds: float | None = None
    """Mean duration of a call; None: unknown."""

    warmth: WarmWindow = field(default_factory=WarmWindow)
    last_call_seconds: float | None = None
    """When the last call arrived; None: there was none."""

    startup_timeout_seconds: float = 300.0
    retry_at_seconds: float = 0.0
    """No replica is started before, because the last ones ended by themselves."""

    failures: int = 0
    """Replicas in a row that ended before they were hot."""

    can_park: bool = False
    """Whether its replicas can run without their slices."""

    value: float = 0.0
    """The value of an idle replica; see `replica_value`."""


@dataclass(frozen=True, slots=True)
class FunctionView:
    """One function."""

    now_seconds: float
    versions: tuple[VersionView, ...]
    """Those that get traffic; replicas of other versions are retired."""

    replicas: tuple[ReplicaView, ...]
    is_memory_short: bool = False
    """A replica of any function waits for its slice."""

    has_fallback: bool = False
    """Whether there is an earlier traffic split to return to if a new version fails."""


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Submit the job of one more replica."""

    version: int


@dataclass(frozen=True, slots=True)
class DrainReplica:
    """Send no more calls to this replica."""

    job_id: str


@dataclass(frozen=True, slots=True)
class StopReplica:
    """End the job of this replica, which has no calls."""

    job_id: str


@dataclass(frozen=True, slots=True)
class ParkReplica:
    """Take the slice from this idle replica and keep its process."""

    job_id: str


@dataclass(frozen=True, slots=True)
class WakeReplica:
    """Let this parked replica wait for its slice again."""

    job_id: str


@dataclass(frozen=True, slots=True)
class MarkEvictable:
    """Allow the engine to take this idle replica's lease for a more valuable one."""

    job_id: str
    value: float
    """Of keeping the replica; the engine divides it by its bytes."""


@dataclass(frozen=True, slots=True)
class FailVersion:
    """Give up this new version and restore the earlier traffic split."""

    version: int
    reason: str


Step = StartReplica | DrainReplica | StopReplica | ParkReplica | WakeReplica | MarkEvictable | FailVersion
