"""Seconds of programs that ran with pgpu and without it in turns, and what they say pgpu adds.

Runs are compared pair by pair: whatever else the machine did met both of a pair. It refuses to know what ran.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pgpu.lab.report import Cell, Table


@dataclass(frozen=True, slots=True)
class TwoWays:
    """Two ways to run a program."""

    plain: str
    ours: str
    """The same with pgpu."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Some figures of one kind, in seconds."""

    mean_seconds: float
    deviation_seconds: float | None
    """Standard deviation of a sample; None for a single figure."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread | None":
        """Return the spread of some figures; None if there are none."""
        if not seconds:
            return None
        return cls(statistics.fmean(seconds), statistics.stdev(seconds) if len(seconds) > 1 else None)

    def cells(self) -> tuple[Cell, Cell]:
        """Return mean and deviation for a table."""
        return round(self.mean_seconds, 3), None if self.deviation_seconds is None else round(self.deviation_seconds, 3)

    def text(self) -> str:
        """Return them for a sentence."""
        deviation = "" if self.deviation_seconds is None else f" ± {self.deviation_seconds:.3f}"
        return f"{self.mean_seconds:.3f}{deviation} s"


@dataclass(slots=True)
class Timings:
    """Seconds of each run, by way and program, in the order of repetitions."""

    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, way: str, program: str, seconds: float) -> None:
        """Note one run."""
        self.seconds.setdefault((way, program), []).append(seconds)

    def of(self, way: str, program: str) -> Sequence[float]:
        """Return each run of a program; nothing where that way was not gone."""
        return self.seconds.get((way, program), ())

    def added(self, pair: TwoWays, program: str) -> Sequence[float]:
        """By how much longer a program took one way than the other, in each repetition."""
        both = zip(self.of(pair.ours, program), self.of(pair.plain, program), strict=False)
        return [ours - plain for ours, plain in both]

    def added_to_all(self, pair: TwoWays, programs: Sequence[str]) -> Sequence[float]:
        """By how much longer any program took one way than the other, in any repetition."""
        return [seconds for program in programs for seconds in self.added(pair, program)]


COLUMNS = (
    *("program", "without pgpu", "without s", "without sd"),
    *("with pgpu", "with s", "with sd", "pgpu adds s", "pgpu adds sd"),
)
"""`sd`: standard deviation over the runs, of what is added over the pairs."""


def table(timings: Timings, pairs: Sequence[TwoWays], programs: Sequence[str], title: str) -> Table:
    """Return a row for each program of each pair, then one for all of them."""
    rows = (row for pair in pairs for row in _rows(timings, pair, programs))
    return Table(title, COLUMNS, tuple(rows))


def _rows(timings: Timings, pair: TwoWays, programs: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    for name, of in (*((program, (program,)) for program in programs), ("all", programs)):
        plain, ours = ([each for program in of for each in timings.of(way, program)] for way in (pair.plain, pair.ours))
        added = Spread.of(timings.added_to_all(pair, of))
        if added is not None:
            yield name, pair.plain, *_cells(plain), pair.ours, *_cells(ours), *added.cells()


def _cells(seconds: Sequence[float]) -> tuple[Cell, Cell]:
    found = Spread.of(seconds)
    return (None, None) if found is None else found.cells()


def sentence(timings: Timings, pair: TwoWays, programs: Sequence[str]) -> str | None:
    """Say what one way adds to the other; None where either was not gone."""
    added = Spread.of(timings.added_to_all(pair, programs))
    if added is None:
        return None
    means = [statistics.fmean(timings.added(pair, program)) for program in programs]
    return f"{pair.ours} adds {added.text()} to {pair.plain} (by program {min(means):.3f} to {max(means):.3f} s)"
