"""Streams of profiled programs: what the start rule gains by predicted slowdowns (`python -m benchmarks.predicted_starts`).

Programs of `benchmarks.advice` are measured alone and in pairs on a simulated GPU, each also beside itself, under MPS. Then jobs of 60 to 600 s come to GPUs that take two of them at a time, in simulated time: each pair is slowed down as
measured, while the rule knows predictions from profiles (*profiles*), the measured slowdowns themselves (*oracle*), or nothing:
then each job starts where it fits (*filled*).

Prints mean response and end over those of filled GPUs, as geometric means over the seeds, and writes one JSON file.
"""

import argparse
import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.advice.pairs import known_programs, pair_of
from benchmarks.advice.stage import staged
from benchmarks.shim_overhead import RESULTS, circumstances
from benchmarks.start_rule_replay import Arrival, Kind, Replay, arrivals

from pgpu.gpu.catalog import parse_model
from pgpu.model import Objective, SharingMode, SharingWish
from pgpu.scheduling.admission_round import PredictSlowdowns, ProfiledCall, predict_nothing
from pgpu.structs import replace

PROGRAMS, SEED = 7, 29
SECONDS = (60.0, 120.0, 300.0, 600.0)
JOBS, STREAMS = 60, 8
GPUS, LOADS = (1, 2, 4), (0.6, 0.8, 1.0)
"""Loads are the demands that come for each second and GPU."""

GIB = 10
"""Of each job: two fit on a GPU."""

Pairs = Mapping[tuple[str, ...], tuple[float, ...]]


def main() -> int:
    """Measure, replay, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="RTX 3090", help="of the simulated GPU (RTX 3090)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    model, _count = parse_model(arguments.model)
    with staged(model) as stage:
        programs = list(known_programs(stage, PROGRAMS, SEED))
        pairs = [pair_of(stage, each) for each in itertools.combinations_with_replacement(programs, 2)]
    kinds = [
        Kind(known.profile.busy_fraction, GIB, seconds, known.program.name)
        for known, seconds in zip(programs, itertools.cycle(SECONDS), strict=False)
    ]
    record: dict[str, Any] = {**circumstances(), "driver": f"simulated {arguments.model}", "streams": []}
    measured = {pair.names: pair.measured[SharingMode.MPS] for pair in pairs}
    predicted = {pair.names: pair.predicted[SharingMode.MPS] for pair in pairs}
    for gpus, load in itertools.product(GPUS, LOADS):
        found = _ratios(kinds, gpus, load, measured, predicted)
        record["streams"].append({"mode": SharingMode.MPS, "gpus": gpus, "load": load, **found})
        print(f"{gpus} GPUs, load {load}: {json.dumps(found)}")
    record["pairs"] = [pair.record() for pair in pairs]
    path = arguments.output / f"predicted-starts-{record['date']}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return 0


def _ratios(
    kinds: Sequence[Kind], gpus: int, load: float, measured: Pairs, predicted: Pairs
) -> dict[str, tuple[float, float]]:
    """Return mean response and end over those of filled GPUs, by what the rule knows."""
    rules = {"profiles": _predicting(predicted), "oracle": _predicting(measured)}
    logs: dict[str, list[tuple[float, float]]] = {rule: [] for rule in rules}
    for seed in range(STREAMS):
        jobs = [_under_mps(each) for each in arrivals(kinds, JOBS, seed, load=load * gpus)]
        filled = _replay(jobs, measured, gpus, Objective.SOONEST, predict_nothing)
        for rule, predict in rules.items():
            found = _replay(jobs, measured, gpus, Objective.RESPONSE, predict)
            logs[rule].append((math.log(found.mean / filled.mean), math.log(found.end / filled.end)))
    return {
        rule: (round(math.exp(fmean(mean for mean, _ in each)), 3), round(math.exp(fmean(end for _, end in each)), 3))
        for rule, each in logs.items()
    }


def _under_mps(arrival: Arrival) -> Arrival:
    request = replace(arrival.candidate.request, sharing=SharingWish.MPS)
    return replace(arrival, candidate=replace(arrival.candidate, request=request))


def _replay(
    jobs: Sequence[Arrival], measured: Pairs, gpus: int, objective: Objective, predict: PredictSlowdowns
) -> Replay:
    return Replay(jobs, lambda there: _slowdowns(measured, [kind.name for kind in there]), gpus, objective, predict)


def _predicting(pairs: Pairs) -> PredictSlowdowns:
    def predict(_gpu_uuid: str, calls: Sequence[ProfiledCall]) -> Sequence[float]:
        return _slowdowns(pairs, [name for name, _uid in calls])

    return predict


def _slowdowns(pairs: Pairs, names: Sequence[str]) -> list[float]:
    """Return the slowdowns of at most two programs, at least 1; of two equal ones their mean."""
    if len(names) < 2:
        return [1.0] * len(names)
    found = pairs[tuple(names)] if tuple(names) in pairs else pairs[tuple(names[::-1])][::-1]
    if names[0] == names[1]:
        found = (fmean(found),) * 2
    return [max(1.0, each) for each in found]


if __name__ == "__main__":
    sys.exit(main())
