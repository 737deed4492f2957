"""How well peaks at one batch size predict the peak at the next (`python -m benchmarks.demand FILE.csv`).

The file is GPUMemNet's table of measured vision models (github.com/itu-rad/GPUMemNet, CC-BY-4.0); it is not part of this
project. Each run is predicted from smaller batches of its own model alone. The one constant is fitted on half of the
models, chosen by a digest of their names, and scored on the other half, then the other way round. Masked are runs that
hit the card's end or died. Writes one JSON file into benchmarks/results and prints a table.
"""

import argparse
import csv
import hashlib
import json
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.advising.memory_demand import GrowthRules, at_number, last_growth, line_bytes
from pgpu.structs import replace

CARD_END_MIB = 38_500
LEAST_OF_SMALLER = 0.6
"""A peak below this share of a smaller batch's is of a run that died."""

ALPHA = 0.0075
"""Share of runs that may lie above the fitted factor: the bar is 1 %, and the other half is another sample."""

UNDER_BAR = 0.01
WASTE_BAR = 0.20

Peaks = dict[float, int]
"""By batch, in MiB."""

Estimator = Callable[[float, Peaks], float | None]
"""From the batch and the peaks of smaller batches to MiB; None where it declines."""


@dataclass(frozen=True, slots=True)
class Score:
    """Result of an estimator."""

    predicted: int
    declined: int
    under: float
    """Share of the predicted runs that were given less than their peak."""

    waste: float
    """Mean of (given - peak) / peak over the predicted runs."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run to predict."""

    batch: float
    peak: int
    smaller: Peaks


def main() -> int:
    """Fit, score, print, write; 1 where the bar is missed on the half that nothing was fitted on."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path, help="gpumemnet_timm_measured.csv")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    models = masked(arguments.table)
    report: dict[str, Any] = {"date": circumstances()["date"], "models": len(models)}
    report["runs"] = sum(len(peaks) for peaks in models.values())
    report["factor of all models"] = round(fitted(models).factor, 4)
    report |= {"bar": {"under": UNDER_BAR, "waste": WASTE_BAR}, "alpha": ALPHA}
    report["scored on half B"] = scored(half(models, 0), half(models, 1))
    report["scored on half A"] = scored(half(models, 1), half(models, 0))
    print_tables(report)
    path = arguments.output / f"demand-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"written to {path}")
    ours = report["scored on half B"]["where ours predicts"]["ours"]
    return 0 if ours["under"] <= UNDER_BAR and ours["waste"] <= WASTE_BAR else 1


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


def half(models: dict[str, Peaks], which: int) -> dict[str, Peaks]:
    """Choose half of the models by name alone."""
    return {name: peaks for name, peaks in models.items() if hashlib.sha256(name.encode()).digest()[-1] & 1 == which}


def cases(models: dict[str, Peaks], least_smaller: int) -> list[Case]:
    """List the runs that are to be predicted: the batch of half the size is known, and so many in all."""
    return [
        Case(batch, peak, smaller)
        for peaks in models.values()
        for batch, peak in peaks.items()
        if len(smaller := {known: at for known, at in peaks.items() if known < batch}) >= least_smaller
        and (least_smaller > 1 or batch / 2 in smaller)
    ]


def fitted(models: dict[str, Peaks]) -> GrowthRules:
    """Find the factor above which so few peaks lie, where the line is believed at all."""
    rules = GrowthRules()
    needed = sorted(_needed_factors(cases(models, 2), rules))
    place = min(len(needed), math.ceil((len(needed) + 1) * (1 - ALPHA)))
    return replace(rules, factor=needed[place - 1])


def _needed_factors(runs: Sequence[Case], rules: GrowthRules) -> Iterator[float]:
    for run in runs:
        before, last = sorted(run.smaller)[-2:]
        if rules.least_growth <= last_growth(last, before, run.smaller) < rules.most_growth:
            is_beyond = run.peak > run.smaller[last] * run.batch / last
            yield math.inf if is_beyond else run.peak / line_bytes(run.batch, last, before, run.smaller)


def scored(fitting: dict[str, Peaks], scoring: dict[str, Peaks]) -> dict[str, Any]:
    """Fit on one half and score on the other, all methods on the same runs."""
    rules = fitted(fitting)
    estimators = {"ours": lambda batch, peaks: at_number(batch, peaks, rules), **baselines()}
    two = cases(scoring, 2)
    believed = [run for run in two if at_number(run.batch, run.smaller, rules) is not None]
    sets = {"where ours predicts": believed, "two smaller batches known": two, "one smaller known": cases(scoring, 1)}
    found: dict[str, Any] = {"factor": round(rules.factor, 4), "coverage of two smaller": len(believed) / len(two)}
    for name, runs in sets.items():
        found[name] = {label: asdict(score(estimator, runs)) for label, estimator in estimators.items()}
        found[name]["ours, else 2.0 x the last"] = asdict(score(_else_twice(estimators["ours"]), runs))
    return found


def baselines() -> dict[str, Estimator]:
    """Return what is to be beaten."""
    return {
        "2.0 x the last": lambda _, peaks: 2.0 * peaks[max(peaks)],
        "1.8 x the last": lambda _, peaks: 1.8 * peaks[max(peaks)],
        "line from two x 1.05": lambda batch, peaks: _line(batch, peaks, 1.05),
        "line from two x 1.2": lambda batch, peaks: _line(batch, peaks, 1.2),
    }


def _line(batch: float, peaks: Peaks, factor: float) -> float | None:
    if len(peaks) < 2:
        return None
    before, last = sorted(peaks)[-2:]
    return factor * line_bytes(batch, last, before, peaks)


def _else_twice(estimator: Estimator) -> Estimator:
    def call(batch: float, peaks: Peaks) -> float:
        found = estimator(batch, peaks)
        return 2.0 * peaks[max(peaks)] if found is None else found

    return call


def score(estimator: Estimator, runs: Sequence[Case]) -> Score:
    """Compare an estimator with what was measured."""
    pairs = [(found, run.peak) for run in runs if (found := estimator(run.batch, run.smaller)) is not None]
    if not pairs:
        return Score(0, len(runs), 0.0, 0.0)
    under = statistics.fmean(given < peak for given, peak in pairs)
    waste = statistics.fmean((given - peak) / peak for given, peak in pairs)
    return Score(len(pairs), len(runs) - len(pairs), round(under, 4), round(waste, 4))


def print_tables(report: dict[str, Any]) -> None:
    """Print one table for each half and set of runs."""
    print(f"{report['models']} models, {report['runs']} runs kept; bar: under {UNDER_BAR:.0%} at waste {WASTE_BAR:.0%}")
    for side in ("scored on half B", "scored on half A"):
        found = report[side]
        print(f"\n{side}, factor {found['factor']}; it predicts {found['coverage of two smaller']:.0%} of two smaller")
        for name in ("where ours predicts", "two smaller batches known", "one smaller known"):
            print(f"  {name}")
            for label, row in found[name].items():
                counts = f"{row['predicted']:5} predicted {row['declined']:5} declined"
                print(f"    {label:26} {counts}   under {row['under']:6.2%}   waste {row['waste']:+7.1%}")


if __name__ == "__main__":
    raise SystemExit(main())
