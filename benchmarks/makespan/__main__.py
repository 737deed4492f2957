"""How soon batches end, over the optimum, and how long jobs take in the default objective (`python -m benchmarks.makespan`).

Every policy but the optimum is replayed through the real `admit`, with durations that are known and with durations that
are known only to a factor (log-normal, σ = 0.7). *As the engine plans* uses the
agent's own effort and uncertainty: σ is not passed to it; it derives exact durations from three equal runs, and uses its default σ for
jobs without a run. Results that the file contains already are kept. The optimum is read from the output of
`benchmarks.makespan.optima`; where none is proven, its bound takes its place, so that ratios err upwards.
"""

import argparse
import datetime as dt
import json
import random
import statistics
from collections.abc import Callable, Container, Mapping
from pathlib import Path
from typing import Any

from benchmarks.makespan import p1
from benchmarks.makespan.answers import OPTIMA, SEEDS, read, write
from benchmarks.makespan.sets import ALL_KINDS, CARD_MIB, SMALL_KINDS, JobSet
from benchmarks.replaying import (
    NO_HEADROOM,
    Arrival,
    Fate,
    Policy,
    as_the_engine,
    candidate_of,
    cards,
    default_objective,
    easy,
    fifo,
    in_order_of,
    makespan_objective,
    replay,
)

from pgpu.engine.admission.queue_plan import fit_curve
from pgpu.scheduling.makespan import plan_batch
from pgpu.scheduling.run_times import SlowdownCurve
from pgpu.units import MIB

SIGMA = 0.7
EFFORT = 30_000
"""For the first plan: half a second."""

EFFORT_AGAIN = 1_000
"""When a job ends or comes: what a benchmark of thousands of plans can spend; the engine spends more."""

TOLD = "planned, arrivals told"

ENGINE = "as the engine plans"

PLAIN_ORDERS = ("first come, first served", "EASY", "longest first", "largest memory-time first")

RUNS_KNOWN = 3
"""So many runs, all alike, are in the history where durations are known."""

_Answers = Mapping[str, Mapping[str, float]]
"""By policy."""

Rows = dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]
"""By σ, kind, seed and policy: end and mean response in seconds."""


def policies(sigma: float, curves: Mapping[str, SlowdownCurve]) -> Mapping[str, Callable[[], Policy]]:
    """Return how to make each policy: one may remember a plan."""
    planned: dict[str, Callable[[], Policy]] = {"planned": lambda: makespan_objective(EFFORT, EFFORT_AGAIN)}
    return ({} if sigma else planned) | {
        ENGINE: lambda: as_the_engine(curves),
        "default": lambda: default_objective,
        "first come, first served": lambda: fifo,
        "EASY": lambda: easy,
        "longest first": lambda: in_order_of(lambda each: each.duration_seconds or 0.0),
        "largest memory-time first": lambda: in_order_of(
            lambda each: (each.duration_seconds or 0.0) * each.request.memory_bytes
        ),
    }


def main() -> int:
    """Play what is missing, then print and write; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    date = dt.datetime.now(dt.UTC).date().isoformat()
    parser.add_argument("--output", type=Path, default=OPTIMA.with_name(f"makespan-{date}.json"))
    parser.add_argument("--optima", type=Path, default=OPTIMA)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    arguments = parser.parse_args()
    known = json.loads(arguments.output.read_text("utf-8")) if arguments.output.exists() else {}
    rows: Rows = known.get("rows", {})
    for seed in range(arguments.seeds):
        for kind, make in ALL_KINDS.items():
            for sigma in (0.0, SIGMA):
                answers = rows.setdefault(str(sigma), {}).setdefault(kind, {})
                known_row = answers.setdefault(str(seed), {})
                if missing := played(make(seed), sigma, seed, known_row):
                    known_row.update(missing)
                    write(arguments.output, {"date": date, "rows": rows})
    report = {"date": date, **summary(rows, read(arguments.optima)), "rows": rows}
    write(arguments.output, report)
    print_report(report)
    return 0 if all(report["bars"].values()) else 1


def played(jobs: JobSet, sigma: float, seed: int, known: Container[str] = ()) -> dict[str, dict[str, float]]:
    """Replay one set with every policy that is not known yet."""
    dice = random.Random(1000 + seed)
    arrivals = []
    for job in jobs.jobs:
        predicted_seconds = job.duration_seconds * (dice.lognormvariate(0, sigma) if sigma else 1.0)
        candidate = candidate_of(job.job_id, job.memory_bytes, job.release_seconds, predicted_seconds)
        arrivals.append(Arrival(candidate, job.duration_seconds))
    gpus = cards(jobs.cards, CARD_MIB * MIB)
    answers = {
        name: _figures(replay(gpus, arrivals, make(), headroom=NO_HEADROOM))
        for name, make in policies(sigma, {} if sigma else exact_history(jobs)).items()
        if name not in known
    }
    if not sigma and TOLD not in known and any(job.release_seconds for job in jobs.jobs):
        answers[TOLD] = {"end": plan_batch(jobs.jobs, jobs.capacity_bytes, effort=EFFORT).end_seconds}
    return answers


def exact_history(jobs: JobSet) -> dict[str, SlowdownCurve]:
    """Return what the engine learns from runs that were all alike."""
    found = {job.job_id: fit_curve([(job.duration_seconds, 1.0)] * RUNS_KNOWN) for job in jobs.jobs}
    return {job_id: stretch for job_id, stretch in found.items() if stretch is not None}


def _figures(fates: Mapping[str, Fate]) -> dict[str, float]:
    ends = [fate.ended_seconds for fate in fates.values()]
    return {
        "end": round(max(ends), 2),
        "response": round(statistics.fmean(fate.response_seconds for fate in fates.values()), 2),
    }


def summary(rows: Rows, optima: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return ends over the optimum, response times over first come, first served, and the bars that are met."""
    proven = {
        kind: {seed: each for seed, each in optima.get(kind, {}).items() if each["is_proven"]} for kind in ALL_KINDS
    }
    tables = {sigma: {kind: _over(seeds, optima.get(kind, {}), soonest) for kind, seeds in kinds.items()}
              for sigma, kinds in rows.items()}  # fmt: skip
    known = {kind: _over(seeds, proven.get(kind, {}), soonest) for kind, seeds in rows["0.0"].items()}
    nearly = {kind: _over(seeds, optima.get(kind, {}), best_known) for kind, seeds in rows["0.0"].items()}
    beside = {sigma: {kind: _over(_with_engine(seeds), optima.get(kind, {}), soonest) for kind, seeds in kinds.items()}
              for sigma, kinds in rows.items()}  # fmt: skip
    exact = {kind: _over(_with_engine(seeds), proven.get(kind, {}), soonest) for kind, seeds in rows["0.0"].items()}
    responses = {sigma: {kind: _responses(seeds) for kind, seeds in kinds.items()} for sigma, kinds in rows.items()}
    ends = p1.ends() | p1.ends_as_learnt()
    return {
        "end_over_optimum_or_bound": tables,
        "end_over_proven_optimum": known,
        "end_over_best_known": nearly,
        "beside_the_engine_on_its_sets": beside,
        "sets_with_a_proven_optimum": {kind: len(each) for kind, each in proven.items()},
        "response_over_first_come": responses,
        "p1_25_jobs_end_seconds": ends,
        "bars": bars(known, ends)
        | bars_of_engine(exact, beside[str(SIGMA)])
        | {
            "small kinds: optimum proven for 95 %": sum(len(proven[kind]) for kind in SMALL_KINDS)
            >= 0.95 * sum(len(rows["0.0"].get(kind, {})) for kind in SMALL_KINDS)
        },
    }


def _over(
    seeds: Mapping[str, Mapping[str, Mapping[str, float]]],
    optima: Mapping[str, Any],
    reference: Callable[[Mapping[str, Any]], float],
) -> dict[str, Any]:
    ratios: dict[str, list[float]] = {}
    for seed, answers in seeds.items():
        if seed in optima:
            for name, figures in answers.items():
                ratios.setdefault(name, []).append(figures["end"] / reference(optima[seed]))
    return {name: {"mean": round(statistics.fmean(each), 4), "worst": round(max(each), 4), "sets": len(each)}
            for name, each in ratios.items()}  # fmt: skip


def _with_engine(seeds: Mapping[str, _Answers]) -> dict[str, _Answers]:
    return {seed: answers for seed, answers in seeds.items() if ENGINE in answers}


def soonest(optimum: Mapping[str, Any]) -> float:
    """Return the proven optimum, or the bound where there is none."""
    return best_known(optimum) if optimum["is_proven"] else float(optimum["bound_seconds"])


def best_known(optimum: Mapping[str, Any]) -> float:
    """Return the soonest end that the solver or we found, with more effort than a replay has."""
    return float(min(optimum["solver_seconds"], optimum["ours_seconds"]))


def _responses(seeds: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
    names = {name for answers in seeds.values() for name in answers} - {TOLD}
    return {
        name: round(
            statistics.fmean(
                each[name]["response"] / each["first come, first served"]["response"]
                for each in seeds.values()
                if name in each
            ),
            3,
        )
        for name in sorted(names)
    }


def bars(proven: Mapping[str, Mapping[str, Any]], p1_ends: Mapping[str, float]) -> dict[str, bool]:
    """Compare with the bars of the design: of known durations where an optimum is proven."""
    known = [row.get(TOLD, row["planned"]) for row in proven.values() if row]
    return {
        "known durations: mean of each kind ≤ 1.02": all(row["mean"] <= 1.02 for row in known),
        "known durations: worst ≤ 1.05": all(row["worst"] <= 1.05 for row in known),
        "P1's 25 end within 1.05 × 17.97 s": p1_ends["planned with P1's table"] <= 1.05 * p1.BEST_SECONDS,
        "P1's 25 end within 1.05 × 17.97 s from the second batch on": all(
            p1_ends[f"learnt from {count} batches"] <= 1.05 * p1.BEST_SECONDS for count in range(1, p1.LEARNED_BATCHES)
        ),
    }


def bars_of_engine(
    exact: Mapping[str, Mapping[str, Any]], at_sigma: Mapping[str, Mapping[str, Any]]
) -> dict[str, bool]:
    """Compare what the engine plans with the bars, and with the plain orders on the same sets.

    Where jobs come later the optimum knows of them beforehand and the engine does not, so those kinds have no bar.
    """
    known = [row[ENGINE] for row in exact.values() if ENGINE in row and TOLD not in row]
    doubtful = [row for row in at_sigma.values() if row]
    means = {name: statistics.fmean(row[name]["mean"] for row in doubtful) for name in PLAIN_ORDERS}
    mean = statistics.fmean(row[ENGINE]["mean"] for row in doubtful)
    return {
        "the engine, known durations, nobody comes later: mean of each kind ≤ 1.02": all(
            row["mean"] <= 1.02 for row in known
        ),
        "the engine, known durations, nobody comes later: worst ≤ 1.05": all(row["worst"] <= 1.05 for row in known),
        "the engine, σ = 0.7: mean of each kind ≤ 1.10": all(row[ENGINE]["mean"] <= 1.10 for row in doubtful),
        "the engine, σ = 0.7: mean of all no later than any plain order's": mean <= min(means.values()),
        "the engine, σ = 0.7: mean of each kind no later than largest memory-time first": all(
            row[ENGINE]["mean"] <= row["largest memory-time first"]["mean"] for row in doubtful
        ),
    }


def print_report(report: Mapping[str, Any]) -> None:
    """Print Markdown."""
    tables = {
        "known, over proven optima only": report["end_over_proven_optimum"],
        "known, over the best that is known": report["end_over_best_known"],
        **report["end_over_optimum_or_bound"],
        **{
            f"{sigma}, only what the engine played": kinds
            for sigma, kinds in report["beside_the_engine_on_its_sets"].items()
        },
    }
    for sigma, kinds in tables.items():
        print(f"\nEnd over the optimum, else a bound (mean, worst), σ = {sigma}\n")
        for kind, row in kinds.items():
            cells = [
                f"{name} {figures['mean']:.3f}, {figures['worst']:.3f} ({figures['sets']})"
                for name, figures in row.items()
            ]
            print(f"| {kind} | {report['sets_with_a_proven_optimum'][kind]} proven | " + " | ".join(cells) + " |")
    print("\nMean response over first come, first served:", json.dumps(report["response_over_first_come"], indent=1))
    print("\nP1:", report["p1_25_jobs_end_seconds"], "\n", report["bars"])


if __name__ == "__main__":
    raise SystemExit(main())
