"""Which waiting jobs must not be looked at yet, and which never will be, because of what others did.

A job goes after those it names once all of them ended with exit code 0; as soon as one ended otherwise it is cancelled, and
with it those that wait for it. That is Slurm's `afterok`. An array may say how many of it are granted at a time. Pure: it
refuses to know of memory, order and clocks.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgpu.model import Job, JobState

_GRANTED = {JobState.STARTING, JobState.RUNNING}


@dataclass(frozen=True, slots=True)
class Standing:
    """How waiting jobs stand to others. Who is in neither may start."""

    held: Mapping[str, str]
    """By id: what it waits for before memory counts, in one line."""

    doomed: Mapping[str, str]
    """By id: why it will never start, in one line."""


def standing(jobs: Sequence[Job], ended: Mapping[str, Job]) -> Standing:
    """Judge every waiting job.

    Args:
        jobs: Every job that is not final, oldest first; nobody waits for a younger one.
        ended: By id, those that these wait for and that are not among them. Who is in neither is forgotten.
    """
    known = {**ended, **{job.id: job for job in jobs}}
    granted = Counter(job.place.array_id for job in jobs if job.state in _GRANTED)
    held: dict[str, str] = {}
    doomed: dict[str, str] = {}
    for job in jobs:
        if job.state is not JobState.WAITING:
            continue
        if why := next(_failures(job, known, doomed), None):
            doomed[job.id] = why
        elif why := _hindrance(job, known, granted):
            held[job.id] = why
        else:
            granted[job.place.array_id] += 1
    return Standing(held, doomed)


def names_of_the_awaited(jobs: Sequence[Job]) -> set[str]:
    """Return the ids of the jobs that waiting ones wait for and that are not among these themselves."""
    named = {job_id for job in jobs if job.state is JobState.WAITING for job_id in job.place.after}
    return named - {job.id for job in jobs}


def failure(job: Job) -> str | None:
    """Say how a job ended otherwise than well; None while it has not, or if it ended well."""
    who = called(job)
    if job.state is JobState.CANCELLED:
        return f"{who} was cancelled"
    if job.state is JobState.FAILED:
        return f"{who} failed"
    if job.state is JobState.EXITED and job.exit_code != 0:
        return f"{who} ended with exit code {job.exit_code}"
    return None


def called(job: Job) -> str:
    """Return how people know a job: `job 0123456789ab (train)`."""
    return f"job {job.id} ({job.spec.name})" if job.spec.name else f"job {job.id}"


def _failures(job: Job, known: Mapping[str, Job], doomed: Mapping[str, str]) -> Iterator[str]:
    for job_id in job.place.after:
        other = known.get(job_id)
        if other is None:
            yield f"it was to go after job {job_id}, of which nothing is known any more"
        elif job_id in doomed:
            yield f"it was to go after {called(other)}, which was cancelled"
        elif (why := failure(other)) is not None:
            yield f"it was to go after others, and {why}"


def _hindrance(job: Job, known: Mapping[str, Job], granted: Mapping[str | None, int]) -> str | None:
    open_ends = [known[job_id] for job_id in job.place.after if not known[job_id].state.is_final]
    if open_ends:
        more = f" and of {len(open_ends) - 1} more" if len(open_ends) > 1 else ""
        return f"waits for the end of {called(open_ends[0])}{more}"
    most = job.place.array_most_at_once
    if most is not None and granted[job.place.array_id] >= most:
        return f"waits for others of its array, of which {most} may run at a time"
    return None
