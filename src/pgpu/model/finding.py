"""What the doctor found: of this machine, or of a cluster."""

from dataclasses import dataclass
from enum import StrEnum


class Result(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """Something is weaker or missing, and jobs can run."""

    FAILURE = "failure"
    """Jobs cannot run."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's."""

    name: str
    """What was looked at."""

    result: Result
    finding: str
    """In one line."""

    remedy: str | None = None
    """How to mend it; None where nothing is wrong."""


def fine(name: str, finding: str) -> Finding:
    """Say that nothing is wrong."""
    return Finding(name, Result.OK, finding)


def weak(name: str, finding: str, remedy: str | None) -> Finding:
    """Say that jobs can run without something."""
    return Finding(name, Result.WARNING, finding, remedy)


def broken(name: str, finding: str, remedy: str | None) -> Finding:
    """Say that jobs cannot run."""
    return Finding(name, Result.FAILURE, finding, remedy)
