"""The scaling policy over minutes of calls, in simulated time: short calls wait for no long one while another replica is allowed.

Discrete events: one function with one call at a time in a replica; the policy decides at each event, and when a call has run for
`max_wait`. A router that sends nothing behind a call that runs long is modelled as one queue; replicas start in 0.6 s.
"""

import heapq
import random
from collections import deque
from collections.abc import Iterator

import pytest

from pgpu.functions.scaling.replica_policy import (
    FunctionView,
    Phase,
    ReplicaView,
    StartReplica,
    VersionView,
    plan_steps,
)
from pgpu.structs import replace

START_SECONDS, MAX_WAIT_SECONDS, COLD_SECONDS = 0.6, 0.1, 60.0
MINUTES, LONG_SECONDS = 4, 12.0


def poisson(dice: random.Random, rate: float) -> Iterator[float]:
    at = 0.0
    while (at := at + dice.expovariate(rate)) < MINUTES * 60:
        yield at


def two_sizes(dice: random.Random) -> list[tuple[float, float]]:
    """Half a call of 12 s in flight on average, and 20 of 10 ms a second."""
    long = [(at, LONG_SECONDS) for at in poisson(dice, 0.5 / LONG_SECONDS)]
    return sorted([*((at, 0.01) for at in poisson(dice, 20.0)), *long])


def pareto(dice: random.Random) -> list[tuple[float, float]]:
    """20 calls a second, of at least 5 ms and at most 12 s; 0.3 in flight on average."""
    return [(at, min(LONG_SECONDS, 0.005 * dice.paretovariate(1.5))) for at in poisson(dice, 20.0)]


def waits(calls: list[tuple[float, float]], maximum: int) -> list[tuple[float, float, float]]:
    """Play calls of (arrival, duration); return arrival, duration and wait of each."""
    events: list[tuple[float, int, str, str]] = []
    queue: deque[tuple[float, float]] = deque()
    hot: dict[str, tuple[float, float] | None] = {}  # begin and duration of the call that it runs
    idle_since: dict[str, float] = {}
    starting: set[str] = set()
    found, mean, ids = [], None, 0
    for number, (at, _) in enumerate(calls):
        heapq.heappush(events, (at, number, "call", ""))
    pending, order = deque(calls), len(calls)
    while events and (pending or queue or any(hot.values())):
        now, _, kind, name = heapq.heappop(events)
        if kind == "call":
            queue.append(pending.popleft())
        elif kind == "end" and (run := hot[name]) is not None:
            part = min(1.0, run[1] / MAX_WAIT_SECONDS)
            mean = part if mean is None else mean + 0.125 * (part - mean)
            hot[name], idle_since[name] = None, now
        elif kind == "hot":
            starting.discard(name)
            hot[name], idle_since[name] = None, now
        for name in [each for each, run in hot.items() if run is None][: len(queue)]:
            arrival, duration = queue.popleft()
            hot[name] = (now, duration)
            found.append((arrival, duration, now - arrival))
            for after, word in ((duration, "end"), (MAX_WAIT_SECONDS, "look")):
                order += 1
                heapq.heappush(events, (now + after, order, word, name))
        views = [
            ReplicaView(
                name, 1, Phase.HOT, 0.0, in_flight=int(run is not None), idle_since_seconds=idle_since[name],
                held=int(run is not None and now - run[0] >= MAX_WAIT_SECONDS - 1e-9),
            )
            for name, run in hot.items()
        ]  # fmt: skip
        views += [ReplicaView(each, 1, Phase.STARTING, 0.0) for each in starting]
        version = VersionView(
            1, has_been_ready=True, queued=len(queue), maximum=maximum, brief_part=mean, last_call_seconds=now
        )
        for step in plan_steps(FunctionView(now, (version,), tuple(views))):
            if isinstance(step, StartReplica):
                ids, order = ids + 1, order + 1
                starting.add(str(ids))
                heapq.heappush(events, (now + START_SECONDS, order, "hot", str(ids)))
    assert len(found) == len(calls)
    assert len(hot) <= maximum
    return found


@pytest.mark.parametrize("scenario", [two_sizes, pareto])
@pytest.mark.parametrize("seed", [2, 4])
def test_short_calls_wait_for_no_long_one(scenario: object, seed: int) -> None:
    played = waits(scenario(random.Random(seed)), maximum=4)  # type: ignore[operator]
    short = sorted(wait for at, duration, wait in played if duration <= MAX_WAIT_SECONDS and at >= COLD_SECONDS)
    assert short[int(0.99 * len(short))] <= 1.0


def test_calls_that_run_as_one_replica_can_take_them_need_no_other() -> None:
    dice = random.Random(1)
    played = waits([(at, 0.002) for at in poisson(dice, 100.0) if at < 20], maximum=4)
    view = VersionView(1, has_been_ready=True, queued=5, maximum=4, brief_part=0.02)
    hot = ReplicaView("it", 1, Phase.HOT, 0.0, in_flight=1)
    assert plan_steps(FunctionView(100.0, (view,), (hot,))) == ()
    assert plan_steps(FunctionView(100.0, (view,), (replace(hot, held=1),))) == (StartReplica(1),)
    assert max(wait for _, _, wait in played) < START_SECONDS + 0.1
