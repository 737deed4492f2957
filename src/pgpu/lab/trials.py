"""Trials: jobs that arrive at one moment, with pgpu and without it, samples of the device's memory meanwhile, and the outcomes.

Without pgpu they are plain processes or plain `docker run`. Each program loads first and writes `ready`; then all get their
start line at once, so that they meet on the device even on few cores. With pgpu all are submitted together, and the queue
decides the order; a failed job, one whose exit code is not 0, is not repeated.
"""

import json
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from pgpu.client import Client
from pgpu.errors import NodeError, PgpuError
from pgpu.lab.testbed import Testbed
from pgpu.model import Job, JobSpec, Request, Submission
from pgpu.structs import Struct

# In the last line of a program that ended before it could count its refusals.
OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"

# (seconds since the epoch, bytes).
Sample = tuple[float, int]


class JobOutcome(Struct, frozen=True):
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


PERIOD_SECONDS = 0.1
_FAILURES_IN_A_ROW = 10
_READY = "ready"
_LOAD_ATTEMPTS = 3


@contextmanager
def sample_device(read_used_bytes: Callable[[], int]) -> Iterator[list[Sample]]:
    """Sample the memory in use in a background thread; the list is complete when the block ends.

    A failed reading is skipped.

    Raises:
        PgpuError: Ten readings in a row failed; raised when the block ends.
    """
    samples: list[Sample] = []
    failures: list[PgpuError] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.is_set() and len(failures) <= _FAILURES_IN_A_ROW:
            try:
                samples.append((time.time(), read_used_bytes()))
                failures.clear()
            except PgpuError as exc:
                failures.append(exc)
            is_over.wait(PERIOD_SECONDS)

    sampler = threading.Thread(target=sample, name="device-sampler", daemon=True)
    sampler.start()
    try:
        yield samples
    finally:
        is_over.set()
        sampler.join()
    if len(failures) > _FAILURES_IN_A_ROW:
        raise failures[0]


def run_bare(bed: Testbed, jobs: Sequence[tuple[str, tuple[str, ...]]], *, repetition: int = 1) -> ExperimentTrial:
    """Run jobs without pgpu, all started at one moment, and wait for all.

    Args:
        bed: Where they run.
        jobs: Name and workload arguments of each, in order of arrival.
        repetition: Number of this run of the experiment.

    Raises:
        NodeError: A program did not load; no job was started.
    """
    processes: list[subprocess.Popen[str]] = []
    try:
        # All load first, one after the other on few cores; each begins when it gets its line on stdin
        # (`_start_and_wait`).
        _load_all(bed, [words for _, words in jobs], processes)
        with sample_device(bed.read_used_bytes) as samples, ThreadPoolExecutor(len(processes)) as waiters:
            began_at_seconds = time.time()
            waiting = [
                waiters.submit(_start_and_wait, process, name, began_at_seconds)
                for process, (name, _) in zip(processes, jobs, strict=True)
            ]
            outcomes = tuple(each.result() for each in waiting)
    finally:
        # Also after a failure: programs that wait for their start line would wait forever.
        for process in processes:
            process.kill()
    return ExperimentTrial(
        is_with_pgpu=False,
        repetition=repetition,
        jobs=outcomes,
        device_memory_bytes=bed.device_memory_bytes,
        device_samples=tuple(samples),
    )


def _load_all(bed: Testbed, words: Sequence[tuple[str, ...]], processes: list[subprocess.Popen[str]]) -> None:
    """Fill `processes` with programs that are ready, in order.

    A loaded container engine sometimes fails to start a container. That happens before the GPU is used, so the program is loaded
    again.
    """
    processes += [_load(bed, each) for each in words]
    for place, each in enumerate(words):
        for attempt in range(1, _LOAD_ATTEMPTS + 1):
            stderr = processes[place].stderr
            assert stderr is not None  # noqa: S101 - `_load` makes the pipe
            line = stderr.readline().strip()
            if line == _READY:
                break
            if attempt == _LOAD_ATTEMPTS:
                raise NodeError(f"a workload did not load: {line or 'no output'}", hint="run it alone to see why")
            bed.progress(f"a workload did not load, trying again: {line}")
            processes[place].communicate()
            processes[place] = _load(bed, each)


def _load(bed: Testbed, words: tuple[str, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        bed.bare_command(words),
        env=bed.bare_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _start_and_wait(process: subprocess.Popen[str], name: str, began_at_seconds: float) -> JobOutcome:
    # The line starts the program. Both pipes are drained until its end, so it never blocks on a full one.
    standard_output, standard_error = process.communicate("\n")
    return JobOutcome(
        name=name,
        submitted_at_seconds=began_at_seconds,
        ended_at_seconds=time.time(),
        exit_code=process.returncode,
        result=last_result(standard_output),
        complaint=last_line(standard_error),
    )


class SlicedJob(Struct, frozen=True):
    name: str
    words: tuple[str, ...]
    """Workload and its arguments."""

    memory_bytes: int
    """Of its slice."""

    oversubscribes: bool = False
    """Whether its memory may be moved to the host while others use the GPU."""


def run_sliced(bed: Testbed, jobs: Sequence[SlicedJob], *, repetition: int = 1) -> ExperimentTrial:
    """Submit jobs to pgpu in the given order and wait for all.

    Args:
        bed: Where they run.
        jobs: In order of arrival.
        repetition: Number of this run of the experiment.
    """
    client, peak_bytes = bed.client, dict[str, int]()

    def read_used_bytes() -> int:
        # With each sample: a job's use is reported only while it runs.
        for report in client.jobs(include_final=False):
            seen = max((use.peak_bytes for use in report.use), default=0)
            peak_bytes[report.job.id] = max(seen, peak_bytes.get(report.job.id, 0))
        return client.gpus()[0].used_bytes

    image = bed.image if bed.runtime == "docker" else None
    with sample_device(read_used_bytes) as samples:
        # In one request: equal jobs of one submission are a batch, which starts in even waves if it does not fit at once.
        submitted = client.submit_all(
            [
                Submission(
                    JobSpec(command=bed.workload(job.words), runtime=bed.runtime, image=image, name=job.name),
                    Request(job.memory_bytes, oversubscribes=job.oversubscribes),
                )
                for job in jobs
            ]
        )
        # A thread for each job, since `wait` blocks until the job has ended.
        with ThreadPoolExecutor(len(submitted)) as waiters:
            ended = list(waiters.map(lambda job: (client.wait(job.id), time.time()), submitted))
    return ExperimentTrial(
        is_with_pgpu=True,
        repetition=repetition,
        jobs=tuple(_outcome_of(client, job, at, peak_bytes.get(job.id)) for job, at in ended),
        device_memory_bytes=bed.device_memory_bytes,
        device_samples=tuple(samples),
    )


def _outcome_of(client: Client, job: Job, seen_at_seconds: float, peak_bytes: int | None) -> JobOutcome:
    texts = {"stdout": b"", "stderr": b""}
    for stream, chunk in client.logs(job.id, follow=False):
        texts[stream] += chunk
    return JobOutcome(
        name=str(job.spec.name),
        submitted_at_seconds=job.created_at_seconds,
        ended_at_seconds=job.finished_at_seconds or seen_at_seconds,
        exit_code=job.exit_code,
        result=last_result(texts["stdout"].decode(errors="replace")),
        complaint=job.error or last_line(texts["stderr"].decode(errors="replace")),
        slice_peak_bytes=peak_bytes,
    )
