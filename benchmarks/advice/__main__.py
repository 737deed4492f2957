"""`python -m benchmarks.advice`: P3's eight cells and pairs of drawn kernels, predicted and measured; writes a record.

Predictions are made before a pair runs, from profiles of each program alone. `--short` runs a few pairs as a smoke test. Exits
with 1 where advice does not name P3's winner in each cell, or is not better than always MPS and than always time slices.
"""

import argparse
import datetime as dt
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.advice.p3 import PAPER, measured_cells
from benchmarks.advice.pairs import Pair, geomean, measured_pairs

from pgpu.model import SharingMode

RESULTS = Path(__file__).parent.parent / "results"
MODELS = ("GTX 980 Ti", "V100", "RTX 3090", "A100-40", "H100")
KERNELS, PAIRS = 7, 21
"""On each model: every pair of its kernels."""

SEED = 29
"""Seed of the record. Used while the formulas were developed: seeds 1, 7 and 11; and with the simulated driver's formulas, without
a clock, 23 and 101 to 103."""


def main() -> int:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.advice", description=__doc__)
    parser.add_argument("--short", action="store_true", help="one model of GPU, three kernels")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--no-p3", action="store_true", help="only the drawn pairs")
    parser.add_argument("--output", type=Path, help="where the record goes; by default with today's date")
    arguments = parser.parse_args()
    models, kernels, pairs = (MODELS[:1], 3, 3) if arguments.short else (MODELS, KERNELS, PAIRS)
    began_seconds = time.monotonic()
    record: dict[str, Any] = {"is_simulated": True, "seed": arguments.seed}
    if not arguments.no_p3:
        record["p3"] = _p3()
    found = []
    for pair in measured_pairs(list(models), kernels, pairs, arguments.seed):
        found.append(pair)
        print(_line(pair), file=sys.stderr)
    gpus = dict.fromkeys(pair.gpu for pair in found)
    record["drawn"] = {
        "summary": summary(found),
        "by_gpu": {gpu: summary([pair for pair in found if pair.gpu == gpu]) for gpu in gpus},
        "pairs": [pair.record() for pair in found],
    }
    record["took_seconds"] = round(time.monotonic() - began_seconds)
    print(json.dumps(record["drawn"]["summary"], indent=2))
    for gpu, of_gpu in record["drawn"]["by_gpu"].items():
        print(f"{gpu}: {json.dumps(of_gpu['geometric mean slowdown'])}")
    output = arguments.output or RESULTS / f"advice-{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}.json"
    if arguments.output or not arguments.short:
        output.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    missed = [] if arguments.short else list(_missed(record))
    for each in missed:
        print(f"missed: {each}", file=sys.stderr)
    return 1 if missed else 0


def _missed(record: dict[str, Any]) -> Iterator[str]:
    """Print which bars were missed."""
    slowdown = record["drawn"]["summary"]["geometric mean slowdown"]
    for way in ("always time-slice", "always mps"):
        if slowdown["advice"] >= slowdown[way]:
            yield f"advice is not better than {way}: {slowdown['advice']} against {slowdown[way]}"
    for what in ("measured_as_paper", "advised_as_paper") if "p3" in record else ():
        if record["p3"][what] < len(PAPER):
            yield f"P3: {what} in {record['p3'][what]} of {len(PAPER)} cells"


def _p3() -> dict[str, Any]:
    cells = []
    for beside, size, pair in measured_cells():
        paper = PAPER[beside, size]
        print(f"P3 {beside} {size}: paper {paper}, advised {pair.faster}, measured {pair.best}; {_line(pair)}")
        cells.append({"beside": beside, "size": size, "paper": paper, **pair.record()})
    as_paper = sum(cell["best"] == cell["paper"] for cell in cells)
    advised = sum(cell["faster"] == cell["paper"] for cell in cells)
    print(f"P3: measured as in the paper in {as_paper} of {len(cells)} cells, advised beforehand in {advised}")
    return {"measured_as_paper": as_paper, "advised_as_paper": advised, "cells": cells}


def summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Compare what advice chose with other ways to choose, and predictions with what was measured."""
    ways = {
        "always time-slice": [pair.cost(SharingMode.TIME_SLICE) for pair in pairs],
        "always mps": [pair.cost(SharingMode.MPS) for pair in pairs],
        "advice": [pair.cost(pair.advised) for pair in pairs],
        "advice by speed alone": [pair.cost(pair.faster) for pair in pairs],
        "oracle": [pair.cost(pair.best) for pair in pairs],
    }
    oracle = ways["oracle"]
    errors = {mode: [error for pair in pairs for error in pair.errors_in(mode)] for mode in pairs[0].measured}
    return {
        "pairs": len(pairs),
        "mps was faster in": sum(pair.best is SharingMode.MPS for pair in pairs),
        "advice chose the faster in": sum(pair.advised is pair.best for pair in pairs),
        "by speed alone it did in": sum(pair.faster is pair.best for pair in pairs),
        "geometric mean slowdown": {way: round(geomean(costs), 4) for way, costs in ways.items()},
        "worst against the oracle": {
            way: round(max(cost / best for cost, best in zip(costs, oracle, strict=True)), 3)
            for way, costs in ways.items()
        },
        "error of predicted slowdowns": {
            mode: {
                "mean": round(sum(map(abs, found)) / len(found), 4),
                "worst": round(_worst(found), 4),
                "bias": round(sum(found) / len(found), 4),
            }
            for mode, found in errors.items()
        },
    }


def _worst(errors: Sequence[float]) -> float:
    return max(errors, key=abs)


def _line(pair: Pair) -> str:
    modes = "; ".join(
        f"{mode} "
        + ", ".join(
            f"{told:.2f} was {was:.2f}" for told, was in zip(pair.predicted[mode], pair.measured[mode], strict=True)
        )
        for mode in pair.measured
    )
    return f"{' + '.join(pair.names)}: {modes}; advised {pair.advised}, faster {pair.best}"


if __name__ == "__main__":
    sys.exit(main())
