"""Run a short job to its end and return what it wrote: for self-tests.

It refuses long jobs: what does not end by a deadline is killed and counted as silent.
"""

import os
import select
import time

from pgpu.errors import RuntimeUnavailableError
from pgpu.model import Delivery, Holder, Job
from pgpu.runtimes import RunningJob, Runtime, Stdio

_DEADLINE_SECONDS = 120.0
"""A container's first start and a cold GPU's first context both take tens of seconds."""


def run_to_end(runtime: Runtime, job: Job, delivery: Delivery) -> str:
    """Start a job, read its standard output to the end, and remove it.

    Raises:
        RuntimeUnavailableError: It cannot be started, or did not end.
        RequestError: It cannot be started as asked.
    """
    reading, writing = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            running = runtime.start(job, delivery, Stdio(null, writing, null), _nobody_listens)
        finally:
            os.close(writing)
            os.close(null)
        return _read_and_end(running, reading)
    finally:
        os.close(reading)


def _nobody_listens(holder: Holder) -> None:
    """A throw-away job has no entry in the ledger: if pgpu dies now, it ends by itself."""


def _read_and_end(running: RunningJob, reading: int) -> str:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    try:
        text = _read_until(deadline, reading)
        if not select.select([running.fileno()], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise RuntimeUnavailableError("the self-test's process does not end", hint="see `pgpu doctor`")
        return text
    finally:
        running.kill()
        running.exit_code()
        running.close()


def _read_until(deadline: float, reading: int) -> str:
    text = b""
    while select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(reading, 4096)
        if not chunk:
            break
        text += chunk
    return text.decode(errors="replace")
