"""The outcomes of a trial: its jobs, and how long they took from one clock, with pgpu and without.

**Whole time**: from the submission of the jobs to the last end, both read on the monotonic clock of the experiment's process, on
both sides. Without pgpu the submission is the start of the first process, so the time in which programs load counts on both sides.
**Start-up**: from the submission until a job's program executes. Programs and the ledger report seconds since the epoch, which are
converted with the offset between both clocks at the submission.
"""

import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pgpu.structs import Struct

# In the last line of a program that ended before it could count its refusals.
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"

# (seconds on the monotonic clock, bytes).
Sample = tuple[float, int]


class Moment(Struct, frozen=True):
    """A submission, on two clocks that were read together."""

    monotonic_seconds: float
    epoch_offset_seconds: float
    """Seconds since the epoch at the zero of the monotonic clock."""

    @classmethod
    def now(cls) -> "Moment":
        monotonic_seconds = time.monotonic()
        return cls(monotonic_seconds, time.time() - monotonic_seconds)

    def seconds_until(self, epoch_seconds: float) -> float:
        """Return the seconds from this moment to another one, given since the epoch."""
        return epoch_seconds - self.epoch_offset_seconds - self.monotonic_seconds


class JobOutcome(Struct, frozen=True):
    """One job that ended; every `_at_seconds` is on the monotonic clock of the experiment's process."""

    name: str
    submitted_at_seconds: float
    """When its trial was submitted."""

    ended_at_seconds: float
    """When the experiment's process noticed its end."""

    exit_code: int | None
    """None if it is unknown."""

    result: Mapping[str, Any] | None
    """The workload's JSON line; None if it wrote none."""

    complaint: str
    """Last line of its standard error; empty if there is none."""

    slice_peak_bytes: int | None = None
    """Peak of its slice while it ran; None without pgpu."""

    granted_at_seconds: float | None = None
    """When its memory was granted; None without pgpu, or if it never was."""

    epoch_offset_seconds: float = 0.0
    """Seconds since the epoch at the zero of the monotonic clock, taken at the submission; converts its program's times."""

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
    def executed_at_seconds(self) -> float | None:
        """When its program's code first executed, before it waits at a start line; None if it reported nothing."""
        if self.result is None:
            return None
        # Images with older workloads report only the moment after the start line.
        reported = self.result.get("executed_at_seconds", self.result["began_at_seconds"])
        return float(reported) - self.epoch_offset_seconds

    @property
    def began_at_seconds(self) -> float:
        """When its program began: loaded, and behind its start line; its submission if it reported nothing."""
        if self.result is None:
            return self.submitted_at_seconds
        return float(self.result["began_at_seconds"]) - self.epoch_offset_seconds

    @property
    def program_ended_at_seconds(self) -> float:
        """When its program ended by its own report, which is before its memory is granted to another job."""
        return self.ended_at_seconds if self.result is None else self.began_at_seconds + self.seconds

    def start_up_seconds(self, first_end_seconds: float) -> float | None:
        """Return the seconds from its submission until its program executes; None if it reported nothing.

        Args:
            first_end_seconds: When the first job of its trial ended. A job that was granted its memory later waited for memory
                of others; its start-up counts from the grant.
        """
        if self.executed_at_seconds is None:
            return None
        if self.granted_at_seconds is not None and self.granted_at_seconds > first_end_seconds:
            return self.executed_at_seconds - self.granted_at_seconds
        return self.executed_at_seconds - self.submitted_at_seconds

    @property
    def memory_timeline(self) -> Sequence[Sample]:
        """(seconds since its program began, bytes held from then on)."""
        return [(float(at), int(held)) for at, held in self.result["memory_timeline"]] if self.result else []


class ExperimentTrial(Struct, frozen=True):
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
    def whole_seconds(self) -> float:
        """From the submission to the last end, the same with pgpu and without."""
        first = min(job.submitted_at_seconds for job in self.jobs)
        return max(job.ended_at_seconds for job in self.jobs) - first

    @property
    def start_up_seconds(self) -> float | None:
        """The longest start-up of its jobs; None if no program reported when it executed.

        It contains no waiting for memory, but the time for which a job was held back if it started before the first end.
        """
        first_end = min(job.program_ended_at_seconds for job in self.jobs)
        found = [job.start_up_seconds(first_end) for job in self.jobs]
        return max((seconds for seconds in found if seconds is not None), default=None)

    @property
    def waves(self) -> int:
        """Waves in which the jobs were granted: a wave ends with the first end of one of its jobs. 1 without pgpu."""
        count, first_end = 0, -math.inf
        for granted, ended in sorted(
            (job.granted_at_seconds or job.submitted_at_seconds, job.program_ended_at_seconds) for job in self.jobs
        ):
            if granted > first_end:
                count, first_end = count + 1, math.inf
            first_end = min(first_end, ended)
        return count

    @property
    def device_peak_bytes(self) -> int:
        """Largest sample of the device's memory in use."""
        return max((used_bytes for _, used_bytes in self.device_samples), default=0)

    @property
    def most_side_by_side(self) -> int:
        """Most jobs whose programs ran at one moment."""
        starts = [(job.began_at_seconds, 1) for job in self.jobs]
        ends = [(job.program_ended_at_seconds, -1) for job in self.jobs]
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


def whole_time(trial: ExperimentTrial) -> str:
    """Format the whole time of a trial: `all done in 9.5 s, of which starting took up to 1.5 s`."""
    start_up = trial.start_up_seconds
    of_which = "" if start_up is None else f", of which starting took up to {start_up:.1f} s"
    return f"all done in {trial.whole_seconds:.1f} s{of_which}"
