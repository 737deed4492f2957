"""Outcomes of jobs that ran together, as values. A job failed if its exit code is not 0."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"
"""In the last line of a program that ended before it could count its refusals."""

Sample = tuple[float, int]
"""(seconds since the epoch, bytes)."""


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """One job that ended."""

    name: str
    submitted_at_seconds: float
    """When it was submitted; without pgpu that is when it began."""

    ended_at_seconds: float
    exit_code: int | None
    """None if it is unknown."""

    result: Mapping[str, Any] | None
    """The workload's JSON line; None if it wrote none."""

    complaint: str
    """Last line of its standard error; empty if there is none."""

    slice_peak_bytes: int | None = None
    """Peak of its slice while it ran; None without pgpu."""

    @property
    def is_failed(self) -> bool:
        return self.exit_code != 0

    @property
    def saw_refusal(self) -> bool:
        """Whether an allocation was refused, by its program's report or its last line."""
        return bool(self.result and self.result.get("refusals")) or OUT_OF_MEMORY in self.complaint

    @property
    def seconds(self) -> float:
        """Run time of its program, by its own clock if it reported one."""
        if self.result is not None:
            return float(self.result["seconds"])
        return self.turnaround_seconds

    @property
    def turnaround_seconds(self) -> float:
        """From its submission to its end, waiting included."""
        return self.ended_at_seconds - self.submitted_at_seconds

    @property
    def began_at_seconds(self) -> float:
        """When its program began, in seconds since the epoch."""
        return float(self.result["began_at_seconds"]) if self.result else self.submitted_at_seconds

    @property
    def memory_timeline(self) -> Sequence[Sample]:
        """(seconds since its program began, bytes held from then on)."""
        return [(float(at), int(held)) for at, held in self.result["memory_timeline"]] if self.result else []


@dataclass(frozen=True, slots=True)
class ExperimentTrial:
    """Jobs that were submitted at one moment, and the device while they ran."""

    is_with_pgpu: bool
    repetition: int
    """From 1."""

    jobs: tuple[JobOutcome, ...]
    """In order of arrival."""

    device_memory_bytes: int
    device_samples: tuple[Sample, ...]

    @property
    def failed(self) -> int:
        """Number of failed jobs."""
        return sum(job.is_failed for job in self.jobs)

    @property
    def saw_refusal(self) -> int:
        """Number of jobs with a refused allocation."""
        return sum(job.saw_refusal for job in self.jobs)

    @property
    def completed_seconds(self) -> Sequence[float]:
        """Run times of the jobs that did not fail."""
        return [job.seconds for job in self.jobs if not job.is_failed]

    @property
    def makespan_seconds(self) -> float:
        """From the first job's arrival to the last one's end."""
        first = min(job.submitted_at_seconds for job in self.jobs)
        return max(job.ended_at_seconds for job in self.jobs) - first

    @property
    def device_peak_bytes(self) -> int:
        """Largest sample of the device's memory in use."""
        return max((used_bytes for _, used_bytes in self.device_samples), default=0)

    @property
    def most_side_by_side(self) -> int:
        """Most jobs whose programs ran at one moment."""
        starts = [(job.began_at_seconds, 1) for job in self.jobs]
        ends = [(job.began_at_seconds + job.seconds, -1) for job in self.jobs]
        running = most = 0
        for _, change in sorted(starts + ends):
            running += change
            most = max(most, running)
        return most


def last_result(standard_output: str) -> Mapping[str, Any] | None:
    """Return the JSON object on the last line of a workload's output; None if there is none."""
    for line in reversed(standard_output.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        return found if isinstance(found, dict) else None
    return None


def last_line(text: str) -> str:
    """Return the last line that is not empty, or an empty string."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")


def mean_seconds(trials: Sequence[ExperimentTrial]) -> float | None:
    """Return the mean run time of all jobs that did not fail; None if all failed."""
    seconds = [each for trial in trials for each in trial.completed_seconds]
    return statistics.fmean(seconds) if seconds else None


def spread(values: Sequence[float]) -> str:
    """Format minimum, maximum and median of counts or times: `6`, or `4 to 9 (median 6)`."""
    if not values:
        return "–"
    least, most, median = min(values), max(values), statistics.median(values)
    return f"{least:g}" if least == most else f"{least:g} to {most:g} (median {median:g})"
