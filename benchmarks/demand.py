"""How well earlier runs predict the peaks of a model that is new (`python -m benchmarks.demand FILE.csv`).

The file is GPUMemNet's table of measured vision models (github.com/itu-rad/GPUMemNet, CC-BY-4.0); it is not part of this
project. One script trains them all. Each model is left out in turn: eight others have run with all their batches, then it
runs with one batch after the other, in ascending or in random order, and each run is estimated from those before it. Nothing
is fitted on the table. Masked are runs that hit the card's end or died. Writes one JSON file into benchmarks/results and
prints a table; exits 1 where a run from the third on has no estimate, more than 3 % of them are under-estimated, or they are
given over 35 % more than they need on average.
"""

import argparse
import csv
import json
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.advising.memory_demand import estimate
from pgpu.model import Run
from pgpu.units import MIB

CARD_END_MIB = 38_500
LEAST_OF_SMALLER = 0.6
"""A peak below this share of a smaller batch's is of a run that died."""

SEEDS = (907, 1663, 2741)
OTHER_MODELS = 8
FROM_RUN = 3
"""Of a new model: from it on the bars hold."""

UNDER_BAR = 0.03
WASTE_BAR = 0.35

Peaks = dict[float, int]
"""By batch, in MiB."""

# Whether a run had an estimate, and that estimate over its peak.
Case = tuple[bool, float]


def main() -> int:
    """Score, print, write; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="gpumemnet_timm_measured.csv")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    models = masked(arguments.table)
    report: dict[str, Any] = {"date": circumstances()["date"], "models": len(models), "seeds": SEEDS}
    report["runs"] = sum(len(peaks) for peaks in models.values())
    report |= {"bar": {"unknown": 0, "under": UNDER_BAR, "waste": WASTE_BAR, "from run": FROM_RUN}}
    report["scores"] = {order: scores(models, order) for order in ("ascending", "random")}
    for order, rows in report["scores"].items():
        for name, row in rows.items():
            print(f"{order:10} {name:14} " + " ".join(f"{key} {value}" for key, value in row.items()))
    path = arguments.output / f"demand-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    bound = [rows[f"from run {FROM_RUN} on"] for rows in report["scores"].values()]
    holds = all(row["unknown"] == 0 and row["under"] <= UNDER_BAR and row["waste"] <= WASTE_BAR for row in bound)
    return 0 if holds else 1


def masked(path: Path) -> dict[str, Peaks]:
    """Read the table, without runs that hit the card's end or died."""
    rows: dict[str, list[tuple[int, float, float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            expected = max(float(row[f"faketensor_{part}_mib"] or 0) for part in ("fwd", "bwd", "last"))
            rows.setdefault(row["model"], []).append((int(row["batch"]), float(row["max_gpu_mem_mib"]), expected))
    return {model: _alive(sorted(runs)) for model, runs in rows.items()}


def _alive(runs: Sequence[tuple[int, float, float]]) -> Peaks:
    kept: Peaks = {}
    for batch, peak, expected in runs:
        if max(peak, expected) <= CARD_END_MIB and peak >= LEAST_OF_SMALLER * max(kept.values(), default=0):
            kept[float(batch)] = int(peak)
    return kept


def scores(models: dict[str, Peaks], order: str) -> dict[str, dict[str, float]]:
    """Leave out each model in turn, with each seed; return scores by number of the run."""
    by_run: dict[int, list[Case]] = {}
    for seed in SEEDS:
        for number, model in enumerate(models):
            dice = random.Random(seed * 10_000 + number)
            for place, case in enumerate(cases(models, model, order, dice), 1):
                by_run.setdefault(place, []).append(case)
    found = {f"run {place}": score(own) for place, own in by_run.items()}
    late = [case for place, own in by_run.items() if place >= FROM_RUN for case in own]
    return {**found, f"from run {FROM_RUN} on": score(late)}


def cases(models: dict[str, Peaks], model: str, order: str, dice: random.Random) -> Iterator[Case]:
    """Estimate the runs of one model, each from those before it and from eight other models."""
    others = dice.sample([name for name in models if name != model], OTHER_MODELS)
    runs = [run_of(name, batch, peak) for name in others for batch, peak in models[name].items()]
    batches = sorted(models[model])
    if order == "random":
        dice.shuffle(batches)
    for batch in batches:
        run = run_of(model, batch, models[model][batch])
        memory_bytes = estimate(run.signature, runs).memory_bytes
        yield memory_bytes is not None, (memory_bytes or 0) / run.peak_bytes
        runs.append(run)


def run_of(model: str, batch: float, peak_mib: int) -> Run:
    """Return a measured run as the history has it."""
    signature = f"train.py@00000000 --model {model} --batch-size {batch:.0f}"
    return Run(signature, "A100", model, 0, 2 * peak_mib * MIB, peak_mib * MIB, 0, 0, 600.0, 0.0, 0)


def score(own: Sequence[Case]) -> dict[str, float]:
    """Return shares of all runs without estimate, of those with one that is too small, and the mean excess."""
    ratios = [ratio for has_estimate, ratio in own if has_estimate]
    return {
        "runs": len(own),
        "unknown": round(1 - len(ratios) / len(own), 4),
        "under": round(statistics.fmean(ratio < 1 for ratio in ratios), 4),
        "short by 25 %": round(statistics.fmean(ratio < 0.8 for ratio in ratios), 4),
        "waste": round(statistics.fmean(ratio - 1 for ratio in ratios), 4),
    }


if __name__ == "__main__":
    raise SystemExit(main())
