"""The steps that a function needs now: more replicas, fewer, a new version for an old one, or back.

Of a new version one replica is started beside the old ones, which serve until it is hot. Where it does not fit beside
them, they are drained and stopped, requests wait meanwhile, and it gets their room: neither waits for the other for
ever. It refuses to do anything, and to end a replica that has a call.
"""

from collections.abc import Iterator, Mapping, Sequence

from pgpu.functions.scaling.function_view import FunctionView, Phase, ReplicaView, VersionView
from pgpu.functions.scaling.replica_count import wanted_replicas
from pgpu.functions.scaling.scaling_steps import Drain, Fail, MarkEvictable, Park, Start, Step, Stop, Wake

FITS_WITHIN_SECONDS = 1.0
"""A new version's job that waits longer for its slice does not fit beside the old one."""

OFFERED_AFTER_SECONDS = 1.0
"""A replica is offered once it was idle so long: one that is on offer must be claimed before its next call."""

OFFERED_AT_ONCE_AFTER_SECONDS = 0.1
"""The same where somebody waits for memory: what it is worth says who goes, and a second of each in turn is many seconds."""

UNWANTED_AFTER_SECONDS = 10.0
"""A replica that waits for memory and that nobody has called for so long would be started for nobody, in the place of one
that is wanted. Sooner it keeps its turn: who gave up waiting often asks again.
"""

MOST_FAILURES = 5
"""Replicas of a new version that may end by themselves before it is given up."""

PARKED_IDLE_TIMES = 10
"""A parked replica ends after so many times what a hot one stays idle: it holds no GPU, but its process is there."""

_WORTH_SAYING = 0.1
"""An offer is made anew if its value changed by more than this part."""

_COMING = {Phase.WAITING, Phase.STARTING, Phase.HOT, Phase.FAILED}


def plan_steps(view: FunctionView) -> tuple[Step, ...]:
    """Say what to do about a function now; nothing where all is well.

    Each step is done before the next look, or is not done at all: a look at what came of it decides anew.
    """
    given_up = {fail.version: fail for fail in _failures(view)}
    serving = [version for version in view.versions if version.number not in given_up]
    steps: list[Step] = list(given_up.values())
    for version in serving:
        steps += _of_version(view, version)
    steps += _retiring(view, serving) if not given_up else ()
    steps += [Stop(each.job_id) for each in view.replicas if each.phase is Phase.DRAINING and not each.in_flight]
    waits_seconds = {version.number: PARKED_IDLE_TIMES * version.warmth.until_seconds for version in serving}
    woken = {step.job_id for step in steps if isinstance(step, Wake)}
    steps += [Stop(each.job_id) for each in _parked_for(view, waits_seconds) if each.job_id not in woken]
    return tuple(steps)


def _of(view: FunctionView, number: int) -> list[ReplicaView]:
    return [each for each in view.replicas if each.version == number and each.phase in _COMING]


def _retired(view: FunctionView) -> list[ReplicaView]:
    """Return the replicas of versions that get no traffic any more and still take calls."""
    numbers = {version.number for version in view.versions}
    return [each for each in view.replicas if each.version not in numbers and each.phase in _COMING]


def _failures(view: FunctionView) -> Iterator[Fail]:
    """Find new versions that do not come up, where there is something to go back to."""
    for version in view.versions if view.has_fallback else ():
        if not version.has_been_ready and (reason := _failure(view, version)) is not None:
            yield Fail(version.number, reason)


def _failure(view: FunctionView, version: VersionView) -> str | None:
    if version.failures >= MOST_FAILURES:
        return "its replicas ended before they were ready"
    for each in _of(view, version.number):
        if each.phase is Phase.FAILED:
            return "its replica could not be started several times"
        if each.phase is Phase.STARTING and view.now_seconds - each.since_seconds > version.startup_timeout_seconds:
            return "its replica was not ready in time"
    return None


def _of_version(view: FunctionView, version: VersionView) -> Iterator[Step]:
    there = _of(view, version.number)
    busy = version.queued + sum(each.in_flight for each in there)
    hot = sum(each.phase is Phase.HOT for each in there)
    wanted = wanted_replicas(
        busy, version.slots, version.exec_seconds, _floor(view, version), version.maximum, running=hot
    )
    if wanted > len(there):
        yield from _more(view, version, there, wanted - len(there))
        return
    surplus = [each for each in _longest_idle(there) if _may_go(view, version, each)][: len(there) - wanted]
    yield from (Park(each.job_id) if _can_park(version, each) else Drain(each.job_id) for each in surplus)
    yield from _offers(view, version, [each for each in there if each not in surplus])


def _more(view: FunctionView, version: VersionView, there: Sequence[ReplicaView], count: int) -> Iterator[Step]:
    """Wake who is parked, the last one to be idle first, and start the others."""
    parked = [each for each in view.replicas if each.phase is Phase.PARKED and each.version == version.number]
    woken = _longest_idle(parked)[::-1][:count]
    yield from (Wake(each.job_id) for each in woken if view.now_seconds >= each.retry_at_seconds)
    if view.now_seconds >= version.retry_at_seconds and not _is_any_failed(there):
        yield from [Start(version.number)] * (count - len(woken))


def _can_park(version: VersionView, each: ReplicaView) -> bool:
    return version.can_park and each.phase is Phase.HOT


def _parked_for(view: FunctionView, longest_seconds: Mapping[int, float]) -> Iterator[ReplicaView]:
    """Find who is parked for too long, or of a version that gets no traffic."""
    for each in view.replicas:
        longest = longest_seconds.get(each.version, 0.0)
        if each.phase is Phase.PARKED and not each.in_flight and view.now_seconds - each.since_seconds >= longest:
            yield each


def _is_any_failed(replicas: Sequence[ReplicaView]) -> bool:
    return any(each.phase is Phase.FAILED for each in replicas)


def _floor(view: FunctionView, version: VersionView) -> int:
    """Return how many replicas a version has though nobody calls."""
    return max(version.minimum, int(_is_replacing(view, version) or _is_kept_warm(view, version)))


def _is_replacing(view: FunctionView, version: VersionView) -> bool:
    """Whether others serve in its stead until it is hot: those that are to go, and a canary's elders."""
    others = _retired(view) if version.has_been_ready else view.replicas
    return any(each.phase is Phase.HOT and each.version != version.number for each in others)


def _is_kept_warm(view: FunctionView, version: VersionView) -> bool:
    """Whether one is to be there for the call that is expected, though none was for a while."""
    last, warmth = version.last_call_seconds, version.warmth
    return last is not None and warmth.from_seconds > 0 and warmth.is_wanted(view.now_seconds - last)


def _longest_idle(replicas: Sequence[ReplicaView]) -> list[ReplicaView]:
    return sorted((each for each in replicas if not each.in_flight), key=lambda each: each.idle_since_seconds)


def _may_go(view: FunctionView, version: VersionView, each: ReplicaView) -> bool:
    """Whether nobody would miss an idle replica; one that starts is never ended for want of calls."""
    if each.phase is Phase.WAITING:
        return _is_unwanted(view, version)
    if each.phase is not Phase.HOT:
        return False
    idle_seconds = view.now_seconds - each.idle_since_seconds
    if version.warmth.from_seconds > 0:
        return idle_seconds >= OFFERED_AFTER_SECONDS and not _is_kept_warm(view, version)
    return idle_seconds >= version.warmth.until_seconds


def _is_unwanted(view: FunctionView, version: VersionView) -> bool:
    last = version.last_call_seconds
    return not version.queued and last is not None and view.now_seconds - last >= UNWANTED_AFTER_SECONDS


def _offers(view: FunctionView, version: VersionView, there: Sequence[ReplicaView]) -> Iterator[MarkEvictable]:
    """Offer the idle ones beyond those that are pinned; they are told apart by how long they are idle."""
    hot = [each for each in there if each.phase is Phase.HOT]
    idle = [each for each in _longest_idle(hot) if _is_idle_long(view, each)]
    for each in idle[: max(0, len(hot) - version.minimum)]:
        if _is_news(each.offered_value, version.value):
            yield MarkEvictable(each.job_id, version.value)


def _is_idle_long(view: FunctionView, each: ReplicaView) -> bool:
    after_seconds = OFFERED_AT_ONCE_AFTER_SECONDS if view.is_memory_short else OFFERED_AFTER_SECONDS
    return view.now_seconds - each.idle_since_seconds >= after_seconds


def _is_news(offered: float | None, value: float) -> bool:
    return offered is None or abs(offered - value) > _WORTH_SAYING * max(offered, value)


def _retiring(view: FunctionView, serving: Sequence[VersionView]) -> Iterator[Step]:
    """Drain the replicas of versions that get no traffic, once they are not needed or stand in the way."""
    if not serving or all(_can_do_without(view, version) for version in serving):
        yield from (Drain(each.job_id) for each in _retired(view))


def _can_do_without(view: FunctionView, version: VersionView) -> bool:
    there = _of(view, version.number)
    if any(each.phase is Phase.HOT for each in there):
        return True
    waiting = [each for each in there if each.phase is Phase.WAITING]
    if waiting and len(waiting) == len(there):
        return any(view.now_seconds - each.since_seconds >= FITS_WITHIN_SECONDS for each in waiting)
    return not there and not version.queued and not _floor(view, version)
