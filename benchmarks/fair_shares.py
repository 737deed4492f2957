"""Shares of two users over time, and waits of large jobs under floods, in simulated time (`python -m benchmarks.fair_shares`).

Each scenario is one fixed list of arrivals, with fixed durations and seeds, that runs through the real `admit`. Users A and B have
the UIDs 1 and 2. A share is the part of the GPU time that A has had among all moments at which both users have waiting jobs. Prints
each figure with its bar and what the order before (`BEFORE`) gave, writes one JSON file into benchmarks/results, and exits 1 where
a bar is missed.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.replaying import NO_HEADROOM, Arrival, Fate, cards, easy, fifo, replay, with_quotas
from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.model import Request
from pgpu.scheduling import Candidate, OrderRules, Quota
from pgpu.structs import Struct, to_builtins
from pgpu.units import GIB

A, B = 1, 2
MINUTE, HOUR = 60.0, 3600.0
CARD_BYTES = 24 * GIB
TAU_SECONDS = OrderRules().ageing_seconds

# Measured with these scenarios at commit 13d805e2: shares of what is held at the moment, ties by age, linear ageing, and overdue
# jobs first in a quarter of the memory.
BEFORE: Mapping[str, str] = {
    "e1": "0.00",
    "e2": "0.33",
    "e3": "0.39",
    "e4": "0.42",
    "e5": "0.00",
    "e6": "0.43 of the offer, wait 1898 min",
    "e7": "54 ends",
    "e8": "0.00",
    "e9": "B starts nothing while A has jobs",
    "e10": "0.00",
    "e11": "0.48",
    "e12": "with one floor, B leads by 12.0 h and A starts nothing for 720 min",
    "a4": "0.00",
    "a5": "0.58",
    "a6": "0.00",
    "a11": "32, 72, 112, 152, 192, 235 min",
    "a12": "33, 73, 116 min",
    "a13": "120 min",
    "a14": "237 min",
    "a7": "first 45 min, gap 36 min",
    "r1": "0.43, 0.97",
    "r2": "0.37, 1.03",
    "r3": "0.26, 0.75",
    "r4": "0.30, 0.72",
}


class Figure(Struct, frozen=True):
    """One measured figure of a scenario, and its bar."""

    name: str
    value: float
    least: float
    most: float

    @property
    def is_met(self) -> bool:
        """Whether the value is within the bar."""
        return self.least <= self.value <= self.most


Fates = Mapping[str, Fate]
Figures = Iterable[Figure]


class Scenario(Struct, frozen=True):
    """Arrivals on equal GPUs, and what is measured of their fates."""

    gpus: int
    arrivals: Sequence[Arrival]
    measure: Callable[[Sequence[Arrival], Fates], Figures]
    weights: Mapping[int, float] = {}


def job(
    name: str,
    uid: int,
    came_seconds: float,
    lasts_seconds: float,
    *,
    memory_bytes: int = CARD_BYTES,
    gpus: int = 1,
    priority: int = 0,
    predicted_seconds: float | None = -1.0,
) -> Arrival:
    """Return one job; its duration is known unless `predicted_seconds` is given, None for no history."""
    known = lasts_seconds if predicted_seconds == -1.0 else predicted_seconds
    request = Request(memory_bytes, gpus, priority=priority)
    return Arrival(Candidate(f"{uid}-{name}", request, None, uid, came_seconds, known), lasts_seconds)


def batch(uid: int, count: int, came_seconds: float, lasts_seconds: float, **more: Any) -> list[Arrival]:
    """Return equal jobs that come together."""
    return [job(str(number), uid, came_seconds, lasts_seconds, **more) for number in range(count)]


def stream(
    uid: int, seed: int, hours: float, per_hour: float, lasts_seconds: float, *, prefix: str = "", **more: Any
) -> list[Arrival]:
    """Return equal jobs that come at random times."""
    dice, came = random.Random(seed), 0.0
    found: list[Arrival] = []
    while (came := came + dice.expovariate(per_hour / HOUR)) < hours * HOUR:
        found.append(job(f"{prefix}{len(found)}", uid, came, lasts_seconds, **more))
    return found


def mixed(seed: int, users: int, gpus: int, load: float, hours: float) -> list[Arrival]:
    """Return jobs of many sizes and lengths that come at random from users of whom some submit much more (Zipf)."""
    dice, came = random.Random(seed), 0.0
    weights = [1 / (place + 1) for place in range(users)]
    found: list[Arrival] = []
    while came < hours * HOUR:
        gib, lasts = dice.choice((1, 2, 4, 8, 12, 20)), min(3 * HOUR, dice.lognormvariate(math.log(15 * MINUTE), 1.0))
        (uid,) = dice.choices(range(10, 10 + users), weights)
        found.append(job(str(len(found)), uid, came, lasts, memory_bytes=gib * GIB))
        came += lasts * gib / 24 / gpus / load
    return found


def share_of_a(arrivals: Sequence[Arrival], fates: Fates) -> float:
    """Return A's part of the memory-time that A and B have had while both have waiting jobs."""
    waiting, holding = {A: 0, B: 0}, {A: 0.0, B: 0.0}
    changes: list[tuple[float, int, int, float]] = []
    for each in arrivals:
        fate, uid = fates[each.candidate.job_id], each.candidate.owner_uid
        held_bytes = each.candidate.request.memory_bytes * each.candidate.request.gpu_count
        changes.append((fate.came_seconds, uid, 1, 0.0))
        changes.append((fate.started_seconds, uid, -1, held_bytes))
        changes.append((fate.ended_seconds, uid, 0, -held_bytes))
    had = {A: 0.0, B: 0.0}
    changes.sort(key=lambda change: change[0])
    for (at, uid, more, held), (until, *_) in pairwise([*changes, (math.inf, 0, 0, 0.0)]):
        waiting[uid] += more
        holding[uid] += held
        if waiting[A] and waiting[B]:
            had = {each: had[each] + holding[each] * (until - at) for each in had}
    return had[A] / (had[A] + had[B])


def wait_minutes(fate: Fate) -> float:
    """Return how long a job waited."""
    return (fate.started_seconds - fate.came_seconds) / MINUTE


def longest_gap_minutes(arrivals: Sequence[Arrival], fates: Fates, uid: int, since_seconds: float) -> float:
    """Return the longest time without a running job of a user whose jobs run one at a time."""
    own = (fates[each.candidate.job_id] for each in arrivals if each.candidate.owner_uid == uid)
    runs = sorted((fate.started_seconds, fate.ended_seconds) for fate in own if fate.ended_seconds > since_seconds)
    return max(start - end for (_, end), (start, _) in pairwise(runs)) / MINUTE


def halves(arrivals: Sequence[Arrival], fates: Fates) -> Figures:
    """Measure equal shares."""
    yield Figure("share of A", share_of_a(arrivals, fates), 0.45, 0.55)


def three_quarters(arrivals: Sequence[Arrival], fates: Fates) -> Figures:
    """Measure shares of weights 3 and 1."""
    yield Figure("share of A", share_of_a(arrivals, fates), 0.70, 0.80)


def all_offered(arrivals: Sequence[Arrival], fates: Fates) -> Figures:
    """Measure whether A, who asks for less than half, gets it, and how soon."""
    own = [fates[each.candidate.job_id] for each in arrivals if each.candidate.owner_uid == A]
    until = max(each.candidate.eligible_at_seconds for each in arrivals)
    offered = sum(each.duration_seconds for each in arrivals if each.candidate.owner_uid == A)
    had = sum(max(0.0, min(fate.ended_seconds, until) - fate.started_seconds) for fate in own)
    # Jobs that come in the last hour need not have ended.
    yield Figure("of A's offer", had / offered, (offered - HOUR) / offered, 1.0)
    yield Figure("longest wait of A, min", max(map(wait_minutes, own)), 0.0, 60.0)


def next_place(arrivals: Sequence[Arrival], fates: Fates) -> Figures:
    """Measure how many ends of other jobs a late user's only job waits for."""
    late = fates[next(each.candidate.job_id for each in arrivals if each.candidate.owner_uid == B)]
    ends = [fate.ended_seconds for fate in fates.values() if late.came_seconds < fate.ended_seconds]
    yield Figure("ends waited for", sum(end <= late.started_seconds for end in ends), 0, 1)


def credited(arrivals: Sequence[Arrival], fates: Fates) -> Figures:
    """Measure the lead of B, who comes after twelve hours of A alone, and how long A starts nothing."""
    since, window = 12 * HOUR, 12 * HOUR
    had = {A: 0.0, B: 0.0}
    for each in arrivals:
        fate = fates[each.candidate.job_id]
        had[each.candidate.owner_uid] += max(
            0.0, min(fate.ended_seconds, since + window) - max(fate.started_seconds, since)
        )
    run, credit = 30 * MINUTE, 2 * HOUR
    yield Figure("lead of B, h", (had[B] - had[A]) / HOUR, (credit - run) / HOUR, (credit + run) / HOUR)
    yield Figure("gap of A, min", longest_gap_minutes(arrivals, fates, A, since), 0.0, (credit + run) / MINUTE + 1)


def large_waits(bound: Callable[[int], float]) -> Callable[[Sequence[Arrival], Fates], Figures]:
    """Return the measure of the waits of jobs named `large`, in minutes, each beside the bound of its number from 0 on."""

    def measure(_arrivals: Sequence[Arrival], fates: Fates) -> Figures:
        waits = sorted(wait_minutes(fate) for name, fate in fates.items() if "large" in name)
        for number, wait in enumerate(waits):
            yield Figure(f"large {number + 1}, min", wait, 0.0, bound(number))

    return measure


def large_after_an_hour(*, users: int) -> Callable[[Sequence[Arrival], Fates], Figures]:
    """Return the measure of the waits of large jobs that come an hour after a flood of small ones of 120 % began.

    The bound is the end of all that came before them or precedes them by its key, at that load; then twice a small job, to
    drain, and the large ones before. If they belong to one of several users, all that once for each user.
    """
    ratio, small_minutes, run_minutes, load = 80 / 3, 3, 10, 1.2
    ahead = load * (60 + TAU_SECONDS / MINUTE * math.log2(ratio)) - 60
    return large_waits(lambda number: (ahead + 2 * small_minutes + number * run_minutes) * users)


def response(gpus: int) -> Callable[[Sequence[Arrival], Fates], Figures]:
    """Return the measure of the mean response over that of first come, first served, without and with backfilling (EASY)."""

    def measure(arrivals: Sequence[Arrival], fates: Fates) -> Figures:
        own = fmean(fate.response_seconds for fate in fates.values())
        for name, policy, most in (("mean over first come", fifo, 1.0), ("mean over EASY", easy, 1.15)):
            others = replay(cards(gpus, CARD_BYTES), arrivals, policy, headroom=NO_HEADROOM)
            yield Figure(name, own / fmean(fate.response_seconds for fate in others.values()), 0.0, most)

    return measure


def lane_gaps(_arrivals: Sequence[Arrival], fates: Fates) -> Figures:
    """Measure how often overdue jobs start below a flood of high priority."""
    starts = sorted(fate.started_seconds for name, fate in fates.items() if "large" in name)
    yield Figure("first wait, min", (starts[0] - HOUR) / MINUTE, 0.0, 60.0)
    yield Figure("gap, min", max(b - a for a, b in pairwise(starts)) / MINUTE, 0.0, 36.0)


SLOTS_5, SLOTS_7 = CARD_BYTES // 5, CARD_BYTES // 7
TEN = 10 * MINUTE

SCENARIOS: Mapping[str, Callable[[], Scenario]] = {
    "e1 one GPU, B 1 s earlier": lambda: Scenario(1, [*batch(B, 60, 0.0, TEN), *batch(A, 20, 1.0, TEN)], halves),
    "e2 three GPUs": lambda: Scenario(3, [*batch(B, 180, 0.0, TEN), *batch(A, 60, 1.0, TEN)], halves),
    "e3 five slots": lambda: Scenario(
        1,
        [*batch(B, 300, 0.0, TEN, memory_bytes=SLOTS_5), *batch(A, 100, 1.0, TEN, memory_bytes=SLOTS_5)],
        halves,
    ),
    "e4 seven slots": lambda: Scenario(
        1,
        [*batch(B, 420, 0.0, TEN, memory_bytes=SLOTS_7), *batch(A, 140, 1.0, TEN, memory_bytes=SLOTS_7)],
        halves,
    ),
    "e5 A of weight 3": lambda: Scenario(
        1, [*batch(B, 60, 0.0, TEN), *batch(A, 40, 1.0, TEN)], three_quarters, {A: 3.0}
    ),
    "e6 B floods 200 %, A offers 33 %": lambda: Scenario(
        1, [*stream(B, 6, 24, 12, TEN), *stream(A, 61, 24, 2, TEN)], all_offered
    ),
    "e7 late user, one job": lambda: Scenario(
        1, [*batch(A, 60, 0.0, TEN), job("late", B, HOUR + 1, 20 * MINUTE)], next_place
    ),
    "e8 B cuts into 60-s jobs": lambda: Scenario(1, [*batch(B, 600, 0.0, MINUTE), *batch(A, 20, 1.0, TEN)], halves),
    "e9 after 12 h of A alone": lambda: Scenario(
        1, [*batch(A, 60, 0.0, 30 * MINUTE), *batch(B, 48, 12 * HOUR + 1, 30 * MINUTE)], credited
    ),
    "e10 no history": lambda: Scenario(
        1,
        [*batch(B, 60, 0.0, TEN, predicted_seconds=None), *batch(A, 20, 1.0, TEN, predicted_seconds=None)],
        halves,
    ),
    "e11 interleaved, 170 %": lambda: Scenario(1, [*stream(A, 11, 20, 5.1, TEN), *stream(B, 12, 20, 5.1, TEN)], halves),
    "e12 B keeps short low jobs waiting for 12 h": lambda: Scenario(
        1,
        [
            *batch(A, 60, 0.0, 30 * MINUTE),
            *(job(f"low{number}", B, number * TEN, 1.0, priority=-50) for number in range(72)),
            *batch(B, 48, 12 * HOUR + 1, 30 * MINUTE),
        ],
        credited,
    ),
    "a4 B says 1 s, runs 1 h": lambda: Scenario(
        1, [*batch(B, 30, 0.0, HOUR, predicted_seconds=1.0), *batch(A, 60, 1.0, TEN)], halves
    ),
    "a5 6-h jobs beside 10 min": lambda: Scenario(1, [*batch(B, 12, 0.0, 6 * HOUR), *batch(A, 400, 1.0, TEN)], halves),
    "a6 jobs on 4 GPUs, flood on 1": lambda: Scenario(
        4, [*batch(B, 400, 0.0, TEN), *batch(A, 40, 1.0, TEN, gpus=4)], halves
    ),
    "a11 6 large, own flood 120 %": lambda: Scenario(
        1,
        [
            *stream(A, 21, 8, 192, 3 * MINUTE, memory_bytes=3 * GIB),
            *(job(f"large{number}", A, HOUR, TEN) for number in range(6)),
        ],
        large_after_an_hour(users=1),
    ),
    "a12 3 large of one user, 30 flood": lambda: Scenario(
        1,
        [
            *(each for uid in range(10, 40) for each in stream(uid, uid, 8, 6.4, 3 * MINUTE, memory_bytes=3 * GIB)),
            *(job(f"large{number}", A, HOUR, TEN) for number in range(3)),
        ],
        large_after_an_hour(users=31),
    ),
    "a13 one job on 8 GPUs": lambda: Scenario(
        8,
        [*stream(B, 31, 12, 40, 90 * MINUTE, memory_bytes=6 * GIB), job("large", A, HOUR, HOUR, gpus=8)],
        large_waits(lambda _: 150.0),
    ),
    "a14 the same, B says 1 s and runs 2 h": lambda: Scenario(
        8,
        [
            *stream(B, 32, 12, 30, 2 * HOUR, memory_bytes=6 * GIB, predicted_seconds=1.0),
            job("large", A, HOUR, HOUR, gpus=8),
        ],
        large_waits(lambda _: 240.0),
    ),
    "a7 12 normal jobs, flood of high priority": lambda: Scenario(
        1,
        [
            *stream(B, 41, 14, 72, TEN, memory_bytes=4 * GIB, priority=50),
            *(job(f"large{number}", A, HOUR, 6 * MINUTE) for number in range(12)),
        ],
        lane_gaps,
    ),
    "r1 one user, load 0.9": lambda: Scenario(2, mixed(51, 1, 2, 0.9, 24), response(2)),
    "r2 5 users, load 0.9": lambda: Scenario(2, mixed(52, 5, 2, 0.9, 24), response(2)),
    "r3 30 users, load 1.1": lambda: Scenario(2, mixed(53, 30, 2, 1.1, 24), response(2)),
    "r4 one user, load 1.2": lambda: Scenario(1, mixed(54, 1, 1, 1.2, 24), response(1)),
}


def main() -> int:
    """Replay all scenarios, print and write their figures; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose name begins with this")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    found: dict[str, list[Figure]] = {}
    for name, make in SCENARIOS.items():
        if not name.startswith(arguments.only):
            continue
        scenario = make()
        quotas = {uid: Quota(weight=weight) for uid, weight in scenario.weights.items()}
        gpus, policy = cards(scenario.gpus, CARD_BYTES), with_quotas(quotas)
        fates = replay(gpus, scenario.arrivals, policy, headroom=NO_HEADROOM, quotas=quotas)
        found[name] = list(scenario.measure(scenario.arrivals, fates))
        print(f"{name} (before: {BEFORE[name.partition(' ')[0]]})")
        for each in found[name]:
            bar = f"bar {each.least:.2f} to {each.most:.2f}"
            print(f"    {each.name:24} {each.value:8.2f}  {bar}{'' if each.is_met else '  MISSED'}", flush=True)
    if not arguments.only:
        report = {**circumstances(), "before": BEFORE, "figures": to_builtins(found)}
        path = arguments.output / f"fair-shares-{report['date']}.json"
        path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return 0 if all(each.is_met for figures in found.values() for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
