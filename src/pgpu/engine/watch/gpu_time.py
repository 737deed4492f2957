"""A job's share of its GPUs' time: one sample of its board a second over the last minute, in a file, and the shares from it.

The thread that supervises the job takes the samples, so a report has the last minute at once. A board is written by the job:
values are limited to the time that has passed, and decide only whether the next job of a batch starts before its wave.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pgpu.enforcement import Enforcer
from pgpu.host.atomic_file import write_atomically
from pgpu.model import Lease
from pgpu.structs import DecodeError, JsonDecoder, Struct, encode_json

SPANS_SECONDS = (1, 10, 60)

MOST_SAMPLES = SPANS_SECONDS[-1] + 2

_NANOSECONDS = 1_000_000_000
_MOST_NS = (1 << 64) - 1
"""A job may have written any number to its board."""


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


class Sample(Struct, frozen=True, array_like=True):
    """One reading of a board."""

    at_ns: int
    """By CLOCK_MONOTONIC."""

    gpus: tuple[tuple[int, int, int, bool, int], ...]
    """Of each GPU: nanoseconds used and waited, launches, whether it is held, and nanoseconds with work in flight."""


_SAMPLES = JsonDecoder(list[Sample])


def take_sample(enforcer: Enforcer, lease: Lease, path: Path, now_ns: int) -> None:
    """Add a sample to those of the last minute in a file; does nothing before a process of the job uses a GPU.

    An agent keeps none in memory: it may supervise hundreds of jobs.

    Raises:
        EnforcementError: The board cannot be read.
    """
    boards, words = enforcer.boards(lease), enforcer.words(lease)
    if len(boards) != len(lease.slices):
        return
    gpus = []
    for at, board in enumerate(boards):
        in_flight_ns = board.busy_ns + (max(0, now_ns - board.busy_since_ns) if board.busy_since_ns else 0)
        is_held = at < len(words) and words[at].is_held
        gpus.append((board.used_ns, board.waited_ns, board.launches, is_held, min(in_flight_ns, _MOST_NS)))
    write_samples(path, [*read_samples(path), Sample(now_ns, tuple(gpus))][-MOST_SAMPLES:])


def read_samples(path: Path) -> list[Sample]:
    """Return the samples in a file, oldest first; none if it cannot be read."""
    try:
        return _SAMPLES.decode(path.read_bytes())
    except (OSError, DecodeError):
        return []


def write_samples(path: Path, samples: Sequence[Sample]) -> None:
    """Write samples atomically; a full disk keeps the last ones."""
    with suppress(OSError):
        write_atomically(path, encode_json(samples), 0o644)


def time_shares(samples: Sequence[Sample], gpu_uuids: Sequence[str]) -> tuple[GpuTime, ...]:
    """Return the shares of each GPU of a lease from samples, oldest first; empty without samples."""
    if not samples or len(samples[-1].gpus) != len(gpu_uuids):
        return ()
    found = []
    for at, uuid in enumerate(gpu_uuids):
        used_ns, waited_ns, launches, is_held, _ = samples[-1].gpus[at]
        second, ten, sixty = (_share_over(samples, at, seconds) for seconds in SPANS_SECONDS)
        used_seconds, waited_seconds = used_ns / _NANOSECONDS, waited_ns / _NANOSECONDS
        found.append(GpuTime(uuid, used_seconds, waited_seconds, launches, second, ten, sixty, is_held))
    return tuple(found)


def gpu_demand(samples: Sequence[Sample]) -> float | None:
    """Return the share of its only GPU's time that a job needs, 0 to 1, over the last ten seconds.

    Unlike the share that it gets, this does not fall when others saturate the GPU: time with work in flight beyond the time
    used is time that it waits for them.

    Args:
        samples: Oldest first.

    Returns:
        None for a job on several GPUs, and until half a second after its first launch was seen.
    """
    if not samples:
        return None
    newest = samples[-1]
    since_ns = newest.at_ns - SPANS_SECONDS[1] * _NANOSECONDS
    working = [each for each in samples if len(each.gpus) == 1 and each.gpus[0][2] and each.at_ns >= since_ns]
    elapsed_ns = newest.at_ns - working[0].at_ns if working else 0
    if elapsed_ns < _NANOSECONDS // 2 or len(newest.gpus) != 1:
        return None
    used_ns, in_flight_ns = (newest.gpus[0][at] - working[0].gpus[0][at] for at in (0, 4))
    return _demand(used_ns, in_flight_ns, elapsed_ns)


def mean_demand(newest: Sample, elapsed_seconds: float) -> float | None:
    """Return the share of its only GPU's time that a job needed over its whole run, 0 to 1; see `gpu_demand`.

    Args:
        newest: Its last sample.
        elapsed_seconds: Since its start.

    Returns:
        None for a job on several GPUs, and for one shorter than half a second.
    """
    elapsed_ns = int(elapsed_seconds * _NANOSECONDS)
    if len(newest.gpus) != 1 or elapsed_ns < _NANOSECONDS // 2:
        return None
    return _demand(newest.gpus[0][0], newest.gpus[0][4], elapsed_ns)


def _demand(used_ns: int, in_flight_ns: int, elapsed_ns: int) -> float:
    # The job writes its board itself: values are limited to the elapsed time, and work in flight includes the time used.
    used = min(1.0, max(0.0, used_ns / elapsed_ns))
    in_flight = min(1.0, max(used, in_flight_ns / elapsed_ns))
    return used / (used + 1 - in_flight) if used else 0.0


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
