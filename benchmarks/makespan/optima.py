"""Solves every set and remembers the answers (`python -m benchmarks.makespan.optima`).

Needs the dependency group `benchmarks`, and half an hour; what is in the file already is not solved again.
"""

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.makespan.answers import OPTIMA, SEEDS, read, write
from benchmarks.makespan.optimum import TICK_SECONDS, optimum
from benchmarks.makespan.sets import ALL_KINDS, JobSet

from pgpu.scheduling.batch_simulation import SimulatedBatch, simulate
from pgpu.scheduling.makespan import plan_batch


def main() -> int:
    """Solve what is missing, and with `--again` what is not proven."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds for each set")
    parser.add_argument("--again", action="store_true", help="look once more where nothing is proven")
    parser.add_argument("--kinds", default="", help="only kinds with this word in their name")
    parser.add_argument("--file", type=Path, default=OPTIMA)
    arguments = parser.parse_args()
    known = read(arguments.file)
    chosen = {kind: make for kind, make in ALL_KINDS.items() if arguments.kinds in kind}
    for seed, (kind, make) in itertools.product(range(SEEDS), chosen.items()):
        answers = known.setdefault(kind, {})
        before = answers.get(str(seed))
        if before is None or (arguments.again and not before["is_proven"]):
            answers[str(seed)] = solved(make(seed), arguments.limit, before)
            write(arguments.file, known)
            print(kind, seed, answers[str(seed)], flush=True)
    return 0


def solved(jobs: JobSet, limit_seconds: float, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Solve one set, from our plan on; what was known before stays known."""
    plan = plan_batch(jobs.jobs, jobs.capacity_bytes)
    places = {job.job_id: place for place, job in enumerate(jobs.jobs)}
    holds = {places[job]: places[first] for job, first in plan.holds.items()}
    played = simulate(SimulatedBatch.of(jobs.jobs, jobs.capacity_bytes), [places[job] for job in plan.order], holds)
    best = optimum(jobs, list(played.starts_seconds), limit_seconds=limit_seconds)
    end_seconds = min(best.end_seconds, before["solver_seconds"] if before else best.end_seconds)
    bound_seconds = max(best.bound_seconds, before["bound_seconds"] if before else 0.0)
    return {
        "solver_seconds": round(end_seconds, 1),
        "bound_seconds": round(bound_seconds, 2),
        "is_proven": min(end_seconds, plan.end_seconds) <= bound_seconds + TICK_SECONDS,
        "ours_seconds": round(plan.end_seconds, 1),
    }


if __name__ == "__main__":
    raise SystemExit(main())
