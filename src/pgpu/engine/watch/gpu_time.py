"""A job's share of its GPUs' time: one sample of its board a second over the last minute, in a file, and the shares from it.

The job's supervisor takes the samples, so a report knows the last minute at once. A board is written by the job: values are
limited to the time that has passed, and nothing is decided by them.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pgpu.enforcement.board import BoardGpu
from pgpu.host.atomic_file import write_atomically
from pgpu.structs import Struct

SPANS_SECONDS = (1, 10, 60)

MOST_SAMPLES = SPANS_SECONDS[-1] + 2

_NANOSECONDS = 1_000_000_000


class GpuTime(Struct, frozen=True):
    """A job's use of one GPU's time as its own board has it. Shares are 0 to 1, and None without samples."""

    gpu_uuid: str
    used_seconds: float
    """Since the job began."""

    waited_seconds: float
    """For which its launches were held, since it began."""

    launches: int
    """Kernels, graphs and copies, since it began."""

    got_over_1_second: float | None = None
    got_over_10_seconds: float | None = None
    """Of a younger job: since its first sample."""

    got_over_60_seconds: float | None = None
    is_held: bool = False
    """Whether its launches are held now, such as for its turn."""

    turn_since_seconds: float | None = None
    """Begin of its turn on the GPU, in seconds since the epoch; None where it has none or there are no turns."""

    turn_until_seconds: float | None = None
    """End of that turn, if another job waits for one."""


class Sample(Struct, frozen=True):
    """One reading of a board."""

    at_ns: int
    """By CLOCK_MONOTONIC."""

    gpus: tuple[tuple[int, int, int, bool], ...]
    """Of each GPU: nanoseconds used and waited, launches, and whether it is held."""

    @classmethod
    def of(cls, boards: Sequence[BoardGpu], held: Sequence[bool], at_ns: int) -> "Sample":
        """Make a sample; `held` is as long as the boards."""
        pairs = zip(boards, held, strict=True)
        return cls(at_ns, tuple((each.used_ns, each.waited_ns, each.launches, is_held) for each, is_held in pairs))


def read_samples(path: Path) -> list[Sample]:
    """Return the samples in a file, oldest first; none if it cannot be read."""
    try:
        rows = json.loads(path.read_bytes())
        return [Sample(at_ns, tuple((int(u), int(w), int(n), bool(h)) for u, w, n, h in gpus)) for at_ns, gpus in rows]
    except (OSError, ValueError, TypeError):
        return []


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write samples atomically; a full disk keeps the last ones."""
    with suppress(OSError):
        write_atomically(path, json.dumps([[each.at_ns, each.gpus] for each in samples]).encode(), 0o644)


def time_shares(samples: Sequence[Sample], gpu_uuids: Sequence[str]) -> tuple[GpuTime, ...]:
    """Return the shares of each GPU of a lease from samples, oldest first; empty without samples."""
    if not samples or len(samples[-1].gpus) != len(gpu_uuids):
        return ()
    found = []
    for at, uuid in enumerate(gpu_uuids):
        used_ns, waited_ns, launches, is_held = samples[-1].gpus[at]
        second, ten, sixty = (_share_over(samples, at, seconds) for seconds in SPANS_SECONDS)
        used_seconds, waited_seconds = used_ns / _NANOSECONDS, waited_ns / _NANOSECONDS
        found.append(GpuTime(uuid, used_seconds, waited_seconds, launches, second, ten, sixty, is_held))
    return tuple(found)


def _share_over(samples: Sequence[Sample], at: int, span_seconds: int) -> float | None:
    """Return the share between the newest sample and the newest that is older than the span, or the first one."""
    newest = samples[-1]
    since_ns = newest.at_ns - int((span_seconds - 0.5) * _NANOSECONDS)  # a sample may be up to 0.5 s early
    older = [each for each in samples[:-1] if each.at_ns <= since_ns and len(each.gpus) > at] or samples[:1]
    before = older[-1]
    elapsed_ns = newest.at_ns - before.at_ns
    if elapsed_ns <= 0:
        return None
    # The job writes its board itself: a value beyond the elapsed time is cut off.
    return min(1.0, max(0.0, (newest.gpus[at][0] - before.gpus[at][0]) / elapsed_ns))
