"""Watches a device's memory while jobs run, so that "never more than full" is seen and not assumed.

It refuses to touch the jobs: it only reads what the driver's management library tells.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pgpu.errors import PgpuError
from pgpu.experiments.outcome import Sample

PERIOD_SECONDS = 0.1


@contextmanager
def sampled(read_used_bytes: Callable[[], int]) -> Iterator[list[Sample]]:
    """Read the memory in use at a steady pace in the background; the list is complete when the block ends.

    Raises:
        PgpuError: A reading failed; told when the block ends, so that no gap passes for a device at rest.
    """
    samples: list[Sample] = []
    failures: list[PgpuError] = []
    is_over = threading.Event()

    def sample() -> None:
        try:
            while not is_over.is_set():
                samples.append((time.time(), read_used_bytes()))
                is_over.wait(PERIOD_SECONDS)
        except PgpuError as exc:
            failures.append(exc)

    sampler = threading.Thread(target=sample, name="device-sampler", daemon=True)
    sampler.start()
    try:
        yield samples
    finally:
        is_over.set()
        sampler.join()
    if failures:
        raise failures[0]
