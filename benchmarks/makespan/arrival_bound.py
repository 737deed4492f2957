"""A time before which no plan of jobs that come one after another can end, by a linear programme.

Time is cut at the arrivals. In each piece every set of jobs that fit on a card together may run for some time, on any card;
jobs may be interrupted and moved, but no job runs twice at the same time. What a plan does is one way to do that, so nothing
ends sooner. Sets of jobs are found as they are needed (Gilmore and Gomory, 1961), for each size of memory the jobs that are
worth most; so it is for jobs of few sizes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.makespan.sets import CARD_MIB, JobSet
from ortools.linear_solver import pywraplp

from pgpu.units import MIB

_ENOUGH = 1e-6
_MOST_SIZES = 12
"""Above, there are too many ways to fill a card."""

Column = tuple[int, frozenset[int]]
"""Piece of time, and the jobs that run together in it."""


def least_seconds_with_arrivals(jobs: JobSet) -> float:
    """Return the bound; 0 where it is not worth its time: all come at once, or sizes are many."""
    sizes = {job.memory_bytes // MIB for job in jobs.jobs}
    if not any(job.release_seconds for job in jobs.jobs) or len(sizes) > _MOST_SIZES:
        return 0.0
    return _Programme(jobs).solved()


@dataclass(slots=True)
class _Programme:
    jobs: JobSet
    _solver: pywraplp.Solver = field(init=False)
    _last: pywraplp.Variable = field(init=False)
    _cuts: list[float] = field(init=False)
    _pieces: list[pywraplp.Constraint] = field(default_factory=list)
    _work: list[pywraplp.Constraint] = field(default_factory=list)
    _once: dict[tuple[int, int], pywraplp.Constraint] = field(default_factory=dict)
    """By piece and job: no longer than the piece; added where it is broken."""

    _columns: dict[Column, pywraplp.Variable] = field(default_factory=dict)
    _fillings: list[Mapping[int, int]] = field(init=False)

    def solved(self) -> float:
        self._begin()
        while True:
            self._solver.Solve()
            if not (self._add_columns() or self._add_broken_rows()):
                return float(self._cuts[-1] + self._last.solution_value() * (1 - _ENOUGH))

    def _begin(self) -> None:
        jobs, infinity = self.jobs.jobs, pywraplp.Solver.infinity()
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._cuts = sorted({0.0, *(job.release_seconds for job in jobs)})
        self._last = self._solver.NumVar(0, infinity, "")
        self._solver.Minimize(self._last)
        for place in range(len(self._cuts)):
            self._pieces.append(self._row_of(place, self.jobs.cards))
        self._work = [self._solver.Constraint(job.duration_seconds, infinity) for job in jobs]
        self._fillings = list(_fillings({job.memory_bytes // MIB for job in jobs}))
        for job in range(len(jobs)):
            self._add((len(self._cuts) - 1, frozenset([job])))

    def _row_of(self, place: int, times: int) -> pywraplp.Constraint:
        """Return a row for what may not be longer than so many times a piece; the last piece's length is what is sought."""
        if place + 1 < len(self._cuts):
            return self._solver.Constraint(
                -self._solver.infinity(), times * (self._cuts[place + 1] - self._cuts[place])
            )
        row = self._solver.Constraint(-self._solver.infinity(), 0)
        row.SetCoefficient(self._last, -times)
        return row

    def _add(self, column: Column) -> None:
        place, together = column
        variable = self._columns[column] = self._solver.NumVar(0, self._solver.infinity(), "")
        self._pieces[place].SetCoefficient(variable, 1)
        for job in together:
            self._work[job].SetCoefficient(variable, 1)
            if (place, job) in self._once:
                self._once[place, job].SetCoefficient(variable, 1)

    def _add_columns(self) -> bool:
        """Add for each piece the set that is worth most, where it is worth more than the piece."""
        costs = [-row.dual_value() for row in self._pieces]
        prices = [row.dual_value() for row in self._work]
        once = {key: row.dual_value() for key, row in self._once.items()}
        best = [self._best_set(place, prices, once) for place in range(len(costs))]
        columns = [
            (place, together)
            for place, ((worth, together), cost) in enumerate(zip(best, costs, strict=True))
            if worth > cost + _ENOUGH and (place, together) not in self._columns
        ]
        for column in columns:
            self._add(column)
        return bool(columns)

    def _best_set(
        self, place: int, prices: Sequence[float], once: Mapping[tuple[int, int], float]
    ) -> tuple[float, frozenset[int]]:
        by_size: dict[int, list[tuple[float, int]]] = {}
        for number, job in enumerate(self.jobs.jobs):
            if job.release_seconds <= self._cuts[place]:
                price = prices[number] + once.get((place, number), 0.0)
                by_size.setdefault(job.memory_bytes // MIB, []).append((price, number))
        for each in by_size.values():
            each.sort(reverse=True)
        best: tuple[float, frozenset[int]] = (0.0, frozenset())
        for filling in self._fillings:
            chosen = [pair for size, count in filling.items() for pair in by_size.get(size, [])[:count] if pair[0] > 0]
            worth = sum(price for price, _ in chosen)
            if worth > best[0]:
                best = (worth, frozenset(number for _, number in chosen))
        return best

    def _add_broken_rows(self) -> bool:
        seconds: dict[tuple[int, int], float] = {}
        for (place, together), variable in self._columns.items():
            for job in together:
                seconds[place, job] = seconds.get((place, job), 0.0) + variable.solution_value()
        ends = [*self._cuts[1:], self._cuts[-1] + self._last.solution_value()]
        broken = [key for key, each in seconds.items() if each > ends[key[0]] - self._cuts[key[0]] + _ENOUGH]
        for place, job in (key for key in broken if key not in self._once):
            row = self._once[place, job] = self._row_of(place, 1)
            for (where, together), variable in self._columns.items():
                if where == place and job in together:
                    row.SetCoefficient(variable, 1)
        return bool(broken)


def _fillings(sizes: set[int]) -> Iterator[Mapping[int, int]]:
    """Yield every way to fill a card with jobs of these sizes to which none of the smallest can be added."""

    def fill(left_mib: int, rest: Sequence[int], chosen: dict[int, int]) -> Iterator[Mapping[int, int]]:
        if not rest:
            if left_mib < min(sizes):
                yield {size: count for size, count in chosen.items() if count}
            return
        for count in range(left_mib // rest[0] + 1):
            yield from fill(left_mib - count * rest[0], rest[1:], {**chosen, rest[0]: count})

    yield from fill(CARD_MIB, sorted(sizes, reverse=True), {})
