"""How much of its GPUs' time a job got lately: samples of its board, one a second for the last minute, and what they tell.

Whoever looks after the job takes them, so that whoever asks knows the last minute at once. What a board says is the job's
own word: it is believed as far as time went on, and nothing is decided by it.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pgpu.enforcement.board import BoardGpu
from pgpu.host.atomic_file import write_atomically

SPANS_SECONDS = (1, 10, 60)
"""Over which it is told."""

MOST_SAMPLES = SPANS_SECONDS[-1] + 2

_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class GpuTime:
    """What a job got of one GPU's time, as it says itself. Shares are 0 to 1, and None before there is anything to tell."""

    gpu_uuid: str
    used_seconds: float
    """Since the job began."""

    waited_seconds: float
    """Time that its launches were held back, since it began."""

    launches: int
    """Kernels, graphs and copies, since it began."""

    got_over_1_second: float | None = None
    got_over_10_seconds: float | None = None
    """Of a job that is younger: since it was first looked at."""

    got_over_60_seconds: float | None = None
    is_held: bool = False
    """Whether its launches wait now until somebody lets them go on, such as for its turn."""

    turn_since_seconds: float | None = None
    """Since when the GPU is its turn, in seconds since the epoch; None where it has none or nobody takes turns."""

    turn_until_seconds: float | None = None
    """When that turn ends, if anybody waits for one."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at a board."""

    at_ns: int
    """By CLOCK_MONOTONIC."""

    gpus: tuple[tuple[int, int, int, bool], ...]
    """Of each GPU: nanoseconds used and waited, launches, and whether it is held."""

    @classmethod
    def of(cls, boards: Sequence[BoardGpu], held: Sequence[bool], at_ns: int) -> "Sample":
        """Take one; `held` is as long as the boards."""
        pairs = zip(boards, held, strict=True)
        return cls(at_ns, tuple((each.used_ns, each.waited_ns, each.launches, is_held) for each, is_held in pairs))


def read_samples(path: Path) -> list[Sample]:
    """Return the samples that lie there, oldest first; none where there are none that can be read."""
    try:
        rows = json.loads(path.read_bytes())
        return [Sample(at_ns, tuple((int(u), int(w), int(n), bool(h)) for u, w, n, h in gpus)) for at_ns, gpus in rows]
    except (OSError, ValueError, TypeError):
        return []


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Put samples there, whole; a full disk leaves those before."""
    with suppress(OSError):
        write_atomically(path, json.dumps([[each.at_ns, each.gpus] for each in samples]).encode(), 0o644)


def time_shares(samples: Sequence[Sample], gpu_uuids: Sequence[str]) -> tuple[GpuTime, ...]:
    """Return what samples tell, oldest first, of each GPU of a lease; nothing without samples."""
    if not samples or len(samples[-1].gpus) != len(gpu_uuids):
        return ()
    return tuple(_told(samples, at, uuid) for at, uuid in enumerate(gpu_uuids))


def _told(samples: Sequence[Sample], at: int, gpu_uuid: str) -> GpuTime:
    used_ns, waited_ns, launches, is_held = samples[-1].gpus[at]
    second, ten, sixty = (_got(samples, at, seconds) for seconds in SPANS_SECONDS)
    used_seconds, waited_seconds = used_ns / _NANOSECONDS, waited_ns / _NANOSECONDS
    return GpuTime(gpu_uuid, used_seconds, waited_seconds, launches, second, ten, sixty, is_held)


def _got(samples: Sequence[Sample], at: int, span_seconds: int) -> float | None:
    """Compare the newest with the newest of those that are so old, or with the first; a tick may come a little early."""
    newest = samples[-1]
    since_ns = newest.at_ns - int((span_seconds - 0.5) * _NANOSECONDS)
    older = [each for each in samples[:-1] if each.at_ns <= since_ns and len(each.gpus) > at] or samples[:1]
    before = older[-1]
    elapsed_ns = newest.at_ns - before.at_ns
    if elapsed_ns <= 0:
        return None
    return min(1.0, max(0.0, (newest.gpus[at][0] - before.gpus[at][0]) / elapsed_ns))
