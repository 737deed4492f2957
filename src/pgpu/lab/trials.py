"""Trials: jobs that arrive at one moment, with pgpu and without it, and samples of the device's memory meanwhile.

Without pgpu they are plain processes or plain `docker run`. Each program loads first and writes `ready`; then all get their
start line at once, so that they meet on the device even on few cores. With pgpu all are submitted together, and the queue
decides the order; a start line is optional there: each granted job gets a signal. A failed job, one whose exit code is not 0, is not
repeated. Times count from one definition on both sides (`outcomes`).
"""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pgpu.client import Client
from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.lab.outcomes import ExperimentTrial, JobOutcome, Moment, Sample, last_line, last_result
from pgpu.lab.testbed import Testbed
from pgpu.model import Job, JobSpec, JobState, Objective, Request, Submission
from pgpu.structs import Struct
from pgpu.units import GIB

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
                samples.append((time.monotonic(), read_used_bytes()))
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


def run_bare(
    bed: Testbed, jobs: Sequence[tuple[str, tuple[str, ...]]], *, repetition: int = 1, has_start_line: bool = True
) -> ExperimentTrial:
    """Run jobs without pgpu, all submitted at one moment, and wait for all.

    Args:
        bed: Where they run.
        jobs: Name and workload arguments of each, in order of arrival.
        repetition: Number of this run of the experiment.
        has_start_line: Whether all load before any begins. Otherwise each begins as soon as it has loaded.

    Raises:
        NodeError: A program did not load; no job was started.
    """
    processes: list[subprocess.Popen[str]] = []
    with sample_device(bed.read_used_bytes) as samples, ThreadPoolExecutor(len(jobs)) as waiters:
        try:
            submission = Moment.now()
            if has_start_line:
                # All load first, one after the other on few cores; each begins when it gets its line on stdin
                # (`_start_and_wait`).
                _load_all(bed, [words for _, words in jobs], processes)
            else:
                processes += [_load(bed, bed.plain_command(words)) for _, words in jobs]
            waiting = [
                waiters.submit(_start_and_wait, process, name, submission)
                for process, (name, _) in zip(processes, jobs, strict=True)
            ]
            outcomes = tuple(each.result() for each in waiting)
        finally:
            # Also after a failure or an interrupt, which does not reach their sessions: the waiters would wait for their ends.
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
    processes += [_load(bed, bed.bare_command(each)) for each in words]
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
            processes[place] = _load(bed, bed.bare_command(each))


def _load(bed: Testbed, command: tuple[str, ...]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=bed.bare_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # As with pgpu: the kernel shares a busy processor among sessions first (autogroups), so jobs in one session would get less.
        start_new_session=True,
    )


def _start_and_wait(process: subprocess.Popen[str], name: str, submission: Moment) -> JobOutcome:
    # The line starts a program that waits for it. Both pipes are drained until its end, so it never blocks on a full one.
    standard_output, standard_error = process.communicate("\n")
    return JobOutcome(
        name=name,
        submitted_at_seconds=submission.monotonic_seconds,
        ended_at_seconds=time.monotonic(),
        exit_code=process.returncode,
        result=last_result(standard_output),
        complaint=last_line(standard_error),
        epoch_offset_seconds=submission.epoch_offset_seconds,
    )


class SlicedJob(Struct, frozen=True):
    name: str
    words: tuple[str, ...]
    """Workload and its arguments."""

    memory_bytes: int
    """Of its slice."""

    oversubscribes: bool = False
    """Whether its memory may be moved to the host while others use the GPU."""


def settle(bed: Testbed) -> None:
    """Wait until headroom yields as on a GPU in use: a new testbed has no record of the memory outside of slices.

    A first job measures the GPU's contexts, which is memory outside of slices, too. Does nothing where headroom is fixed.
    """
    if not bed.stable_seconds:
        return
    bed.progress(f"waits for {bed.stable_seconds:g} s in which the memory outside of slices is stable")
    run_sliced(bed, [SlicedJob("first", ("spin", "--launches", "1"), GIB)])
    bed.client.gpus()
    time.sleep(bed.stable_seconds + 1)  # noqa: TID251 - the time itself is the condition
    bed.client.gpus()


def run_sliced(
    bed: Testbed,
    jobs: Sequence[SlicedJob],
    *,
    objective: Objective = Objective.RESPONSE,
    repetition: int = 1,
    is_batch: bool = True,
    has_start_line: bool = False,
) -> ExperimentTrial:
    """Submit jobs to pgpu in the given order and wait for all.

    Args:
        bed: Where they run.
        jobs: In order of arrival.
        objective: `soonest` where the experiment is about jobs beside each other: those of programs that have run before would be
            held back else.
        repetition: Number of this run of the experiment.
        is_batch: Whether all are submitted in one request: equal jobs are then a batch, which starts in even waves if it does not
            fit at once. Otherwise each is a request of its own, and jobs fill the GPU.
        has_start_line: Whether the granted jobs load before any of them begins. The waiting ones begin as soon as they have loaded.
    """
    client, peak_bytes = bed.client, dict[str, int]()

    def read_used_bytes() -> int:
        # With each sample: a job's use is reported only while it runs.
        for report in client.jobs(include_final=False):
            seen = max((use.peak_bytes for use in report.use), default=0)
            peak_bytes[report.job.id] = max(seen, peak_bytes.get(report.job.id, 0))
        return client.gpus()[0].used_bytes

    objective = objective if is_batch else Objective.SOONEST
    submissions = [_submission_of(bed, job, objective, has_start_line=has_start_line) for job in jobs]
    requests = [submissions] if is_batch else [[each] for each in submissions]
    with sample_device(read_used_bytes) as samples:
        submission = Moment.now()
        submitted = [job for each in requests for job in client.submit_all(each)]
        # A thread for each job, since `wait` blocks until the job has ended.
        with ThreadPoolExecutor(len(submitted)) as waiters:
            waiting = [waiters.submit(lambda job: (client.wait(job.id), time.monotonic()), job) for job in submitted]
            if has_start_line:
                _start_together(client, submitted)
            ended = [each.result() for each in waiting]
    return ExperimentTrial(
        is_with_pgpu=True,
        repetition=repetition,
        jobs=tuple(_outcome_of(client, job, at, submission, peak_bytes.get(job.id)) for job, at in ended),
        device_memory_bytes=bed.device_memory_bytes,
        device_samples=tuple(samples),
    )


def _submission_of(bed: Testbed, job: SlicedJob, objective: Objective, *, has_start_line: bool) -> Submission:
    words = (*job.words, "--start-signal") if has_start_line else job.words
    image = bed.image if bed.runtime == "docker" else None
    return Submission(
        JobSpec(command=bed.workload(words), runtime=bed.runtime, image=image, name=job.name),
        Request(job.memory_bytes, oversubscribes=job.oversubscribes, objective=objective),
    )


def _start_together(client: Client, jobs: Sequence[Job]) -> None:
    """Signal jobs to begin: the granted ones once all of them are ready, later ones when they are.

    If it fails, the jobs are stopped: they would wait for their signal forever, and the caller for them.
    """
    pending, ready, is_open = {job.id for job in jobs}, set[str](), False
    try:
        while pending:
            states = {report.job.id: report.job.state for report in client.jobs(include_final=False)}
            pending &= states.keys()
            granted = {job_id for job_id in pending if states[job_id] in {JobState.STARTING, JobState.RUNNING}}
            ready = {
                job_id
                for job_id in granted
                if job_id in ready or (states[job_id] is JobState.RUNNING and _is_ready(client, job_id))
            }
            is_open = is_open or (bool(granted) and ready == granted)
            for job_id in ready if is_open else ():
                # A job that ended since it was ready has failed, which its outcome reports.
                with contextlib.suppress(RequestError):
                    client.signal(job_id, signal.SIGUSR1)
                pending.discard(job_id)
            time.sleep(PERIOD_SECONDS)  # noqa: TID251 - output of many jobs is polled, since each follower blocks
    except BaseException:
        for job in jobs:
            with contextlib.suppress(PgpuError):
                client.request_stop(job.id, 0.0)
        raise


def _is_ready(client: Client, job_id: str) -> bool:
    written = b"".join(chunk for stream, chunk in client.logs(job_id, follow=False) if stream == "stderr")
    return _READY.encode() in written.splitlines()


def _outcome_of(
    client: Client, job: Job, ended_at_seconds: float, submission: Moment, peak_bytes: int | None
) -> JobOutcome:
    texts = {"stdout": b"", "stderr": b""}
    for stream, chunk in client.logs(job.id, follow=False):
        texts[stream] += chunk
    return JobOutcome(
        name=str(job.spec.name),
        submitted_at_seconds=submission.monotonic_seconds,
        ended_at_seconds=ended_at_seconds,
        exit_code=job.exit_code,
        result=last_result(texts["stdout"].decode(errors="replace")),
        complaint=job.error or last_line(texts["stderr"].decode(errors="replace")),
        slice_peak_bytes=peak_bytes,
        granted_at_seconds=job.lease.granted_at_seconds - submission.epoch_offset_seconds if job.lease else None,
        epoch_offset_seconds=submission.epoch_offset_seconds,
    )
