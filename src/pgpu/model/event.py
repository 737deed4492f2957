"""Something that happened, as those who watch hear of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the ledger's bulletin."""

    sequence: int
    """Counts up; who was away asks for what came after the last one that they saw."""

    at_seconds: float
    """Seconds since the epoch."""

    kind: str
    """`job`: one came or its state changed; `resized`, `share`, `warned`: likewise its slices, its compute share, its warning;
    others as their makers say."""

    job_id: str | None = None
    owner_uid: int | None = None
    """Whom it concerns; None for administrators alone."""

    state: str | None = None
    """The job's, where it is about one."""

    message: str | None = None
    """In one line, where there is more to say."""
