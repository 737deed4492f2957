"""Waits for the grant of a submitted job, then carries its streams to its end.

A signal that arrives during the wait cancels the job; once the job runs, signals are forwarded to it.
"""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from pgpu.cli.output import console, documents
from pgpu.client import Client
from pgpu.errors import CancelledError, PgpuError
from pgpu.model import Job, JobState
from pgpu.units import format_memory

_POLL_SECONDS = 0.2
"""How often the wait for a grant is interrupted to check for signals: Python restarts a system call that a signal
interrupted, if the handler raises nothing (PEP 475)."""

_FORWARDED = (signal.SIGINT, signal.SIGTERM)
"""Without SIGHUP: when the terminal closes, the job keeps its place in the queue and runs."""

_ESTIMATES = {
    "history": "from the peaks of its earlier runs",
    "family": "from earlier runs, some with other numbers",
    "program": "from other calls of its program",
    "sufficed": "the slice of an earlier run that ended well",
}
"""How the size of a job was chosen, by the basis of its request."""


def print_simulated(jobs: Sequence[Job], state_dir: Path) -> None:
    """Warn that simulated GPUs compute nothing: once for each model, since all tables show it too."""
    from pgpu.cli.output.notices import is_new_notice

    if jobs[0].is_simulated and is_new_notice(state_dir, f"simulated {jobs[0].gpu_model}"):
        which = f"job {jobs[0].id} runs" if len(jobs) == 1 else f"{len(jobs)} jobs run"
        console.print_note(f"{which} on a simulated {jobs[0].gpu_model}, where kernels compute nothing")


def print_estimate(job: Job) -> None:
    """Print the size that pgpu chose for a job with `--memory auto`, and its basis."""
    why = _ESTIMATES.get(job.request.basis or "")
    if why is not None:
        console.print_note(f"job {job.id} reserves {format_memory(job.request.memory_bytes)}, {why}")
    elif job.request.is_estimated:
        console.print_note(f"the size of job {job.id} is unknown: it gets the largest free slice and is measured")


def print_advisory(job: Job) -> None:
    """Warn that the job can remove its limit."""
    if job.lease is not None and job.lease.is_advisory:
        console.print_note(f"the limit of job {job.id} is advisory, its environment can drop it; see `pgpu doctor`")


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Record SIGINT and SIGTERM instead of ending: a job that is being submitted must not lose its caller halfway.

    Yields:
        The numbers of the signals that arrived, oldest first.
    """
    # A KeyboardInterrupt between the request and its answer would leave a job that the caller cannot name.
    arrived: list[int] = []
    before = {number: signal.signal(number, lambda number, _frame: arrived.append(number)) for number in _FORWARDED}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def attach(
    client: Client,
    job: Job,
    signals: Sequence[int],
    *,
    as_json: bool,
    is_quiet: bool = False,
    stdout: BinaryIO | None = None,
) -> Job:
    """Wait for a job's grant and carry its streams until it ends.

    Args:
        client: The client that submitted the job.
        job: The submitted job.
        signals: Signals that arrived since it was submitted; `deferred_signals` appends more during the wait.
        as_json: Print the ended job as one JSON object on stderr, and nothing else.
        is_quiet: Do not print why the job waits.
        stdout: Where the job's output goes; None for this process's own stdout.

    Raises:
        WaitTimeoutError: The job was not granted in time.
        CancelledError: A signal arrived during the wait.
    """
    # Each call returns at the grant, or after the poll time with a reason: a signal is noticed between two calls.
    wait = partial(client.still_waits, job.id, timeout_seconds=_POLL_SECONDS)
    # For a job that is granted at once, no spinner is imported or drawn.
    reason = wait() if job.state is JobState.WAITING else None
    with _show_wait(is_quiet=as_json or is_quiet or reason is None) as notice:
        while not signals and reason is not None:
            if reason:
                notice(f"waiting: {reason.removeprefix('waits ')}")
            reason = wait()
        if signals:
            pass_on(client, job.id, signals[0])
    if not (as_json or is_quiet):
        with suppress(PgpuError):  # a meter that cannot be read while the job ends is no failure of the job
            print_advisory(client.job(job.id).job)
    # From here on the client forwards signals itself, since the job has processes that can handle them.
    stdin = sys.stdin.buffer if job.spec.wants_stdin else None
    ended = client.attach(job.id, stdin, stdout or sys.stdout.buffer, sys.stderr.buffer)
    if as_json:
        console.print_json_line(documents.of_ended_job(ended), to_stderr=True)
    return ended


def pass_on(client: Client, job_id: str, number: int) -> None:
    """Cancel a job that does not run yet; send the signal to one that runs."""
    if client.job(job_id).job.state in {JobState.WAITING, JobState.STARTING}:
        # The job may be granted between these two calls: `stop` then ends it, and its end is reported as usual.
        if client.stop(job_id, grace_seconds=0).state is JobState.CANCELLED:
            raise CancelledError(f"job {job_id} was cancelled while it waited")
        return
    client.signal(job_id, number)


@contextmanager
def _show_wait(*, is_quiet: bool) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints the reason of the wait: in a spinner on a terminal, else each new reason on a line."""
    if is_quiet:
        yield lambda _line: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        # The spinner is removed at the end of the block, before the first byte of the job's own output.
        with Console(stderr=True).status("waiting") as status:
            yield lambda line: status.update(escape(line))
    else:
        last = ""

        def print_new(line: str) -> None:
            nonlocal last
            if line != last:
                console.print_note(line)
            last = line

        yield print_new
