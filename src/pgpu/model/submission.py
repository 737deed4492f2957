"""What an asker hands in at once: a job, or an array of jobs that differ in a number alone, and how it stands to others."""

from dataclasses import dataclass

from pgpu.model.job import JobSpec
from pgpu.model.request import Request

MOST_ELEMENTS = 10_000
"""Jobs of one request, the elements of its arrays counted: what one queue is built for."""


@dataclass(frozen=True, slots=True)
class Array:
    """So many jobs from one submission."""

    indices: tuple[int, ...]
    """Distinct numbers from 0 on; each becomes one job, which finds its own in `PGPU_ARRAY_INDEX`."""

    most_at_once: int | None = None
    """How many of them may be granted at a time, at least 1; None for as many as fit."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One job or array as it is asked for."""

    spec: JobSpec
    """Of an array's elements each gets its index behind the name: `train-7`."""

    request: Request
    after: tuple[str, ...] = ()
    """Ids or names of jobs, or ids of arrays, that must end with exit code 0 first. A name among the submissions that are
    handed in with this one means that one."""

    array: Array | None = None
    wait_timeout_seconds: float | None = None
    """After this long in the queue it is cancelled; 0 unless it can start now, None never."""

    signature: str = ""
    """Which program it is, as `Job.signature`; found by the engine, whatever is asked."""
