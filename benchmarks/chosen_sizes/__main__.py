"""Jobs of sizes that pgpu chooses, in simulated time (`python -m benchmarks.chosen_sizes [--timm FILE.csv]`).

Sixteen families of jobs (`families`; fifteen without the table of real models) come alone, in bursts on one and on eight
GPUs, and mixed on eight. Each line is played with the seeds of the results, on which nothing was chosen: jobs of `submit`
without and with parking, then jobs of `run`, which are never started again. Writes one JSON file into benchmarks/results and
prints it; exits 1 where a bar is missed. Ends are compared with those of the same jobs under the rules of pgpu 0.1, recorded in
`results/chosen-sizes-before-2026-11-28.json` with the same seeds.
"""

import argparse
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.chosen_sizes.families import MIXED_SEEDS, SEEDS, TUNING_SEEDS, Arrival, alone, burst, families, mixed
from benchmarks.chosen_sizes.machine import Machine
from benchmarks.demand import masked
from benchmarks.shim_overhead import RESULTS, circumstances

LINES = {
    "submit": (False, True),
    "submit, parking": (True, True),
    "run": (False, False),
    "run, parking": (True, False),
}
"""Whether the driver can park, and whether jobs are queued again."""

SCENES = {"alone": 1, "burst on 1 GPU": 1, "burst on 8 GPUs": 8, "mixed on 8 GPUs": 8}
"""GPUs of each."""

BEFORE = RESULTS / "chosen-sizes-before-2026-11-28.json"
BARS = {"lost_old": 1.0, "thrown": 0.5, "waste": 25.0, "end": 1.05}
"""Most of each figure of the summary: percent of jobs, of GPU seconds and of the peak, and a ratio of ends."""


def main() -> int:
    """Play, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--timm", type=Path, help="gpumemnet_timm_measured.csv")
    parser.add_argument(
        "--tuning", action="store_true", help="play the seeds on which rules are chosen; writes nothing"
    )
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
    before = [] if arguments.tuning else json.loads(BEFORE.read_text("utf-8"))["rows"]
    report = {"date": circumstances()["date"], "seeds": seeds, "families": names, "bars": BARS}
    report |= {"summary": summary(rows, before), "rows": rows}
    missed = 0
    for row in report["summary"]:
        over = [name for name, most in BARS.items() if row.get(name, 0.0) > most]
        missed += len(over)
        print(json.dumps(row), f"missed: {', '.join(over)}" if over else "")
    if not arguments.tuning:
        path = arguments.output / f"chosen-sizes-{report['date']}.json"
        path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    return 1 if missed else 0


def play(words: tuple[str, str, str, int, Any]) -> dict[str, Any]:
    """Play one scene with one seed."""
    line, scene, name, seed, measured = words
    arrivals = arrivals_of(scene, name, seed, measured)
    outcome = Machine(SCENES[scene], *LINES[line]).play(arrivals)
    return {"line": line, "scene": scene, "family": name, "seed": seed, **asdict(outcome)}


def arrivals_of(scene: str, name: str, seed: int, measured: Any) -> Sequence[Arrival]:
    """Return the jobs of a scene."""
    draws = families(measured)
    if scene.startswith("mixed"):
        return mixed([*draws.values()], seed)
    return (alone if scene == "alone" else burst)(draws[name], seed)


def key_of(row: dict[str, Any]) -> tuple[str, str, int]:
    """Return what a row is compared by."""
    return row["scene"], row["family"], row["seed"]


def summary(rows: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each line and scene: shares in percent of jobs, means over families and seeds."""
    ends = {key_of(row): row["end_seconds"] for row in before}
    found = []
    for line, scene in dict.fromkeys((row["line"], row["scene"]) for row in rows):
        own = [row for row in rows if (row["line"], row["scene"]) == (line, scene)]
        jobs = sum(row["jobs"] for row in own)
        ratios = [row["end_seconds"] / ends[key] for row in own if (key := key_of(row)) in ends]
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
                **({"end": round(fmean(ratios), 3)} if ratios else {}),
            }
        )
    return found


if __name__ == "__main__":
    raise SystemExit(main())
