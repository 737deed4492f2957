"""Placement on openb beside other placers (`python -m benchmarks.placement FOLDER-OF-OPENB`).

Every placer sees the same pods in the same order on the same simulated cluster, one at a time. Writes one JSON file into
benchmarks/results after every part, and prints the mean of the seeds.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.placement.cluster import Cluster, Outcome, Placer, percentile, replay
from benchmarks.placement.compiled import replay_others, replay_ours
from benchmarks.placement.openb import Trace, arrivals, departures, read_trace
from benchmarks.placement.others import RULES, Other, typical
from benchmarks.placement.ours import Ours
from benchmarks.shim_overhead import RESULTS, circumstances

OURS = "pgpu"
FIRST_SEED = 42
ARRIVALS = "arrivals"
LOADS = (1.0, 0.9, 1.1)


def main() -> None:
    """Replay, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("openb", type=Path, help="folder of openb's two CSV files")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--placers", nargs="*", default=[OURS, *RULES])
    parser.add_argument("--parts", nargs="*", default=[ARRIVALS, *map(str, LOADS)], help="arrivals, or loads")
    parser.add_argument("--compiled", action="store_true", help="compiled copies: seconds, and no times of decisions")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    trace = read_trace(arguments.openb)
    output = arguments.output or RESULTS / f"placement-openb-{circumstances()['date']}.json"
    result = json.loads(output.read_text("utf-8")) if output.exists() else {"parts": {}}
    for part in arguments.parts:
        for name in arguments.placers:
            seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
            figures = [_played(trace, part, name, seed, is_compiled=arguments.compiled) for seed in seeds]
            result["parts"].setdefault(part, {})[name] = _summary(figures)
            print(part, name, result["parts"][part][name], flush=True)
            output.write_text(json.dumps({**circumstances(), **_setting(trace), **result}, indent=1) + "\n", "utf-8")


def _played(trace: Trace, part: str, name: str, seed: int, *, is_compiled: bool) -> dict[str, float]:
    cluster = Cluster(trace.shuffled(seed))
    stream = arrivals(trace, seed) if part == ARRIVALS else departures(trace, seed, float(part))
    if not is_compiled:
        return _figures(part, replay(cluster, stream, _placer(name, cluster, trace, seed)))
    known = typical(trace)
    if name == OURS:
        return _figures(part, replay_ours(cluster, stream, known))
    return _figures(part, replay_others(cluster, stream, RULES[name], known, seed))


def _placer(name: str, cluster: Cluster, trace: Trace, seed: int) -> Placer:
    return Ours(cluster) if name == OURS else Other(cluster, RULES[name], typical(trace), seed)


def _figures(part: str, outcome: Outcome) -> dict[str, float]:
    percent = outcome.allocated if part == ARRIVALS else outcome.rejected
    if not outcome.seconds:
        return {"percent": 100 * percent}
    return {
        "percent": 100 * percent,
        "decisions_per_second": len(outcome.seconds) / sum(outcome.seconds),
        "p50_ms": 1e3 * percentile(outcome.seconds, 0.5),
        "p99_ms": 1e3 * percentile(outcome.seconds, 0.99),
        "max_ms": 1e3 * max(outcome.seconds),
    }


def _summary(figures: list[dict[str, float]]) -> dict[str, Any]:
    percents = [each["percent"] for each in figures]
    means = {key: round(statistics.fmean(each[key] for each in figures), 3) for key in figures[0]}
    return {**means, "percent_by_seed": [round(percent, 3) for percent in percents]}


def _setting(trace: Trace) -> dict[str, Any]:
    return {
        "what": "arrivals: GPU allocated in % at 130 % of arrivals; a load: GPU demand rejected in %, with departures",
        "nodes": len(trace.gpus),
        "gpus": int(trace.gpus.sum()),
        "first_seed": FIRST_SEED,
    }


if __name__ == "__main__":
    main()
