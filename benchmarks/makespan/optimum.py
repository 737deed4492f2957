"""The soonest end of a set of jobs, or how near to it a constraint solver comes.

OR-tools' CP-SAT looks for the end and for a proof. Its own proofs about memory over time are weak, so it gets a bound
from linear programmes over the sets of jobs that fit on a card together. An end is proven if it equals the bound.
Times in tenths of a second and memory in MiB, which the sets keep to, so nothing is rounded.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from benchmarks.makespan.arrival_bound import least_seconds_with_arrivals
from benchmarks.makespan.sets import CARD_MIB, JobSet
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from pgpu.units import MIB

_TICKS = 10
"""Of a second."""

TICK_SECONDS = 1 / _TICKS


@dataclass(frozen=True, slots=True)
class Optimum:
    """What is known about the soonest end."""

    end_seconds: float
    """Of the best plan that the solver found."""

    bound_seconds: float
    """Nothing ends before."""


def optimum(jobs: JobSet, hint_starts: list[float] | None = None, *, limit_seconds: float = 30.0) -> Optimum:
    """Solve a set.

    Args:
        jobs: Jobs and cards.
        hint_starts: Starts of some plan, by job: where the solver begins to look.
        limit_seconds: How long it may look.
    """
    bound_seconds = max(least_seconds(jobs), least_seconds_with_arrivals(jobs))
    model = _model(jobs, hint_starts, bound_seconds)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_seconds
    solver.parameters.num_workers = 2
    status = solver.solve(model)
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        raise RuntimeError(f"CP-SAT found no plan: {solver.status_name(status)}")
    return Optimum(solver.objective_value / _TICKS, max(bound_seconds, solver.best_objective_bound / _TICKS))


def _model(jobs: JobSet, hint_starts: list[float] | None, bound_seconds: float) -> cp_model.CpModel:
    model = cp_model.CpModel()
    lasts = [round(job.duration_seconds * _TICKS) for job in jobs.jobs]
    releases = [round(job.release_seconds * _TICKS) for job in jobs.jobs]
    horizon = max(releases) + sum(lasts)
    end = model.new_int_var(max(0, int(bound_seconds * _TICKS) - 1), horizon, "end")
    starts = [model.new_int_var(release, horizon, "") for release in releases]
    for start, ticks in zip(starts, lasts, strict=True):
        model.add(start + ticks <= end)
    for start, hint in zip(starts, hint_starts or [], strict=bool(hint_starts)):
        model.add_hint(start, round(hint * _TICKS))
    _fit_on_cards(model, jobs, starts, lasts, end)
    model.minimize(end)
    return model


def _fit_on_cards(model: cp_model.CpModel, jobs: JobSet, starts: list[Any], lasts: list[int], end: Any) -> None:
    memory_mib = [job.memory_bytes // MIB for job in jobs.jobs]
    if jobs.cards == 1:
        whole = [
            model.new_fixed_size_interval_var(start, ticks, "") for start, ticks in zip(starts, lasts, strict=True)
        ]
        model.add_cumulative(whole, memory_mib, CARD_MIB)
        return
    lies_on = [[model.new_bool_var("") for _ in range(jobs.cards)] for _ in jobs.jobs]
    for row in lies_on:
        model.add_exactly_one(row)
    for job, row in enumerate(lies_on[: jobs.cards - 1]):
        for card in range(job + 1, jobs.cards):  # cards are alike: the first job lies on the first, and so on
            model.add(row[card] == 0)
    for card in range(jobs.cards):
        intervals = [
            model.new_optional_fixed_size_interval_var(start, ticks, row[card], "")
            for start, ticks, row in zip(starts, lasts, lies_on, strict=True)
        ]
        model.add_cumulative(intervals, memory_mib, CARD_MIB)
    _tell_how_much_lies_on_a_card(model, jobs, end, lasts, lies_on)


def _tell_how_much_lies_on_a_card(
    model: cp_model.CpModel, jobs: JobSet, end: Any, lasts: list[int], lies_on: list[list[Any]]
) -> None:
    """Add a redundant constraint that the solver derives late: no card gives more memory-time than it has.

    A job that leaves less than a threshold counts as all of the card, one smaller than it as nothing (Martello and Toth).
    """
    memory_mib = [job.memory_bytes // MIB for job in jobs.jobs]
    releases = sorted({round(job.release_seconds * _TICKS) for job in jobs.jobs})
    for threshold in {0, *(mib for mib in memory_mib if 2 * mib <= CARD_MIB)}:
        weights = [_weight(mib, threshold) for mib in memory_mib]
        for release in releases[:: max(1, len(releases) // 8)]:
            late = [j for j, job in enumerate(jobs.jobs) if round(job.release_seconds * _TICKS) >= release]
            for card in range(jobs.cards):
                load = sum(weights[j] * lasts[j] * lies_on[j][card] for j in late)
                model.add(load <= CARD_MIB * (end - release))


def _weight(memory_mib: int, threshold_mib: int) -> int:
    if memory_mib > CARD_MIB - threshold_mib:
        return CARD_MIB
    return memory_mib if memory_mib >= threshold_mib else 0


def least_seconds(jobs: JobSet) -> float:
    """Return a time before which no plan ends: what comes at or after each of some releases still needs its time."""
    releases = sorted({job.release_seconds for job in jobs.jobs})
    bounds = [max(job.release_seconds + job.duration_seconds for job in jobs.jobs)]
    for release_seconds in releases[:: max(1, len(releases) // 8)]:
        late = [job for job in jobs.jobs if job.release_seconds >= release_seconds]
        memory_mib = [job.memory_bytes // MIB for job in late]
        fractional_seconds = _fractional_seconds(memory_mib, [job.duration_seconds for job in late])
        bounds.append(release_seconds + fractional_seconds / jobs.cards)
    return max(bounds)


def _fractional_seconds(memory_mib: list[int], duration_seconds: list[float]) -> float:
    """Return how long one card needs if jobs could be interrupted at any time and run on both sides of it at once.

    Source: Gilmore and Gomory's column generation for cutting stock (1961), with time for pieces.
    """
    columns = [frozenset([job]) for job in range(len(memory_mib))]
    while True:
        seconds, prices = _priced(columns, duration_seconds)
        column, worth = _best_column(memory_mib, prices)
        if worth <= 1 + 1e-6 or column in columns:
            return seconds / max(1.0, worth)
        columns.append(column)


def _priced(columns: list[frozenset[int]], duration_seconds: list[float]) -> tuple[float, list[float]]:
    """Solve the programme over these columns; return its seconds and what a second of each job is worth."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    lasts = [solver.NumVar(0, solver.infinity(), "") for _ in columns]
    rows = [solver.Constraint(seconds, solver.infinity()) for seconds in duration_seconds]
    for variable, column in zip(lasts, columns, strict=True):
        for job in column:
            rows[job].SetCoefficient(variable, 1)
    solver.Minimize(sum(lasts))
    solver.Solve()
    return solver.Objective().Value(), [row.dual_value() for row in rows]


def _best_column(memory_mib: list[int], prices: list[float]) -> tuple[frozenset[int], float]:
    """Return the jobs that fit together and are worth most: a knapsack."""
    best = np.zeros(CARD_MIB + 1)
    takes = np.zeros((len(prices), CARD_MIB + 1), dtype=bool)
    for job, (mib, price) in enumerate(zip(memory_mib, prices, strict=True)):
        with_it = best.copy()
        with_it[mib:] = best[: CARD_MIB + 1 - mib] + max(0.0, price)
        takes[job] = with_it > best + 1e-12
        best = np.where(takes[job], with_it, best)
    left_mib, column = CARD_MIB, []
    for job in reversed(range(len(prices))):
        if takes[job, left_mib]:
            column.append(job)
            left_mib -= memory_mib[job]
    return frozenset(column), float(best[CARD_MIB])
