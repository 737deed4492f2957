"""The scaling policy of one function: from a view of it, the steps that it needs now.

A new version starts one replica beside the old ones, which serve until it is hot. If it does not fit beside them, they are
drained and stopped first while requests wait, and the new replica gets their memory; so neither waits for the other forever.
A replica that has a call is never ended. All times are in seconds on one monotonic clock.

Replicas are added by what waits, not by the mean of the past: a call that has run longer than `max_wait` is taken to go on, and
needs a place of its own; of the others, each takes the part of `max_wait` that such calls took before. So one call of 12 s among
calls of 1 ms adds one replica, and a hundred calls of 1 ms add none.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

from pgpu.structs import Struct


class Phase(StrEnum):
    """The state of a replica."""

    WAITING = "waiting"
    """Its job waits for its slice."""

    STARTING = "starting"
    """Its job runs, but accepts no calls yet."""

    HOT = "hot"
    FAILED = "failed"
    """Its start failed several times in a row; it retries by itself."""

    PARKED = "parked"
    """It runs without its slice, frozen or with only its imports done, and accepts calls once it has a slice again."""

    DRAINING = "draining"
    """It gets no new calls and ends after its last one."""


class ReplicaView(Struct, frozen=True):
    """One replica."""

    job_id: str
    version: int
    phase: Phase
    since_seconds: float
    """When its phase began."""

    in_flight: int = 0
    """Calls that it has, queued or running."""

    held: int = 0
    """Those of them that have run longer than the version's `max_wait`."""

    idle_since_seconds: float = 0.0
    """When its last call ended; meaningless while it has one."""

    offered_value: float | None = None
    """The value at which its lease is evictable; None: it is not evictable."""

    retry_at_seconds: float = 0.0
    """A parked replica is not woken before."""


class VersionView(Struct, frozen=True):
    """One version that gets traffic."""

    number: int
    has_been_ready: bool
    """A replica of it was hot once."""

    queued: int = 0
    """Requests that wait in the gateway for a replica of it."""

    minimum: int = 0
    maximum: int = 1
    target: int = 1
    """Calls for which one replica suffices."""

    brief_part: float | None = None
    """Part of `max_wait` that a call took on average, at most all of it, 0 to 1; None: unknown."""

    idle_seconds: float = 300.0
    """How long a replica stays after its last call."""

    last_call_seconds: float | None = None
    """When the last call arrived; None: there was none."""

    startup_timeout_seconds: float = 300.0
    retry_at_seconds: float = 0.0
    """No replica is started before, because the last ones ended by themselves."""

    failures: int = 0
    """Replicas in a row that ended before they were hot."""

    can_park: bool = False
    """Whether its replicas can run without their slices."""

    value: float = 0.0
    """The value of an idle replica; see `replica_value`."""


class FunctionView(Struct, frozen=True):
    """One function."""

    now_seconds: float
    versions: tuple[VersionView, ...]
    """Those that get traffic; replicas of other versions are retired."""

    replicas: tuple[ReplicaView, ...]
    is_memory_short: bool = False
    """A replica of any function waits for its slice."""

    has_fallback: bool = False
    """Whether there is an earlier traffic split to return to if a new version fails."""


class StartReplica(Struct, frozen=True):
    """Submit the job of one more replica."""

    version: int


class DrainReplica(Struct, frozen=True):
    """Send no more calls to this replica."""

    job_id: str


class StopReplica(Struct, frozen=True):
    """End the job of this replica, which has no calls."""

    job_id: str


class ParkReplica(Struct, frozen=True):
    """Take the slice from this idle replica and keep its process."""

    job_id: str


class WakeReplica(Struct, frozen=True):
    """Let this parked replica wait for its slice again."""

    job_id: str


class MarkEvictable(Struct, frozen=True):
    """Allow the engine to take this idle replica's lease for a more valuable one."""

    job_id: str
    value: float
    """Of keeping the replica; the engine divides it by its bytes."""


class FailVersion(Struct, frozen=True):
    """Give up this new version and restore the earlier traffic split."""

    version: int
    reason: str


Step = StartReplica | DrainReplica | StopReplica | ParkReplica | WakeReplica | MarkEvictable | FailVersion

FITS_WITHIN_SECONDS = 1.0
"""A new version's job that waits longer for its slice does not fit beside the old one."""

OFFERED_AFTER_SECONDS = 1.0
"""A replica becomes evictable after this idle time: an evictable one must be reacquired before its next call."""

OFFERED_AT_ONCE_AFTER_SECONDS = 0.1
"""The same while a replica waits for memory: the values decide which one goes, and waiting a second for each in turn adds up."""

UNWANTED_AFTER_SECONDS = 10.0
"""A replica that waits for memory is cancelled when there was no call for this time: it would take the place of a wanted one.
Before that it keeps its position in the queue, since callers often retry.
"""

MOST_FAILURES = 5
"""Replicas of a new version that may end by themselves before the version is given up."""

PARKED_IDLE_TIMES = 10
"""A parked replica ends after this multiple of the idle time of a hot one: it holds no GPU, but its process remains."""

MOST_PARKED = 32
"""Of all functions of a gateway. Each costs the host some 50 MB and, every second, a millisecond of a core."""

# A changed value is sent to the engine if it differs by more than this part.
_LEAST_CHANGE = 0.1

_COMING = {Phase.WAITING, Phase.STARTING, Phase.HOT, Phase.FAILED}


def plan_steps(view: FunctionView) -> tuple[Step, ...]:
    """Return the steps to take for a function now; empty if there is nothing to do.

    The caller carries out each step, or skips it, before the next view is made; the next plan starts from the result.
    """
    given_up: dict[int, FailVersion] = {}
    for version in view.versions:
        # Without an earlier traffic split there is nothing to return to: the version goes on trying.
        if view.has_fallback and not version.has_been_ready and (reason := _failure_reason(view, version)) is not None:
            given_up[version.number] = FailVersion(version.number, reason)
    serving = [version for version in view.versions if version.number not in given_up]
    steps: list[Step] = list(given_up.values())
    for version in serving:
        steps += _steps_of_version(view, version)
    # Versions without traffic are drained once none of the others depends on them, or once they stand in the way.
    if not given_up and all(_can_do_without_retired(view, version) for version in serving):
        steps += [DrainReplica(each.job_id) for each in _retired_replicas(view)]
    steps += [StopReplica(each.job_id) for each in view.replicas if each.phase is Phase.DRAINING and not each.in_flight]
    longest_seconds = {version.number: PARKED_IDLE_TIMES * version.idle_seconds for version in serving}
    woken = {step.job_id for step in steps if isinstance(step, WakeReplica)}
    for each in view.replicas:
        is_over = view.now_seconds - each.since_seconds >= longest_seconds.get(each.version, 0.0)
        if each.phase is Phase.PARKED and not each.in_flight and is_over and each.job_id not in woken:
            steps.append(StopReplica(each.job_id))
    return tuple(steps)


def excess_parked(values: Mapping[str, float], *, is_host_short: bool, most: int = MOST_PARKED) -> list[str]:
    """Return the ids of the parked replicas to end because there are too many, the least valuable first.

    Args:
        values: The value of each parked replica, by id; see `replica_value`.
        is_host_short: Whether the host is short of memory: then one more ends at each call.
        most: How many may stay, 0 or more.
    """
    # One at a time: the next measurement of the host shows whether that was enough.
    count = max(len(values) - most, int(is_host_short and bool(values)))
    return sorted(values, key=lambda job_id: (values[job_id], job_id))[: max(0, count)]


def wanted_replicas(
    held: int, others: int, target: int, brief_part: float | None, *, floor: int, maximum: int, running: int = 0
) -> int:
    """Return how many replicas a load needs.

    Args:
        held: Calls that have run longer than `max_wait`, 0 or more.
        others: The other calls, which run or wait, 0 or more.
        target: Calls for which one replica suffices, 1 or more.
        brief_part: Part of `max_wait` that each of the others takes, 0 to 1; None if unknown: then one replica measures it first.
        floor: Lower bound.
        maximum: Upper bound, 1 or more; it overrides the floor.
        running: Replicas that serve now: an unknown duration never reduces them while load grows.
    """
    if brief_part is None and not held:
        needed = min(math.ceil(others / target), max(1, running))
    else:
        # While the first calls of a version exceed `max_wait`, the others are expected to do the same.
        places = held + math.ceil(others * (1.0 if brief_part is None else brief_part))
        needed = max(math.ceil(places / target), int(others > 0))
    return min(maximum, max(floor, needed))


def _coming_replicas(view: FunctionView, number: int) -> list[ReplicaView]:
    return [each for each in view.replicas if each.version == number and each.phase in _COMING]


def _retired_replicas(view: FunctionView) -> list[ReplicaView]:
    """Return the replicas of versions that get no traffic any more and still accept calls."""
    numbers = {version.number for version in view.versions}
    return [each for each in view.replicas if each.version not in numbers and each.phase in _COMING]


def _failure_reason(view: FunctionView, version: VersionView) -> str | None:
    """Return the reason to give up a version that was never ready; None: it may still start."""
    if version.failures >= MOST_FAILURES:
        return "its replicas ended before they were ready"
    for each in _coming_replicas(view, version.number):
        if each.phase is Phase.FAILED:
            return "its replica could not be started several times"
        if each.phase is Phase.STARTING and view.now_seconds - each.since_seconds > version.startup_timeout_seconds:
            return "its replica was not ready in time"
    return None


def _steps_of_version(view: FunctionView, version: VersionView) -> Iterator[Step]:
    there = _coming_replicas(view, version.number)
    hot = [each for each in there if each.phase is Phase.HOT]
    # Waiting requests count like running ones: each needs a place in some replica.
    held = sum(each.held for each in there)
    others = version.queued + sum(max(0, each.in_flight - each.held) for each in there)
    wanted = wanted_replicas(
        held, others, version.target, version.brief_part,
        floor=_floor(view, version), maximum=version.maximum, running=len(hot),
    )  # fmt: skip
    if wanted > len(there):
        yield from _add_replicas(view, version, there, wanted - len(there))
        return
    # The longest idle ones go first: calls are sent to the first free replica, so the last ones get none.
    surplus = [each for each in _longest_idle(there) if _may_go(view, version, each)][: len(there) - wanted]
    for each in surplus:
        yield ParkReplica(each.job_id) if version.can_park and each.phase is Phase.HOT else DrainReplica(each.job_id)
    # Of the others, the idle ones beyond the pinned number become evictable, the longest idle first.
    hot = [each for each in hot if each not in surplus]
    after_seconds = OFFERED_AT_ONCE_AFTER_SECONDS if view.is_memory_short else OFFERED_AFTER_SECONDS
    idle = [each for each in _longest_idle(hot) if view.now_seconds - each.idle_since_seconds >= after_seconds]
    for each in idle[: max(0, len(hot) - version.minimum)]:
        before, value = each.offered_value, version.value
        if before is None or abs(before - value) > _LEAST_CHANGE * max(before, value):
            yield MarkEvictable(each.job_id, value)


def _add_replicas(view: FunctionView, version: VersionView, there: Sequence[ReplicaView], count: int) -> Iterator[Step]:
    """Wake parked replicas, the most recently used first, and start the rest."""
    parked = [each for each in view.replicas if each.phase is Phase.PARKED and each.version == version.number]
    woken = _longest_idle(parked)[::-1][:count]
    yield from (WakeReplica(each.job_id) for each in woken if view.now_seconds >= each.retry_at_seconds)
    # A failed replica retries by itself, and a further one would fail for the same reason.
    is_any_failed = any(each.phase is Phase.FAILED for each in there)
    if view.now_seconds >= version.retry_at_seconds and not is_any_failed:
        yield from [StartReplica(version.number)] * (count - len(woken))


def _floor(view: FunctionView, version: VersionView) -> int:
    """Return how many replicas a version has without calls.

    One is started ahead of the calls if other replicas serve in its place until it is hot: retired ones, and those of the other
    versions for a canary.
    """
    others = _retired_replicas(view) if version.has_been_ready else view.replicas
    is_replacing = any(each.phase is Phase.HOT and each.version != version.number for each in others)
    return max(version.minimum, int(is_replacing))


def _longest_idle(replicas: Sequence[ReplicaView]) -> list[ReplicaView]:
    return sorted((each for each in replicas if not each.in_flight), key=lambda each: each.idle_since_seconds)


def _may_go(view: FunctionView, version: VersionView, each: ReplicaView) -> bool:
    """Whether an idle replica may end; one that is starting never ends for lack of calls."""
    if each.phase is Phase.WAITING:
        last = version.last_call_seconds
        return not version.queued and last is not None and view.now_seconds - last >= UNWANTED_AFTER_SECONDS
    return each.phase is Phase.HOT and view.now_seconds - each.idle_since_seconds >= version.idle_seconds


def _can_do_without_retired(view: FunctionView, version: VersionView) -> bool:
    """Whether a version has a hot replica, needs none, or cannot start one before the retired ones release their memory."""
    there = _coming_replicas(view, version.number)
    if any(each.phase is Phase.HOT for each in there):
        return True
    # All of them wait for memory: after this time it is taken for granted that only the retired replicas can free it.
    waiting = [each for each in there if each.phase is Phase.WAITING]
    if waiting and len(waiting) == len(there):
        return any(view.now_seconds - each.since_seconds >= FITS_WITHIN_SECONDS for each in waiting)
    return not there and not version.queued and not _floor(view, version)
