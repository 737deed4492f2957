"""Results of the doctor's checks, of this machine or of a cluster."""

from enum import StrEnum

from pgpu.structs import Struct


class Result(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """Something is weaker or missing, but jobs can run."""

    FAILURE = "failure"
    """Jobs cannot run."""


class Finding(Struct, frozen=True):
    """Result of one check."""

    name: str
    """What was checked."""

    result: Result
    finding: str
    """In one line."""

    remedy: str | None = None
    """How to fix it; None if nothing is wrong."""


def fine(name: str, finding: str) -> Finding:
    """Return a finding that nothing is wrong."""
    return Finding(name, Result.OK, finding)


def weak(name: str, finding: str, remedy: str | None) -> Finding:
    """Return a finding that something is missing or weaker, but jobs can run."""
    return Finding(name, Result.WARNING, finding, remedy)


def broken(name: str, finding: str, remedy: str | None) -> Finding:
    """Return a finding that jobs cannot run."""
    return Finding(name, Result.FAILURE, finding, remedy)
