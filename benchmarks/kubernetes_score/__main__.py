"""GPUs used with and without scores, and openb asked as the scheduler asks (`python -m benchmarks.kubernetes_score`).

Writes one JSON file into benchmarks/results after every part; parts that it has from before are kept. Exits with 1 where a
bar of openb is missed or scores use more GPUs.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.kubernetes_score import cluster, crowd, extender_load, fleet
from benchmarks.kubernetes_score.least import least
from benchmarks.kubernetes_score.trace import Asking
from benchmarks.placement.cluster import Cluster, percentile, replay
from benchmarks.placement.openb import arrivals, departures, read_trace
from benchmarks.shim_overhead import RESULTS, circumstances

FIRST_SEED = 42
MIXED_SEEDS = tuple(range(10, 20))
"""Others than those on which the constant of the scorer was chosen, 0 to 4."""

LATE = 30
BAR_PERCENT = 95.7
"""Least that is allocated of the mix `default`."""

LEAST_ANSWERS_PER_SECOND, MOST_P99_MS, MOST_MS = 1000, 5.0, 50.0
"""On openb, with every mix. The slowest answers are those that rate the mix anew."""


def main() -> None:
    """Play, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--openb", type=Path, help="folder of openb's CSV files")
    parser.add_argument("--mix", default="default", help="of openb's pods; in gpuspec33 a third name models of GPUs")
    parser.add_argument("--seeds", type=int, default=10, help="of openb")
    parser.add_argument(
        "--binaries", type=Path, help="folder of etcd, kube-apiserver and kube-scheduler: plays there, too"
    )
    parser.add_argument(
        "--parts", nargs="*", default=["modelled", "asking", "openb", "real"], help='also "openb at 1.0": departures'
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    output = arguments.output or RESULTS / f"kubernetes-score-{circumstances()['date']}.json"
    result: dict[str, Any] = json.loads(output.read_text("utf-8")) if output.exists() else {}
    for part in arguments.parts:
        key = f"{part} {arguments.mix}" if part.startswith("openb") and arguments.mix != "default" else part
        for name, figures in _played(part, arguments):
            result.setdefault(key, {})[name] = {**figures, "load_average": round(os.getloadavg()[0], 2)}
            print(key, name, result[key][name], flush=True)
            output.write_text(json.dumps({**circumstances(), **_setting(), **result}, indent=1) + "\n", "utf-8")
    sys.exit(_misses(result))


def _played(part: str, arguments: argparse.Namespace) -> Any:
    if part == "modelled":
        yield from (
            ("uniform", _modelled(fleet.UNIFORM, seed=0)),
            *((f"mixed {s}", _modelled(fleet.mixed(s), s)) for s in MIXED_SEEDS),
        )
    elif part == "asking":
        yield from ((f"{nodes} nodes", extender_load.answers(nodes)) for nodes in (fleet.NODES, 1213))
    elif part == "openb" and arguments.openb is not None:
        yield from ((str(seed), _openb(arguments, seed)) for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds))
    elif part.startswith("openb at ") and arguments.openb is not None:
        load = float(part.removeprefix("openb at "))
        yield from (
            (str(seed), _openb(arguments, seed, load)) for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds)
        )
    elif part == "real" and arguments.binaries is not None:
        for name, sizes in (("uniform", fleet.UNIFORM), ("mixed 10", fleet.mixed(10))):
            for way, is_scored in (("stock", False), ("scored", True)):
                played = cluster.play(sizes, arguments.binaries, is_scored=is_scored)
                yield f"{name}, {way}", {**dataclasses.asdict(played), "least": least(sizes, fleet.GPU_GIB)}


def _modelled(sizes: tuple[int, ...], seed: int) -> dict[str, Any]:
    stock = crowd.play(sizes, seed, is_scored=False)
    scored = crowd.play(sizes, seed, is_scored=True)
    late = crowd.play(sizes, seed, is_scored=True, late=LATE)
    bound, packed = least(sizes, fleet.GPU_GIB)
    return {
        "least_bound": bound,
        "least_packed": packed,
        "stock": stock.gpus_used,
        "scored": scored.gpus_used,
        f"scored_and_told_{LATE}_pods_late": late.gpus_used,
        "refused": stock.refused + scored.refused + late.refused,
        "answers_per_second": round(len(scored.seconds) / sum(scored.seconds)),
    }


def _openb(arguments: argparse.Namespace, seed: int, load: float | None = None) -> dict[str, float]:
    """Return GPU allocated in %, or with departures at a load GPU demand rejected in %."""
    trace = read_trace(arguments.openb, arguments.mix)
    playing = Cluster(trace.shuffled(seed))
    asked = Asking(playing)
    outcome = replay(playing, arrivals(trace, seed) if load is None else departures(trace, seed, load), asked)
    return {
        "percent": round(100 * (outcome.allocated if load is None else outcome.rejected), 4),
        "percent_at_full": round(100 * outcome.allocated_at_full, 4),
        "answers_per_second": round(len(asked.seconds) / sum(asked.seconds)),
        "p50_ms": round(1e3 * percentile(asked.seconds, 0.5), 3),
        "p99_ms": round(1e3 * percentile(asked.seconds, 0.99), 3),
        "max_ms": round(1e3 * max(asked.seconds), 1),
    }


def _setting() -> dict[str, Any]:
    return {
        "what": f"GPUs used by {fleet.CLAIMS} claims on {fleet.NODES} nodes of {fleet.GPUS} GPUs of {fleet.GPU_GIB} GiB; "
        "openb: GPU allocated in % at 130 % of arrivals",
        "weight": crowd.WEIGHT,
    }


def _misses(result: dict[str, Any]) -> int:
    missed = [
        f"GPUs used: {name}" for name, each in result.get("modelled", {}).items() if each["scored"] > each["stock"]
    ]
    for part, by_seed in result.items():
        if not part.startswith("openb"):
            continue
        mean = {key: statistics.fmean(each[key] for each in by_seed.values()) for key in next(iter(by_seed.values()))}
        print(part, "mean of", len(by_seed), {key: round(value, 3) for key, value in mean.items()})
        if part == "openb" and mean["percent"] < BAR_PERCENT:
            missed.append(f"{part}: percent")
        if mean["answers_per_second"] < LEAST_ANSWERS_PER_SECOND:
            missed.append(f"{part}: answers_per_second")
        missed += [f"{part}: {key}" for key, most in (("p99_ms", MOST_P99_MS), ("max_ms", MOST_MS)) if mean[key] > most]
    if missed:
        print("missed:", *missed, sep="\n")
    return int(bool(missed))


if __name__ == "__main__":
    main()
