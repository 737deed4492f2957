"""What there is of one function at one moment, as the gateway sees it. All times are on one monotonic clock."""

from dataclasses import dataclass, field
from enum import StrEnum

from pgpu.functions.scaling.arrival_history import WarmWindow


class Phase(StrEnum):
    """Where a replica is in its life."""

    WAITING = "waiting"
    """Its job waits for its slice."""

    STARTING = "starting"
    """Its job runs, and it takes no calls yet."""

    HOT = "hot"
    FAILED = "failed"
    """It could not be started several times in a row; it goes on trying by itself."""

    PARKED = "parked"
    """It lives without its slice, frozen or with nothing but its imports done, and takes calls once it has one again."""

    DRAINING = "draining"
    """It gets no more calls and ends with its last."""


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica."""

    job_id: str
    version: int
    phase: Phase
    since_seconds: float
    """When its phase began."""

    in_flight: int = 0
    """Calls that it has, run or not."""

    idle_since_seconds: float = 0.0
    """When it had its last call; of no meaning while it has one."""

    offered_value: float | None = None
    """What its lease was offered at; None: it is not on offer."""

    retry_at_seconds: float = 0.0
    """Not before is it woken, where it is parked."""


@dataclass(frozen=True, slots=True)
class VersionView:
    """One version that gets traffic."""

    number: int
    has_been_ready: bool
    """Some replica of it was hot once."""

    queued: int = 0
    """Requests that wait in the gateway for a replica of it."""

    minimum: int = 0
    maximum: int = 1
    slots: int = 1
    """Calls that one replica runs at a time."""

    exec_seconds: float | None = None
    """What a call takes, on average; None: nobody knows yet."""

    warmth: WarmWindow = field(default_factory=WarmWindow)
    last_call_seconds: float | None = None
    """When somebody called last; None: nobody did."""

    startup_timeout_seconds: float = 300.0
    retry_at_seconds: float = 0.0
    """No replica is started before: the last ones ended by themselves."""

    failures: int = 0
    """Replicas in a row that ended before they were hot."""

    can_park: bool = False
    """Whether its replicas can live without their slices."""

    value: float = 0.0
    """What an idle replica of it is worth; see `value.py`."""


@dataclass(frozen=True, slots=True)
class FunctionView:
    """One function."""

    now_seconds: float
    versions: tuple[VersionView, ...]
    """Those that get traffic; replicas of others are to go."""

    replicas: tuple[ReplicaView, ...]
    is_memory_short: bool = False
    """Some replica, of any function, waits for its slice."""

    has_fallback: bool = False
    """Whether there is a traffic of before to go back to, should a new version fail."""
