"""Watches a device's memory while jobs run, so that "never more than full" is seen and not assumed.

It refuses to touch the jobs: it only reads what the driver's management library tells.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pgpu.errors import PgpuError
from pgpu.lab.job_outcome import Sample

PERIOD_SECONDS = 0.1
_FAILURES_IN_A_ROW = 10


@contextmanager
def sampled(read_used_bytes: Callable[[], int]) -> Iterator[list[Sample]]:
    """Read the memory in use at a steady pace in the background; the list is complete when the block ends.

    A reading that fails is left out.

    Raises:
        PgpuError: Too many failed in a row; told when the block ends, so that no long gap passes for a device at rest.
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
