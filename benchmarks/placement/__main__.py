"""Placement on openb beside other placers (`python -m benchmarks.placement FOLDER-OF-OPENB`).

Every placer sees the same pods in the same order on the same simulated cluster, one at a time. pgpu's is the one that is
shipped, or with `--compiled` a copy that decides alike (`same`); of the others, streams with departures are played by a
compiled loop. Writes one JSON file into benchmarks/results after every stream; seeds that it has from before are kept. Exits
with 1 where a bar of the mix is missed that these seeds and placers can show.
"""

import argparse
import json
import os
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from benchmarks.placement.cluster import Cluster, Outcome, percentile, replay
from benchmarks.placement.compiled import replay_others, replay_ours
from benchmarks.placement.openb import Trace, arrivals, departures, read_trace
from benchmarks.placement.others import RULES, Other, typical
from benchmarks.placement.ours import Ours
from benchmarks.placement.synthetic import MIX, typed_trace
from benchmarks.shim_overhead import RESULTS, circumstances

OURS = "pgpu"
WITHOUT_MODELS = "pgpu without models"
"""It takes the mix from pods as if they accepted every model; not played by default."""

FIRST_SEED = 42
ARRIVALS = "arrivals"
LOADS = (1.0, 0.9, 1.1)
BARS = {"default": {"percent": 95.7}, "gpuspec33": {"percent_at_full": 87.5}}
"""Least that pgpu allocates on arrivals, by mix; at 130 % also as much as FGD."""


def main() -> None:
    """Replay, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("openb", type=Path, nargs="?", help="folder of openb's CSV files")
    parser.add_argument(
        "--mix", default="default", help="of pods; in gpuspec33 a third name models; synthetic needs no folder"
    )
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--placers", nargs="*", default=[OURS, *RULES])
    parser.add_argument("--parts", nargs="*", default=[ARRIVALS, *map(str, LOADS)], help="arrivals, or loads")
    parser.add_argument(
        "--compiled", action="store_true", help="a compiled copy of pgpu's for departures, too: no times"
    )
    parser.add_argument("--processes", type=int, default=1, help="seeds that are played at a time")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    trace = typed_trace(FIRST_SEED) if arguments.mix == MIX else read_trace(arguments.openb, arguments.mix)
    output = arguments.output or RESULTS / f"placement-openb-{arguments.mix}-{circumstances()['date']}.json"
    result = json.loads(output.read_text("utf-8")) if output.exists() else {"parts": {}}
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    tasks = [(part, name, seed) for seed in seeds for part in arguments.parts for name in arguments.placers]
    play = partial(_played, is_compiled=arguments.compiled)
    with ProcessPoolExecutor(arguments.processes) as pool:
        for (part, name, seed), figures in zip(tasks, pool.map(play, repeat(trace), tasks), strict=True):
            by_seed = result["parts"].setdefault(part, {}).setdefault(name, {}).setdefault("by_seed", {})
            by_seed[str(seed)] = {**figures, "load_average": round(os.getloadavg()[0], 2)}
            result["parts"][part][name] = {**_means(list(by_seed.values())), "seeds": len(by_seed), "by_seed": by_seed}
            print(part, name, seed, by_seed[str(seed)], flush=True)
            output.write_text(json.dumps({**circumstances(), **_setting(trace), **result}, indent=1) + "\n", "utf-8")
    sys.exit(_misses(result["parts"].get(ARRIVALS, {}), BARS.get(arguments.mix, {})))


def _played(trace: Trace, task: tuple[str, str, int], *, is_compiled: bool) -> dict[str, float]:
    part, name, seed = task
    cluster = Cluster(trace.shuffled(seed))
    stream = arrivals(trace, seed) if part == ARRIVALS else departures(trace, seed, float(part))
    known = typical(trace)
    if name in {OURS, WITHOUT_MODELS}:
        is_copy, knows_models = is_compiled and part != ARRIVALS, name == OURS
        outcome = (
            replay_ours(cluster, stream, known, knows_models=knows_models)
            if is_copy
            else replay(cluster, stream, Ours(cluster, knows_models=knows_models))
        )
    elif part == ARRIVALS:
        outcome = replay(cluster, stream, Other(cluster, RULES[name], known, seed))
    else:
        outcome = replay_others(cluster, stream, RULES[name], known, seed)
    return _figures(part, outcome)


def _figures(part: str, outcome: Outcome) -> dict[str, float]:
    if part == ARRIVALS:
        shares = {"percent": outcome.allocated, "percent_at_full": outcome.allocated_at_full}
    else:
        shares = {"percent": outcome.rejected}
    percents = {key: round(100 * share, 4) for key, share in shares.items()}
    seconds = outcome.seconds
    if not seconds:
        return percents
    return {
        **percents,
        "decisions_per_second": round(len(seconds) / sum(seconds)),
        "with_being_told_of_changes": round(len(seconds) / (sum(seconds) + outcome.changing_seconds)),
        "p50_ms": round(1e3 * percentile(seconds, 0.5), 3),
        "p99_ms": round(1e3 * percentile(seconds, 0.99), 3),
        "max_ms": round(1e3 * max(seconds), 1),
    }


def _means(figures: list[dict[str, float]]) -> dict[str, float]:
    return {
        key: round(statistics.fmean(each[key] for each in figures if key in each), 3)
        for key in figures[0]
        if key != "load_average"
    }


def _misses(by_placer: dict[str, dict[str, float]], bars: dict[str, float]) -> int:
    ours = by_placer.get(OURS)
    if ours is None:
        return 0
    missed = [key for key, least in bars.items() if ours[key] < least]
    if "FGD" in by_placer and ours["percent"] < by_placer["FGD"]["percent"]:
        missed.append("FGD's percent")
    if missed:
        print("missed:", *missed)
    return int(bool(missed))


def _setting(trace: Trace) -> dict[str, Any]:
    return {
        "what": "arrivals: GPU allocated in % at 130 % of arrivals, and at 100 %; a load: GPU demand rejected in %, "
        "with departures",
        "nodes": len(trace.gpus),
        "gpus": int(trace.gpus.sum()),
    }


if __name__ == "__main__":
    main()
