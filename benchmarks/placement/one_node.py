"""Placement on one machine of 2 to 8 GPUs beside what CP-SAT allocates (`python -m benchmarks.placement.one_node`).

Jobs ask for 130 % of the machine, and stay. All figures are memory that pgpu's admission allocates, as a share of what an
optimum does. The optimum obeys the same order of turns, so that only *where* jobs run differs, not *which* jobs start:

- together (the bar): all jobs wait when the machine becomes free, as a queue does on a machine where no job is refused.
  Both decide with the same knowledge, which is the queue. Compared is the longest start of the queue that runs at once.
- one by one: each job comes alone, starts at once or is gone, and is never moved. The optimum knows all of them
  beforehand. No placer without a view of the future reaches it: on two GPUs of 24 with 6 taken and 6 to place, 18 and 18
  to come want them apart, 24 wants them together. Compared when the last of the longest start has come.
- at will: as one by one, and the optimum also refuses jobs that would fit, for the sake of later ones.

The longest start is the longest prefix of the queue that CP-SAT does not prove impossible within its limit, and that GPUs
filled as far as the sizes of its jobs allow could hold; so pgpu's share is never overstated. Where our own search finds places for so many,
CP-SAT is not asked. Its limit is in its own deterministic seconds: a busy machine changes no figure.

Writes one JSON file into benchmarks/results and prints the means and worst of the seeds.
"""

import argparse
import json
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from ortools.sat.python import cp_model

from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import Candidate, GpuRoom, Held, admit
from pgpu.scheduling.free_capacity import fit_together
from pgpu.units import MIB

CARD_MIB = 24_576
HEADROOM_MIB = 737
ROOM_MIB = CARD_MIB - HEADROOM_MIB
CROWDED = 1.3
"""Of the machine's memory, what jobs ask for."""

LIMIT_SECONDS = 1.0
"""Deterministic, for each question to CP-SAT."""

MOST_JOBS_AT_WILL = 40
"""Of more jobs CP-SAT is not asked which are best."""

GOOD_ENOUGH = 0.9995
"""Of the bound: the solver need not look for more."""

EQUAL_TURN_SECONDS = 1e7
"""Duration of a job of one MiB. Those of others are such that all have the same memory-time, so they go as they came."""


def main() -> None:
    """Draw, place, solve, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--gpus", type=int, nargs="*", default=[2, 3, 4, 5, 6, 7, 8])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    output = arguments.output or RESULTS / f"placement-one-node-{circumstances()['date']}.json"
    result: dict[str, Any] = {**circumstances(), "what": __doc__, "seeds": arguments.seeds, "mixes": {}}
    for name, mix in MIXES.items():
        for gpus in arguments.gpus:
            figures = [compared(drawn(mix, gpus, seed), gpus) for seed in range(arguments.seeds)]
            result["mixes"].setdefault(name, {})[gpus] = _summary(figures)
            print(name, gpus, result["mixes"][name][gpus], flush=True)
            output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


def _inference(dice: random.Random) -> int:
    return dice.choice((1205, 1805, 2605, 4100))


def _mixed(dice: random.Random) -> int:
    return dice.randint(6, 18) * 1024 if dice.random() < 0.5 else dice.randint(1, 4) * 1024


def _fractions(dice: random.Random) -> int:
    """Shares of a card as openb's pods ask for them, coarsely."""
    share = dice.choices((0.25, 0.33, 0.46, 0.5, 0.6, 0.81, 1.0), (5, 4, 2, 3, 1, 4, 6))[0]
    return int(share * ROOM_MIB)


MIXES: dict[str, Callable[[random.Random], int]] = {
    "inference": _inference,
    "inference and training": _mixed,
    "openb's shares": _fractions,
}


def drawn(mix: Callable[[random.Random], int], gpus: int, seed: int) -> list[int]:
    """Return what jobs ask for, in MiB, until the next would pass 130 %."""
    dice = random.Random(seed)
    asked: list[int] = []
    while True:
        wanted = mix(dice)
        if sum(asked) + wanted > CROWDED * gpus * ROOM_MIB:
            return asked
        asked.append(wanted)


def compared(jobs: Sequence[int], gpus: int) -> dict[str, float]:
    """Return pgpu's allocation as a share of the optimum under each rule."""
    fitting = longest_start(jobs, gpus)
    start_mib = sum(jobs[:fitting])
    one_by_one = placed(jobs, gpus)
    best_mib = most_at_will(jobs, gpus)
    return {
        "together": sum(jobs[: started_together(jobs, gpus)]) / start_mib,
        "one_by_one": one_by_one[fitting - 1] / start_mib,
        "at_will": one_by_one[-1] / best_mib,
        "longest_start_of_the_machine": start_mib / (gpus * ROOM_MIB),
    }


def started_together(jobs: Sequence[int], gpus: int) -> int:
    """Return how many jobs of a queue start in one round before the first that does not."""
    started = {grant.job_id for grant in admit(_rooms([0] * gpus), _queue(jobs), 0.0).grants}
    return next((number for number in range(len(jobs)) if f"job{number}" not in started), len(jobs))


def placed(jobs: Sequence[int], gpus: int) -> list[int]:
    """Return what admission has allocated after each job, where each comes alone, in MiB."""
    granted = [0] * gpus
    held: list[Held] = []
    totals = []
    for candidate in _queue(jobs):
        for grant in admit(_rooms(granted), [candidate], 0.0, held=held).grants:
            held.append(Held(grant.job_id, 0, grant.slices, 0.0))
            granted[_index(grant.slices)] += grant.slices[0].memory_bytes // MIB
        totals.append(sum(granted))
    return totals


def _queue(jobs: Sequence[int]) -> list[Candidate]:
    return [
        Candidate(
            f"job{number}", Request(wanted * MIB), duration_seconds=EQUAL_TURN_SECONDS / wanted * (1 + number / 1e4)
        )
        for number, wanted in enumerate(jobs)
    ]


def _rooms(granted_mib: Sequence[int]) -> list[GpuRoom]:
    return [GpuRoom(_gpu(gpu), HEADROOM_MIB * MIB, 0, each * MIB) for gpu, each in enumerate(granted_mib)]


def _gpu(index: int) -> Gpu:
    return Gpu(f"GPU-{index}", "RTX 3090", index, CARD_MIB * MIB, "", is_simulated=True)


def _index(slices: Sequence[Slice]) -> int:
    return int(slices[0].gpu_uuid.removeprefix("GPU-"))


def longest_start(jobs: Sequence[int], gpus: int) -> int:
    """Return how many jobs, from the first one on, can all be placed, or are not proved impossible to place."""
    count = len(jobs)
    while sum(jobs[:count]) > gpus * _fullest_mib(jobs[:count]):
        count -= 1
    while not _search_places(jobs[:count], gpus) and _proved_impossible(jobs[:count], gpus):
        count -= 1
    return count


def _search_places(jobs: Sequence[int], gpus: int) -> bool:
    wanted = {str(number): each * MIB for number, each in enumerate(jobs)}
    return fit_together(wanted, {str(gpu): ROOM_MIB * MIB for gpu in range(gpus)}) is not None


def _proved_impossible(jobs: Sequence[int], gpus: int) -> bool:
    model, _ = _model(jobs, gpus, must=True)
    return bool(_solver().solve(model) == cp_model.INFEASIBLE)


def most_at_will(jobs: Sequence[int], gpus: int) -> int:
    """Return the most memory that any of the jobs can be allocated, or a bound of it, in MiB.

    The bound is CP-SAT's; of many jobs, as often the fullest filling of a GPU as there are GPUs.
    """
    if len(jobs) > MOST_JOBS_AT_WILL:
        return gpus * _fullest_mib(jobs)
    model, total = _model(jobs, gpus, must=False)
    model.add(total <= gpus * ROOM_MIB)
    model.maximize(total)
    solver = _solver()
    solver.solve(model)
    return int(solver.best_objective_bound)


def _fullest_mib(jobs: Sequence[int]) -> int:
    sums = 1
    for wanted in jobs:
        sums |= sums << wanted
    return (sums & ((2 << ROOM_MIB) - 1)).bit_length() - 1


def _model(jobs: Sequence[int], gpus: int, *, must: bool) -> tuple[cp_model.CpModel, Any]:
    model = cp_model.CpModel()
    on = [[model.new_bool_var(f"{job}@{gpu}") for gpu in range(gpus)] for job in range(len(jobs))]
    for row in on:
        model.add(sum(row) == 1) if must else model.add(sum(row) <= 1)
    for gpu in range(gpus):
        model.add(sum(wanted * row[gpu] for wanted, row in zip(jobs, on, strict=True)) <= ROOM_MIB)
    return model, sum(wanted * sum(row) for wanted, row in zip(jobs, on, strict=True))


def _solver() -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = LIMIT_SECONDS
    solver.parameters.num_workers = 1
    solver.parameters.relative_gap_limit = 1 - GOOD_ENOUGH
    return solver


def _summary(figures: Sequence[dict[str, float]]) -> dict[str, Any]:
    return {
        key: {
            "mean": round(statistics.fmean(each[key] for each in figures), 4),
            "worst": round(min(each[key] for each in figures), 4),
        }
        for key in figures[0]
    }


if __name__ == "__main__":
    main()
