"""Solves every set and remembers the answers (`python -m benchmarks.makespan.optima`).

Needs the dependency group `benchmarks`, and half an hour; what is in the file already is not solved again.
"""

import argparse
from pathlib import Path
from typing import Any

from benchmarks.makespan.answers import OPTIMA, SEEDS, read, write
from benchmarks.makespan.optimum import TICK_SECONDS, optimum
from benchmarks.makespan.sets import KINDS, JobSet

from pgpu.scheduling.batch import Batch, play
from pgpu.scheduling.makespan import plan_batch


def main() -> int:
    """Solve what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for each set")
    parser.add_argument("--file", type=Path, default=OPTIMA)
    arguments = parser.parse_args()
    known = read(arguments.file)
    for seed in range(SEEDS):
        for kind, make in KINDS.items():
            answers = known.setdefault(kind, {})
            if str(seed) not in answers:
                answers[str(seed)] = solved(make(seed), arguments.limit)
                write(arguments.file, known)
                print(kind, seed, answers[str(seed)], flush=True)
    return 0


def solved(jobs: JobSet, limit_seconds: float) -> dict[str, Any]:
    """Solve one set, from our plan on."""
    plan = plan_batch(jobs.jobs, jobs.capacity_bytes)
    places = {job.job_id: place for place, job in enumerate(jobs.jobs)}
    holds = {places[job]: places[first] for job, first in plan.holds.items()}
    played = play(Batch.of(jobs.jobs, jobs.capacity_bytes), [places[job] for job in plan.order], holds)
    best = optimum(jobs, list(played.starts_seconds), limit_seconds=limit_seconds)
    return {
        "solver_seconds": round(best.end_seconds, 1),
        "bound_seconds": round(best.bound_seconds, 2),
        "is_proven": min(best.end_seconds, plan.end_seconds) <= best.bound_seconds + TICK_SECONDS,
        "ours_seconds": round(plan.end_seconds, 1),
    }


if __name__ == "__main__":
    raise SystemExit(main())
