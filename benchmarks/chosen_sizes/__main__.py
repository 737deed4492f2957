"""Jobs of sizes that pgpu chooses, in simulated time (`python -m benchmarks.chosen_sizes [--timm FILE.csv]`).

Sixteen families of jobs (`families`; fifteen without the table of real models) come alone, in bursts on one and on eight
GPUs, and mixed on eight. Each line is played with the seeds of the results, on which nothing was chosen: jobs of `submit`
without and with parking, then jobs of `run`, which are never started again. Writes one JSON file into benchmarks/results and
prints it; exits 1 where a bar is missed. The figures of pgpu 0.1 beside them are from `results/chosen-sizes-before-*.json`.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.chosen_sizes.families import MIXED_SEEDS, SEEDS, TUNING_SEEDS, Arrival, alone, burst, families, mixed
from benchmarks.chosen_sizes.machine import Machine, Rules
from benchmarks.chosen_sizes.today import Today
from benchmarks.demand import masked
from benchmarks.shim_overhead import RESULTS, circumstances

LINES: dict[str, Callable[[], Rules]] = {"before": Today}
SCENES = {"alone": 1, "burst on 1 GPU": 1, "burst on 8 GPUs": 8, "mixed on 8 GPUs": 8}
"""GPUs of each."""


def main() -> int:
    """Play, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timm", type=Path, help="gpumemnet_timm_measured.csv")
    parser.add_argument("--tuning", action="store_true", help="play the seeds on which rules are chosen; writes nothing")
    parser.add_argument("--lines", nargs="+", choices=LINES, default=[*LINES], help="only these")
    parser.add_argument("--scenes", nargs="+", choices=SCENES, default=[*SCENES], help="only these")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    measured = None if arguments.timm is None else masked(arguments.timm)
    seeds = TUNING_SEEDS if arguments.tuning else SEEDS
    names = [*families(measured)]
    plays = [
        (line, scene, name, seed, measured)
        for line in arguments.lines
        for scene in arguments.scenes
        for name in (["all"] if scene.startswith("mixed") else names)
        for seed in (MIXED_SEEDS if scene.startswith("mixed") and not arguments.tuning else seeds)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(play, plays, chunksize=4))
    report = {"date": circumstances()["date"], "seeds": seeds, "families": names, "summary": summary(rows), "rows": rows}
    for row in report["summary"]:
        print(json.dumps(row))
    if not arguments.tuning:
        path = arguments.output / f"chosen-sizes-{report['date']}.json"
        path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return 0


def play(words: tuple[str, str, str, int, Any]) -> dict[str, Any]:
    """Play one scene with one seed."""
    line, scene, name, seed, measured = words
    arrivals = arrivals_of(scene, name, seed, measured)
    outcome = Machine(SCENES[scene], LINES[line]()).play(arrivals)
    return {"line": line, "scene": scene, "family": name, "seed": seed, **asdict(outcome)}


def arrivals_of(scene: str, name: str, seed: int, measured: Any) -> Sequence[Arrival]:
    """Return the jobs of a scene."""
    draws = families(measured)
    if scene.startswith("mixed"):
        return mixed([*draws.values()], seed)
    return (alone if scene == "alone" else burst)(draws[name], seed)


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each line and scene: shares in percent of jobs, means over families and seeds."""
    found = []
    for line, scene in dict.fromkeys((row["line"], row["scene"]) for row in rows):
        own = [row for row in rows if (row["line"], row["scene"]) == (line, scene)]
        jobs = sum(row["jobs"] for row in own)
        found.append(
            {
                "line": line,
                "scene": scene,
                "lost": round(100 * sum(row["lost"] for row in own) / jobs, 2),
                "lost_old": round(100 * sum(row["lost_old"] for row in own) / jobs, 2),
                "failed": round(100 * sum(row["failed"] for row in own) / jobs, 2),
                "parks": round(100 * sum(row["parks"] for row in own) / jobs, 2),
                "thrown": round(100 * fmean(row["thrown"] for row in own), 2),
                "waste": round(100 * fmean(row["waste"] for row in own), 1),
                "end_hours": round(fmean(row["end_seconds"] for row in own) / 3600, 3),
                "most_attempts": max(row["most_attempts"] for row in own),
            }
        )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
