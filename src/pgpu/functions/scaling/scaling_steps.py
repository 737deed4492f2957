"""What is to be done about a function's replicas."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Start:
    """Ask for one more replica."""

    version: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Give this replica no more calls."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End this replica's job: it has nothing to do any more."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Park:
    """Have this idle replica live on without its slice."""

    job_id: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Have this parked replica wait for its slice again."""

    job_id: str


@dataclass(frozen=True, slots=True)
class MarkEvictable:
    """Let the engine take this idle replica's lease if somebody needs it more."""

    job_id: str
    value: float
    """Of keeping it; what a byte is worth is this by its bytes."""


@dataclass(frozen=True, slots=True)
class Fail:
    """Give this new version up and let the traffic be what it was."""

    version: int
    reason: str


Step = Start | Drain | Stop | Park | Wake | MarkEvictable | Fail
