"""Slices of sizes that pgpu chose grow in place while their job runs, and shrink again: the rules of both.

Only such slices do (`--memory auto`). A job that needs more than its slice asks. It is granted what it needs where that is free. Else it
waits as long as another job of its GPUs runs that does not wait itself, but no longer than it has run: a longer wait would cost more
than the run that it saves (ski rental). Where all jobs of a GPU are one user's and wait, the youngest is refused. So some job always
continues, and the oldest is never the one that loses. A job that is refused is parked where its driver can move it to the host.

Growth takes nothing that the queue needs now: jobs that start at once go first, and what is reserved for another user's job stays
reserved (`reservations.left_for_growth`).

Part of a GPU is kept for growth where jobs of chosen sizes run (`GpuRoom`, `FreeCapacity`). A job that waits to grow holds back starts
of jobs of chosen sizes only, of other users' jobs for a minute of each attempt (`holds_others`).

Constants and the simulations behind them: `benchmarks.learned_sizes_growth` and decision 0083.
"""

import math
from collections.abc import Sequence
from enum import Enum

from pgpu.model import Request, SharingMode
from pgpu.structs import Struct
from pgpu.units import MIB

# Of a GPU's memory: kept for growth. Without it 4.6 % of the attempts in a mix are lost, with it 2.2 %, with twice as much 1.6 % at
# an end 8 % later.
POOL_FRACTION = 0.05

# Growth: what is needed times a factor plus an amount, so that a job asks few times.
GROWN_FACTOR = 1.05
GROWN_BYTES = 256 * MIB

# Shrinking: what was held times a factor plus an amount, after so long without growth. After 10 s twice as many attempts are lost.
QUIET_SECONDS = 30.0
KEPT_FACTOR = 1.05
KEPT_BYTES = 128 * MIB

# The factor while fewer runs than these of the program have ended.
EARLY_FACTOR = 1.15
EARLY_RUNS = 3

# A slice shrinks if at least this much becomes free.
LEAST_SHRINKING_BYTES = 64 * MIB

# Least slice of a job of which nothing is known. It gets all that is free where it starts: programs size themselves by what they see.
FIRST_BYTES = 2048 * MIB

MOST_WAIT_SECONDS = 300.0
# Of a job on several GPUs: its processes wait for each other, and their communication has a timeout.
MOST_WAIT_ON_SEVERAL_SECONDS = 60.0

# So long a wait of one attempt holds back starts of other users' jobs.
HOLDS_OTHERS_SECONDS = 60.0

# Of a job that is queued again with more memory; the last has all of its GPUs.
MOST_ATTEMPTS = 3
NEXT_FACTOR = 1.1


def grows(request: Request, mode: SharingMode) -> bool:
    """Whether slices change their size while the job runs.

    Not where the host was asked for the rest of a slice when the job started, nor under MPS, whose server limits a client's memory
    from its connection on.
    """
    return request.has_chosen_size and not request.oversubscribes and mode is not SharingMode.MPS


class Verdict(Enum):
    """Answer to a job that needs more than its slice."""

    GRANT = "grant"
    WAIT = "wait"
    REFUSE = "refuse"


class Grower(Struct, frozen=True):
    """A running job that needs more than its slice, on each of its GPUs."""

    job_id: str
    began_seconds: float
    """Start of this attempt: the earlier goes first."""

    slice_bytes: int
    need_bytes: int
    """Of each slice, above `slice_bytes`."""

    waits_since_seconds: float
    """Start of this wait; now, for a job that has just asked."""

    gpu_count: int = 1


class Neighbour(Struct, frozen=True):
    """Another job with a slice on a GPU of a grower."""

    job_id: str
    began_seconds: float
    waits: bool
    """Whether it waits to grow, and is of the same user. One of another user, which may lie, counts as one that runs."""


class Answer(Struct, frozen=True):
    """Answer to a grower."""

    verdict: Verdict
    slice_bytes: int
    """The size of its slices from now on; unchanged unless granted."""


def answer_growth(
    grower: Grower,
    free_bytes: int,
    neighbours: Sequence[Neighbour],
    now_seconds: float,
    most_bytes: int | None = None,
    *,
    kept_bytes: int = 0,
) -> Answer:
    """Decide whether a job's slices grow now, or it waits, or it is refused.

    Args:
        grower: The job.
        free_bytes: Free on each of its GPUs, what is kept for growth included; the least of them.
        neighbours: Every other job with a slice on one of its GPUs.
        now_seconds: On the clock of the grower and the neighbours.
        most_bytes: The largest that each of its slices could become; more is refused at once. None for no limit.
        kept_bytes: Of what is free, kept for jobs of the queue.
    """
    if most_bytes is not None and grower.need_bytes > most_bytes:
        return Answer(Verdict.REFUSE, grower.slice_bytes)
    order = (grower.began_seconds, grower.job_id)
    waiting = [(each.began_seconds, each.job_id) for each in neighbours if each.waits]
    is_first = order <= min(waiting, default=order)
    left_bytes = max(0, free_bytes - kept_bytes) if is_first else 0
    if grower.slice_bytes + left_bytes >= grower.need_bytes:
        return Answer(Verdict.GRANT, grown_bytes(grower.slice_bytes, grower.need_bytes, left_bytes))
    has_time = now_seconds < grower.waits_since_seconds + most_wait_seconds(grower)
    is_awaited = kept_bytes > 0 or len(waiting) < len(neighbours) or any(each > order for each in waiting)
    return Answer(Verdict.WAIT if has_time and is_awaited else Verdict.REFUSE, grower.slice_bytes)


def most_wait_seconds(grower: Grower) -> float:
    """Return how long a job may wait: as long as it had run when the wait began, up to a limit."""
    age_seconds = max(0.0, grower.waits_since_seconds - grower.began_seconds)
    return min(age_seconds, MOST_WAIT_SECONDS if grower.gpu_count == 1 else MOST_WAIT_ON_SEVERAL_SECONDS)


def grown_bytes(slice_bytes: int, need_bytes: int, free_bytes: int) -> int:
    """Return the size of a slice that grows to `need_bytes` or a little more, where `free_bytes` suffice."""
    return max(slice_bytes, min(slice_bytes + free_bytes, math.ceil(GROWN_FACTOR * need_bytes) + GROWN_BYTES))


def shrunk_bytes(slice_bytes: int, held_bytes: int, estimate_bytes: int | None, runs: int) -> int | None:
    """Return the smaller size of a slice whose job has not grown for `QUIET_SECONDS`; None if it keeps its size.

    Args:
        slice_bytes: Its size.
        held_bytes: Most that the job has held in this attempt, above 0.
        estimate_bytes: From earlier runs; None if nothing is known.
        runs: How many runs the estimate is based on.
    """
    fit_bytes = math.ceil(KEPT_FACTOR * held_bytes) + KEPT_BYTES
    if runs < EARLY_RUNS:
        fit_bytes = max(fit_bytes, math.ceil(EARLY_FACTOR * held_bytes))
    fit_bytes = max(fit_bytes, estimate_bytes or 0)
    return fit_bytes if slice_bytes - fit_bytes >= LEAST_SHRINKING_BYTES else None


def next_attempt_bytes(
    attempt: int, attempted_bytes: int, estimate_bytes: int | None, most_bytes: int
) -> tuple[int, bool] | None:
    """Return the size of the next attempt of a job that was refused memory, and whether it gets all of its GPUs.

    Args:
        attempt: The one that was refused, from 1 on.
        attempted_bytes: What its slice would have held.
        estimate_bytes: Of its program, after this attempt; None if nothing is known.
        most_bytes: The largest slice that it could ever have.

    Returns:
        None if there is no next attempt: it was the last, or no slice can be large enough.
    """
    if attempt >= MOST_ATTEMPTS or attempted_bytes > most_bytes:
        return None
    wanted_bytes = max(math.ceil(NEXT_FACTOR * attempted_bytes), estimate_bytes or 0)
    is_alone = attempt + 1 == MOST_ATTEMPTS or wanted_bytes >= most_bytes
    return (attempted_bytes if is_alone else wanted_bytes), is_alone


def kept_for_growth(gpu_bytes: int, *, is_idle: bool, has_chosen_sizes: bool) -> int:
    """Return what a start leaves free on a GPU: nothing on an idle one, nor where all sizes are explicit.

    Args:
        gpu_bytes: Memory of the GPU.
        is_idle: Whether no job has a slice there.
        has_chosen_sizes: Whether pgpu chose the size of the job that would start, or of one that runs there.
    """
    return 0 if is_idle or not has_chosen_sizes else math.ceil(POOL_FRACTION * gpu_bytes)


def holds_others(first_waited_seconds: float, now_seconds: float) -> bool:
    """Whether a job that waits to grow holds back starts of other users' jobs of chosen sizes on its GPU; its own user's always.

    Args:
        first_waited_seconds: When it first waited in this attempt.
        now_seconds: On the same clock.
    """
    return now_seconds - first_waited_seconds < HOLDS_OTHERS_SECONDS
