"""Runs a job that nobody else knows, for the proof that a limit binds, and returns what it wrote.

The job has a lease and goes through the runtime as every other does; only ledger and supervisor are missing.
"""

import os
import select
from collections.abc import Callable
from pathlib import Path

from pgpu.errors import EnforcementError
from pgpu.model import Account, Delivery, Job
from pgpu.runtimes import Runtime, Stdio

_PATIENCE_SECONDS = 120.0
"""A container's first start reads its image from a cold disk."""


def try_throwaway(runtime: Runtime, job: Job, delivery: Delivery) -> str | None:
    """Do as `run_throwaway`; None where no program of such a job could load a driver, which leaves nothing to prove."""
    return run_throwaway(runtime, job, delivery) if runtime.can_load_driver(job.spec) else None


def run_throwaway(runtime: Runtime, job: Job, delivery: Delivery) -> str:
    """Run a job to its end and return its standard output.

    Raises:
        EnforcementError: It did not end.
        PgpuError: It could not be started.
    """
    with Path(os.devnull).open("rb") as nothing, Path(os.devnull).open("wb") as nowhere:
        reader, writer = os.pipe2(os.O_CLOEXEC)
        with os.fdopen(reader, "rb") as output:
            try:
                running = runtime.start(job, delivery, Stdio(nothing.fileno(), writer, nowhere.fileno()), _nobody)
            finally:
                os.close(writer)
            try:
                _await_end(running.fileno(), job)
                return _read_now(output.fileno())
            finally:
                running.kill()
                running.close()


def hold_throwaway(
    runtime: Runtime,
    job: Job,
    delivery: Delivery,
    account: Account | None,
    look: Callable[[str, Callable[[int], bool]], None],
) -> None:
    """Run a job under an account until it says `ready`, call back with what it wrote and whose processes are its own, and end it.

    Raises:
        EnforcementError: It says nothing for too long.
        PgpuError: It could not be started; or what was called back raises.
    """
    input_reader, input_writer = os.pipe2(os.O_CLOEXEC)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with Path(os.devnull).open("wb") as nowhere, os.fdopen(input_writer, "wb"), os.fdopen(reader, "rb"):
        try:
            running = runtime.start(job, delivery, Stdio(input_reader, writer, nowhere.fileno()), _nobody, account)
        finally:
            os.close(writer)
            os.close(input_reader)
        try:
            look(_read_until_ready(reader, job), running.owns)
        finally:
            running.kill()
            running.close()


def _read_until_ready(descriptor: int, job: Job) -> str:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    text = b""
    while b"ready\n" not in text:
        if not poll.poll(_PATIENCE_SECONDS * 1000):
            raise EnforcementError(f"the proof for job {job.id} says nothing for {_PATIENCE_SECONDS:.0f} s")
        part = os.read(descriptor, 4096)
        if not part:
            break
        text += part
    return text.decode(errors="replace")


def _nobody(_holder: object) -> None:
    """Nobody records the holder: the job ends before this process goes on."""


def _await_end(descriptor: int, job: Job) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(_PATIENCE_SECONDS * 1000):
        raise EnforcementError(
            f"the self-test for job {job.id} did not end in {_PATIENCE_SECONDS:.0f} s", hint="see `pgpu doctor`"
        )


def _read_now(descriptor: int) -> str:
    """Read what is in a pipe, which a surviving child may still hold open."""
    os.set_blocking(descriptor, False)
    parts = []
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts).decode(errors="replace")
