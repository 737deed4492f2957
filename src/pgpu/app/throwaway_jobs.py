"""Jobs outside the ledger, for the proof that a limit binds: they run to their end in this process's care.

Such a job has a lease and uses the runtime as every other job; only the ledger entry and the agent are missing.
"""

import os
import select
from collections.abc import Callable
from pathlib import Path

from pgpu.errors import EnforcementError
from pgpu.host.thread_turns import pause
from pgpu.model import Account, Delivery, Job
from pgpu.runtimes import Runtime, Stdio

_TIMEOUT_SECONDS = 120.0
"""Long enough for the first start of a container from an image on a cold disk."""


def try_throwaway(runtime: Runtime, job: Job, delivery: Delivery) -> str | None:
    """Run a job as `run_throwaway` does; None if no program of the job could load a driver: then nothing is to be proven."""
    return run_throwaway(runtime, job, delivery) if runtime.can_load_driver(job.spec) else None


def run_throwaway(runtime: Runtime, job: Job, delivery: Delivery) -> str:
    """Run a job to its end and return its standard output.

    Raises:
        EnforcementError: It did not end.
        PgpuError: It could not be started.
    """
    with Path(os.devnull).open("rb") as nothing, Path(os.devnull).open("wb") as nowhere:
        # The output must fit into the pipe (64 KiB): it is read only after the job's end.
        reader, writer = os.pipe2(os.O_CLOEXEC)
        with os.fdopen(reader, "rb") as output:
            try:
                running = runtime.start(
                    job, delivery, Stdio(nothing.fileno(), writer, nowhere.fileno()), _ignore_holder
                )
            finally:
                os.close(writer)
            try:
                poll = select.poll()
                poll.register(running.fileno(), select.POLLIN)  # readable once the job ended
                with pause():
                    has_ended = poll.poll(_TIMEOUT_SECONDS * 1000)
                if not has_ended:
                    raise EnforcementError(
                        f"the self-test for job {job.id} did not end in {_TIMEOUT_SECONDS:.0f} s",
                        hint="see `pgpu doctor`",
                    )
                return _read_now(output.fileno())
            finally:
                # Also after success: processes that the job started may still run.
                running.kill()
                running.close()


def hold_throwaway(
    runtime: Runtime,
    job: Job,
    delivery: Delivery,
    account: Account | None,
    inspect: Callable[[str, Callable[[int], bool]], None],
) -> None:
    """Run a job until it writes `ready`, call `inspect` with its output and a test for its processes, and kill it.

    Raises:
        EnforcementError: The job writes nothing for too long.
        PgpuError: It could not be started, or `inspect` raised.
    """
    input_reader, input_writer = os.pipe2(os.O_CLOEXEC)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    with Path(os.devnull).open("wb") as nowhere, os.fdopen(input_writer, "wb"), os.fdopen(reader, "rb"):
        try:
            running = runtime.start(
                job, delivery, Stdio(input_reader, writer, nowhere.fileno()), _ignore_holder, account
            )
        finally:
            # Else this process would hold a writing end itself, and a job that ends early could not be noticed.
            os.close(writer)
            os.close(input_reader)
        try:
            inspect(_read_until_ready(reader, job), running.owns)
        finally:
            running.kill()
            running.close()


def _read_until_ready(descriptor: int, job: Job) -> str:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    text = b""
    while b"ready\n" not in text:
        with pause():
            is_readable = poll.poll(_TIMEOUT_SECONDS * 1000)
        if not is_readable:
            raise EnforcementError(f"the self-test for job {job.id} wrote nothing for {_TIMEOUT_SECONDS:.0f} s")
        part = os.read(descriptor, 4096)
        if not part:
            break
        text += part
    return text.decode(errors="replace")


def _ignore_holder(_holder: object) -> None:
    """The holder is not recorded: the job ends before this process goes on."""


def _read_now(descriptor: int) -> str:
    """Read what a pipe holds, without waiting for its end: a child of the job may keep it open."""
    os.set_blocking(descriptor, False)
    parts = []
    try:
        while part := os.read(descriptor, 65536):
            parts.append(part)
    except BlockingIOError:
        pass
    return b"".join(parts).decode(errors="replace")
