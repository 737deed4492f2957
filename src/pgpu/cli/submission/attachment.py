"""Stay with a job from its place in the queue to its end: say why it waits, then carry its streams.

A signal while it waits cancels it; once it runs, signals are the job's.
"""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, BinaryIO

from pgpu.cli.output import console, documents
from pgpu.client import Client
from pgpu.errors import CancelledError
from pgpu.model import Job, JobState
from pgpu.units import format_memory

_PAUSE_SECONDS = 0.2
"""How often a wait is interrupted to see whether a signal came."""

_FORWARDED = (signal.SIGINT, signal.SIGTERM)
"""A SIGHUP is not among them: when the terminal goes, the job keeps its place and runs."""

_ESTIMATES = {
    "history": "by what earlier runs of it held",
    "growth": "by what earlier runs with other numbers held",
    "sufficed": "in which an earlier run of it ended well",
}
"""By the basis of a request: why it is as large as it is."""


def say_simulated(job: Job) -> None:
    """Say that nothing will be computed, where that is so."""
    if job.is_simulated:
        console.print_note(f"job {job.id} runs on a simulated {job.gpu_model}: its kernels compute nothing")


def say_estimated(job: Job) -> None:
    """Say what pgpu chose for a job that left its size to it, and what that rests on."""
    why = _ESTIMATES.get(job.request.basis or "")
    if why is not None:
        console.print_note(f"job {job.id} reserves {format_memory(job.request.memory_bytes)}, {why}")
    elif job.request.is_estimated:
        console.print_note(
            f"nothing tells what job {job.id} needs yet: it gets the largest free slice, and is measured"
        )


def say_advisory(job: Job) -> None:
    """Say that the job could have dropped its limit, where that is so."""
    if job.lease is not None and job.lease.is_advisory:
        console.print_note(f"the limit of job {job.id} was advisory, its environment could drop it; see `pgpu doctor`")


@contextmanager
def deferred_signals() -> Iterator[list[int]]:
    """Note signals instead of dying of them, from when a request is written, which a dying caller would leave behind.

    Yields:
        The numbers that came, oldest first.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _frame: came.append(number)) for number in _FORWARDED}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def attach(
    client: Client,
    job: Job,
    came: Sequence[int],
    *,
    as_json: bool,
    is_quiet: bool = False,
    stdout: BinaryIO | None = None,
) -> Job:
    """Wait for a job's grant and carry its streams until it ends.

    Args:
        client: Who has the job.
        job: As it was submitted.
        came: Signals that came since it was submitted; `deferred_signals` adds more while it waits.
        as_json: Say the end as one JSON object on stderr, and nothing else.
        is_quiet: Do not say why it waits.
        stdout: Where its output goes; None for ours.

    Raises:
        WaitTimeoutError: It was not granted in time.
        CancelledError: A signal came while it waited.
    """
    _wait_for_grant(client, job, came, is_quiet=as_json or is_quiet)
    stdin = sys.stdin.buffer if job.spec.wants_stdin else None
    ended = client.attach(job.id, stdin, stdout or sys.stdout.buffer, sys.stderr.buffer)
    if as_json:
        console.print_json_line(documents.final(ended), to_stderr=True)
    return ended


def _wait_for_grant(client: Client, job: Job, came: Sequence[int], *, is_quiet: bool) -> None:
    with _notice(is_quiet=is_quiet) as notice:
        while not came and (reason := client.still_waits(job.id, timeout_seconds=_PAUSE_SECONDS)) is not None:
            if reason:
                notice(f"waiting: {reason}")
        if came:
            pass_on(client, job.id, came[0])


def pass_on(client: Client, job_id: str, number: int) -> None:
    """Cancel a job that does not run yet, also one that was granted meanwhile; hand the signal to one that runs."""
    if client.job(job_id).job.state in {JobState.WAITING, JobState.STARTING}:
        if client.stop(job_id, grace_seconds=0).state is JobState.CANCELLED:
            raise CancelledError(f"job {job_id} was cancelled while it waited")
        return
    client.signal(job_id, number)


class _Lines:
    """Says each new line once; for logs and pipes."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, line: str) -> None:
        if line != self._last:
            console.print_note(line)
        self._last = line


def _notice(*, is_quiet: bool) -> AbstractContextManager[Any]:
    if is_quiet:
        return nullcontext(lambda _line: None)
    return _spinner() if sys.stderr.isatty() else nullcontext(_Lines())


@contextmanager
def _spinner() -> Iterator[Any]:
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("waiting") as status:
        yield lambda line: status.update(escape(line))
