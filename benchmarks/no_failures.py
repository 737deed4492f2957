"""No job fails for lack of memory: days of jobs replayed through the real admission (`python -m benchmarks.no_failures`).

P1's 25 jobs arrive at random, and 300 jobs of mixed size and length come at random, half of them training that takes all of
its slice as P2's does, of five users who take turns; on one, two and eight GPUs. After every decision all that jobs hold on a GPU
is counted. For comparison the same days without admission: each job starts when it arrives, on the GPU with most free memory, and
fails if that is too little.
"""

import argparse
import datetime as dt
import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.makespan.sets import CARD_MIB
from benchmarks.replaying import (
    Arrival,
    MemoryFailureError,
    candidate_of,
    cards,
    default_objective,
    makespan_objective,
    replay,
)

from pgpu.structs import replace
from pgpu.units import GIB, MIB

RESULTS = Path(__file__).parent / "results"
P1_BYTES = 1205 * MIB
P1_SECONDS = 8.5
SEEDS_PLANNED = 2
"""Days that are played with the makespan objective, too."""

LOAD = 1.3
"""Memory-time that comes, over what the GPUs have while it comes: a queue builds up."""


def main() -> int:
    """Replay, print, write; 1 if any job fails under admission."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    days = []
    for seed in range(arguments.seeds):
        for name, make in (("P1's 25 jobs", p1_jobs), ("300 mixed jobs", mixed_jobs)):
            for gpu_count in (1, 2, 8):
                days.append(day(name, make, gpu_count, seed))
                print(days[-1], flush=True)
    date = dt.datetime.now(dt.UTC).date().isoformat()
    report = {"date": date, "summary": summary(days), "days": days}
    for row in report["summary"]:
        print(row)
    (arguments.output / f"no-failures-{date}.json").write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return 1 if any(each["failed"] or each["planned"].get("failed") for each in days) else 0


def p1_jobs(seed: int, gpu_count: int) -> list[Arrival]:
    """P1's job 25 times for each GPU, within the time that one of them takes."""
    dice = random.Random(seed)
    return [
        Arrival(candidate_of(f"job{number}", P1_BYTES, dice.uniform(0, P1_SECONDS), P1_SECONDS), P1_SECONDS)
        for number in range(25 * gpu_count)
    ]


def mixed_jobs(seed: int, gpu_count: int) -> list[Arrival]:
    """Three hundred jobs: inference that holds a part of its slice, and training that holds all of it."""
    dice = random.Random(seed)
    drawn = [_training(dice) if number % 2 else _inference(dice) for number in range(300)]
    work = sum(slice_bytes * seconds for slice_bytes, _, seconds in drawn)
    within_seconds = work / (LOAD * gpu_count * CARD_MIB * MIB)
    return [
        Arrival(
            replace(
                candidate_of(f"job{number}", slice_bytes, dice.uniform(0, within_seconds), _predicted(dice, seconds)),
                owner_uid=number % 5,
            ),
            seconds,
            used_bytes,
        )
        for number, (slice_bytes, used_bytes, seconds) in enumerate(drawn)
    ]


def _inference(dice: random.Random) -> tuple[int, int, float]:
    slice_bytes = dice.randint(500, 6000) * MIB
    return slice_bytes, int(slice_bytes * dice.uniform(0.3, 1.0)), dice.lognormvariate(3.0, 1.0)


def _training(dice: random.Random) -> tuple[int, int, float]:
    slice_bytes = dice.choice((1205 * MIB, dice.randint(2, 20) * GIB))
    return slice_bytes, slice_bytes, dice.lognormvariate(5.0, 1.0)


def _predicted(dice: random.Random, seconds: float) -> float | None:
    """A third of the jobs are new; of the others the history is off by a factor."""
    return None if dice.random() < 1 / 3 else seconds * dice.lognormvariate(0, 0.7)


def day(name: str, make: Callable[[int, int], list[Arrival]], gpu_count: int, seed: int) -> dict[str, Any]:
    """Replay one day in three ways."""
    arrivals = make(seed, gpu_count)
    failed, ended, end_seconds = _admitted(arrivals, gpu_count, is_planned=False)
    planned = {}
    if seed < SEEDS_PLANNED:
        failed_planned, ended_planned, end_planned_seconds = _admitted(arrivals, gpu_count, is_planned=True)
        planned = {"ended": ended_planned, "failed": failed_planned, "end_seconds": end_planned_seconds}
    return {
        "jobs": name,
        "gpus": gpu_count,
        "seed": seed,
        "count": len(arrivals),
        "ended": ended,
        "failed": failed,
        "end_seconds": end_seconds,
        "planned": planned,
        "failed_without_admission": without_admission(arrivals, gpu_count),
    }


def _admitted(arrivals: Sequence[Arrival], gpu_count: int, *, is_planned: bool) -> tuple[int, int, float]:
    """Return how many failed and ended, and when the last did; the first failure ends a day."""
    policy = makespan_objective(5_000, 0) if is_planned else default_objective
    try:
        fates = replay(cards(gpu_count, CARD_MIB * MIB), arrivals, policy)
    except MemoryFailureError:
        return 1, 0, 0.0
    return 0, len(fates), round(max(fate.ended_seconds for fate in fates.values()), 1)


def without_admission(arrivals: Sequence[Arrival], gpu_count: int) -> int:
    """Count the jobs that find too little memory if each starts at once; a failed job holds nothing from then on."""
    free_bytes = [CARD_MIB * MIB] * gpu_count
    running: list[tuple[float, int, int]] = []
    failed = 0
    for arrival in sorted(arrivals, key=lambda each: each.candidate.eligible_at_seconds):
        now_seconds = arrival.candidate.eligible_at_seconds
        for _, gpu, held_bytes in [each for each in running if each[0] <= now_seconds]:
            free_bytes[gpu] += held_bytes
        running = [each for each in running if each[0] > now_seconds]
        used_bytes = arrival.used_bytes or arrival.candidate.request.memory_bytes
        gpu = max(range(gpu_count), key=free_bytes.__getitem__)
        if free_bytes[gpu] < used_bytes:
            failed += 1
            continue
        free_bytes[gpu] -= used_bytes
        running.append((now_seconds + arrival.duration_seconds, gpu, used_bytes))
    return failed


def summary(days: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum over seeds."""
    kinds = dict.fromkeys((each["jobs"], each["gpus"]) for each in days)
    rows = []
    for jobs, gpus in kinds:
        planned = [each for each in days if (each["jobs"], each["gpus"]) == (jobs, gpus) and each["planned"]]
        same = [each for each in days if (each["jobs"], each["gpus"]) == (jobs, gpus)]
        rows.append(
            {
                "jobs": jobs,
                "gpus": gpus,
                "days": len(same),
                "ended": sum(each["ended"] for each in same),
                "failed": sum(each["failed"] for each in same),
                "days_planned": len(planned),
                "failed_planned": sum(each["planned"]["failed"] for each in planned),
                "failed_without_admission": sum(each["failed_without_admission"] for each in same),
                "end_planned_over_default": round(
                    statistics.fmean(each["planned"]["end_seconds"] / each["end_seconds"] for each in planned), 3
                ),
            }
        )
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
