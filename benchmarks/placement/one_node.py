"""Placement on one machine of 2 to 8 GPUs beside what CP-SAT allocates (`python -m benchmarks.placement.one_node`).

Jobs come one at a time until they have asked for 130 % of the machine, and stay. pgpu's admission places each with no
view of the future. OR-tools' CP-SAT knows all of them beforehand, under two rules:

- in turn: the most jobs from the first one on that can all be placed; both are compared when the last of them has come.
  Only placement differs.
- at will: any of all the jobs. It also refuses a job that would fit, to keep memory for those to come, which pgpu does not.

Writes one JSON file into benchmarks/results and prints the allocation as a share of CP-SAT's.
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
from pgpu.scheduling.seats import likely
from pgpu.units import MIB

CARD_MIB = 24_576
HEADROOM_MIB = 737
ROOM_MIB = CARD_MIB - HEADROOM_MIB
CROWDED = 1.3
"""Of the machine's memory, what jobs ask for."""

LOOK_AGAIN = 8
"""Jobs after which the mix is taken anew."""

LIMIT_SECONDS = 5.0
GOOD_ENOUGH = 0.9995
"""Of all memory: the solver need not look for more."""


def main() -> None:
    """Draw, place, solve, write, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--gpus", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    output = arguments.output or RESULTS / f"placement-one-node-{circumstances()['date']}.json"
    result: dict[str, Any] = {**circumstances(), "what": __doc__, "mixes": {}}
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
    """Return pgpu's allocation as a share of CP-SAT's under both rules, and of the machine."""
    allocated = placed_in_turn(jobs, gpus)
    fitting = longest_start(jobs, gpus)
    best_mib, bound_mib = most_at_will(jobs, gpus)
    return {
        "in_turn": allocated[fitting - 1] / sum(jobs[:fitting]),
        "at_will": allocated[-1] / best_mib,
        "of_the_machine": allocated[-1] / (gpus * ROOM_MIB),
        "solver_of_the_machine": best_mib / (gpus * ROOM_MIB),
        "solver_bound": bound_mib / (gpus * ROOM_MIB),
    }


def placed_in_turn(jobs: Sequence[int], gpus: int) -> list[int]:
    """Return what admission has allocated after each job, in MiB."""
    granted = [0] * gpus
    held: list[Held] = []
    seen: list[Candidate] = []
    totals = []
    for number, wanted in enumerate(jobs):
        rooms = [GpuRoom(_gpu(gpu), HEADROOM_MIB * MIB, 0, granted[gpu] * MIB) for gpu in range(gpus)]
        candidate = Candidate(f"job{number}", Request(wanted * MIB))
        seen.append(candidate)
        if number % LOOK_AGAIN == 0:
            outlook = likely(rooms, seen, ())
        for grant in admit(rooms, [candidate], 0.0, held=held, outlook=outlook).grants:
            held.append(Held(grant.job_id, 0, grant.slices, 0.0))
            granted[_index(grant.slices)] += wanted
        totals.append(sum(granted))
    return totals


def _gpu(index: int) -> Gpu:
    return Gpu(f"GPU-{index}", "RTX 3090", index, CARD_MIB * MIB, "", is_simulated=True)


def _index(slices: Sequence[Slice]) -> int:
    return int(slices[0].gpu_uuid.removeprefix("GPU-"))


def longest_start(jobs: Sequence[int], gpus: int) -> int:
    """Return how many jobs, from the first one on, can all be placed."""
    count = len(jobs)
    while sum(jobs[:count]) > gpus * ROOM_MIB:
        count -= 1
    while most_at_will(jobs[:count], gpus, must=True)[0] == 0:
        count -= 1
    return count


def most_at_will(jobs: Sequence[int], gpus: int, *, must: bool = False) -> tuple[int, float]:
    """Return the most memory that any of the jobs can be allocated, and a bound of it, in MiB.

    With `must` all of the jobs have to be placed; 0 where they cannot.
    """
    model = cp_model.CpModel()
    on = [[model.new_bool_var(f"{job}@{gpu}") for gpu in range(gpus)] for job in range(len(jobs))]
    for row in on:
        model.add(sum(row) == 1) if must else model.add(sum(row) <= 1)
    for gpu in range(gpus):
        model.add(sum(wanted * row[gpu] for wanted, row in zip(jobs, on, strict=True)) <= ROOM_MIB)
    total = sum(wanted * sum(row) for wanted, row in zip(jobs, on, strict=True))
    if not must:
        model.add(total <= gpus * ROOM_MIB)
        model.maximize(total)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = LIMIT_SECONDS
    solver.parameters.num_workers = 1
    solver.parameters.relative_gap_limit = 1 - GOOD_ENOUGH
    status = solver.solve(model)
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return 0, 0.0
    return (sum(jobs), 0.0) if must else (round(solver.objective_value), solver.best_objective_bound)


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
