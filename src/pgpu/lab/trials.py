"""Runs of jobs that arrive at one moment, with pgpu and without it, and samples of the device's memory meanwhile.

Without pgpu they are plain processes or plain `docker run`. Each program loads first and writes `ready`; then all get their
start line at once, so that they meet on the device even on few cores. With pgpu all are submitted together, and the queue
decides the order; a failed job is not repeated.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

from pgpu.client import Client
from pgpu.errors import NodeError, PgpuError
from pgpu.lab.job_outcome import ExperimentTrial, JobOutcome, Sample, last_line, last_result
from pgpu.lab.testbed import Testbed
from pgpu.model import Job, JobSpec, Request

PERIOD_SECONDS = 0.1
_FAILURES_IN_A_ROW = 10
_READY = "ready"
_LOAD_ATTEMPTS = 3


@contextmanager
def sampled(read_used_bytes: Callable[[], int]) -> Iterator[list[Sample]]:
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
        _load_all(bed, [words for _, words in jobs], processes)
        with sampled(bed.read_used_bytes) as samples, ThreadPoolExecutor(len(processes)) as waiters:
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
    standard_output, standard_error = process.communicate("\n")
    return JobOutcome(
        name=name,
        submitted_at_seconds=began_at_seconds,
        ended_at_seconds=time.time(),
        exit_code=process.returncode,
        result=last_result(standard_output),
        complaint=last_line(standard_error),
    )


@dataclass(frozen=True, slots=True)
class SlicedJob:
    """One job to submit."""

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
        for report in client.jobs(include_final=False):
            seen = max((use.peak_bytes for use in report.use), default=0)
            peak_bytes[report.job.id] = max(seen, peak_bytes.get(report.job.id, 0))
        return client.gpus()[0].used_bytes

    image = bed.image if bed.runtime == "docker" else None
    with sampled(read_used_bytes) as samples:
        submitted = [
            client.submit(
                JobSpec(command=bed.workload(job.words), runtime=bed.runtime, image=image, name=job.name),
                Request(job.memory_bytes, oversubscribes=job.oversubscribes),
                wait_timeout_seconds=None,
            )
            for job in jobs
        ]
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
