"""P3's question: should two programs share a GPU under MPS or take turns? Its table again, measured here.

A cache-sensitive program (rows of a matrix times a vector, a thread for each row) runs beside another one like it, or beside
one that no cache matters to (particles that all pull each other), as plain processes. The matrix has N rows of a fixed length, not N × N
as P3's: at 40,960 that would take 6.7 GB. So our times grow with N and not with N²; what is compared is who wins. It
refuses to call a difference below one in a hundred a win.
"""

import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pgpu.enforcement.mps.control import PIPE_VARIABLE, MpsControl, find_control
from pgpu.errors import NodeError
from pgpu.lab import plots, report
from pgpu.lab.bare_trial import run_bare
from pgpu.lab.p3.advice_check import Prediction, ask_advice, profile_program
from pgpu.lab.p3.experiment_part import Part
from pgpu.lab.paper_figures import P3_TABLE, P3Cell
from pgpu.lab.report import Cell, Table
from pgpu.lab.testbed import Testbed
from pgpu.units import MIB

Kind = Literal["CS", "CI"]
Winner = Literal["MPS", "turns", "even"]

PROGRAMS: Mapping[Kind, str] = {"CS": "matvec", "CI": "nbody"}
"""P3's cache-sensitive and cache-insensitive program."""

_COLUMNS = (
    *("size", "beside", "P3 MPS s", "P3 turns s", "P3 winner"),
    *("alone ms", "MPS ms", "turns ms", "winner", "turns / MPS"),
    *("advised", "MPS told", "MPS was", "turns told", "turns was"),
)
_CHUNK_SECONDS = 0.03
"""Iterations that are launched at a time take about so long alone: long beside a launch, short beside a run."""

_MOST_AHEAD = 1000
_PROBE_SECONDS = 0.2
_LONGER_SECONDS = 0.7
"""The neighbour goes on for so much longer, so that it is there to the end."""

_EVEN = 0.01
_QUIT_SECONDS = 1
_PROFILE_SECONDS = 1.0
_ROW_BYTES = 4 * 4096
_SPARE_BYTES = 1024 * MIB
"""Of a profiled program's slice: its context and what is not its matrix."""


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """What to run."""

    sizes: tuple[int, ...] = tuple(sorted({cell.size for cell in P3_TABLE}))
    seconds: float = 1.0
    """Of each run."""

    repetitions: int = 3
    """Of each pair in each mode; the median counts."""

    asks_beforehand: bool = False
    """Whether each program is profiled and `pgpu advise` is asked before any pair runs; takes minutes."""


@dataclass(frozen=True, slots=True)
class Alone:
    """A program of one size without a neighbour."""

    kind: Kind
    size: int
    iteration_seconds: float

    @property
    def ahead(self) -> int:
        """Iterations that it launches at a time."""
        return max(1, min(_MOST_AHEAD, round(_CHUNK_SECONDS / self.iteration_seconds)))

    def words(self, seconds: float) -> tuple[str, ...]:
        """Return the workload's words for a run of some time."""
        return (*_words(self.kind, self.size), "--ahead", str(self.ahead), "--seconds", f"{seconds:g}")


@dataclass(frozen=True, slots=True)
class Pair:
    """The cache-sensitive program beside a neighbour; times are of one of its iterations."""

    size: int
    neighbour: Kind
    alone_seconds: float
    mps_seconds: float
    turns_seconds: float
    foretold: Prediction | None = None
    """What `pgpu advise` said beforehand; None where it was not asked."""

    @property
    def mps_slowdown(self) -> float:
        """Its time under MPS by its time alone."""
        return self.mps_seconds / self.alone_seconds

    @property
    def turns_slowdown(self) -> float:
        """Its time in turns by its time alone."""
        return self.turns_seconds / self.alone_seconds

    @property
    def winner(self) -> Winner:
        """Which way was faster."""
        gain = self.turns_seconds / self.mps_seconds
        return "even" if abs(gain - 1) < _EVEN else "MPS" if gain > 1 else "turns"

    @property
    def paper(self) -> P3Cell | None:
        """P3's figures of this pair; None where it has none."""
        found = (cell for cell in P3_TABLE if (cell.size, cell.neighbour) == (self.size, self.neighbour))
        return next(found, None)

    @property
    def agrees(self) -> bool | None:
        """Whether P3 found the same winner; None where it has no such pair."""
        return None if self.paper is None else _paper_winner(self.paper) == self.winner


Couple = tuple[Alone, Alone]
"""The program that is measured, and its neighbour."""


def _paper_winner(cell: P3Cell) -> Winner:
    return "MPS" if cell.mps_wins else "turns"


def _words(kind: Kind, size: int) -> tuple[str, ...]:
    return (PROGRAMS[kind], "--size", str(size))


def run(stage: Testbed, plan: SharingPlan, directory: Path) -> Part:
    """Measure every pair both ways and write a table and a figure.

    Raises:
        NodeError: There is no MPS here, or a program failed.
    """
    processes = replace(stage, runtime="process", python=sys.executable)
    program = _mps_program(processes)
    couples = list(_alone(processes, plan))
    advice = _advice(processes, couples, directory / "p3-profiles") if plan.asks_beforehand else {}
    with _under_mps(processes, program) as under_mps:
        pairs = [_measured(processes, under_mps, plan, pair, advice.get(pair)) for pair in couples]
    table = Table(
        "P3: a cache-sensitive program beside another, with MPS and without", _COLUMNS, tuple(map(_row, pairs))
    )
    return Part(table, tuple(_findings(pairs)), tuple(_files(stage, pairs, table, directory)))


def _mps_program(stage: Testbed) -> Path:
    program = find_control(is_simulated=stage.is_simulated)
    if program is None:
        raise NodeError("there is no MPS on this machine: nvidia-cuda-mps-control is not installed")
    return program


@contextmanager
def _under_mps(stage: Testbed, program: Path) -> Iterator[Testbed]:
    """Start an MPS daemon for this GPU, and yield the stage on which processes are its clients."""
    home = Path(tempfile.mkdtemp(prefix="pgpu-mps-"))
    pipe, log = home / "pipe", home / "log"
    pipe.mkdir()
    log.mkdir()
    control = MpsControl(program, pipe, log, stage.gpu_uuid, stage.simulated_directory)
    try:
        control.start()
        try:
            yield replace(stage, bare_additions={PIPE_VARIABLE: str(pipe)})
        finally:
            control.quit(_QUIT_SECONDS)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _alone(stage: Testbed, plan: SharingPlan) -> Iterator[Couple]:
    """Measure each program of each size alone, and yield it with each neighbour of its size."""
    for size in plan.sizes:
        sensitive, insensitive = (_alone_at(stage, kind, size) for kind in PROGRAMS)
        yield sensitive, sensitive
        yield sensitive, insensitive


def _alone_at(stage: Testbed, kind: Kind, size: int) -> Alone:
    stage.tell(f"{PROGRAMS[kind]} of size {size} alone")
    first = Alone(kind, size, _iteration_seconds(stage, [_words(kind, size)]))
    return replace(first, iteration_seconds=_iteration_seconds(stage, [first.words(_PROBE_SECONDS)]))


def _advice(stage: Testbed, couples: Sequence[Couple], directory: Path) -> Mapping[Couple, Prediction]:
    """Ask how each couple should share the GPU, from a profile of each program alone."""
    directory.mkdir(parents=True, exist_ok=True)
    programs = dict.fromkeys(alone for couple in couples for alone in couple)
    kept = {alone: _profile(stage, alone, directory) for alone in programs}
    return {couple: ask_advice(stage, [kept[alone] for alone in couple]) for couple in couples}


def _profile(stage: Testbed, alone: Alone, directory: Path) -> Path:
    stage.tell(f"{PROGRAMS[alone.kind]} of size {alone.size} is profiled")
    kept = directory / f"{alone.kind}-{alone.size}.json"
    profile_program(stage, alone.words(_PROFILE_SECONDS), _SPARE_BYTES + alone.size * _ROW_BYTES, kept)
    return kept


def _measured(turns: Testbed, under_mps: Testbed, plan: SharingPlan, pair: Couple, told: Prediction | None) -> Pair:
    subject, neighbour = pair
    words = [subject.words(plan.seconds), neighbour.words(plan.seconds + _LONGER_SECONDS)]
    mps_seconds, turns_seconds = (
        statistics.median(_iteration_seconds(stage, words) for _ in range(plan.repetitions))
        for stage in (under_mps, turns)
    )
    found = Pair(subject.size, neighbour.kind, subject.iteration_seconds, mps_seconds, turns_seconds, told)
    turns.tell(f"size {found.size} beside {found.neighbour}: {found.winner}, turns / MPS {_gain(found)}")
    return found


def _iteration_seconds(stage: Testbed, programs: Sequence[tuple[str, ...]]) -> float:
    """Start programs at one moment and return the time of an iteration of the first.

    Raises:
        NodeError: One failed.
    """
    trial = run_bare(stage, [(f"p3-{number}", words) for number, words in enumerate(programs)])
    failed = [job for job in trial.jobs if job.is_failed or job.result is None]
    if failed:
        raise NodeError(f"a program failed: {failed[0].complaint}")
    result = trial.jobs[0].result or {}
    return float(result["compute_seconds"]) / int(result["iterations"])


def _gain(pair: Pair) -> str:
    return f"{pair.turns_seconds / pair.mps_seconds:.2f}"


def _row(pair: Pair) -> tuple[Cell, ...]:
    paper = pair.paper
    return (
        *(pair.size, pair.neighbour),
        *((None, None, None) if paper is None else (paper.mps_seconds, paper.turns_seconds, _paper_winner(paper))),
        *(round(1000 * seconds, 3) for seconds in (pair.alone_seconds, pair.mps_seconds, pair.turns_seconds)),
        *(pair.winner, _gain(pair), *_foretold(pair)),
    )


def _foretold(pair: Pair) -> tuple[Cell, ...]:
    told = pair.foretold
    if told is None:
        return (None,) * 5
    slowdowns = (told.mps_slowdown, pair.mps_slowdown, told.turns_slowdown, pair.turns_slowdown)
    return (told.winner, *(round(each, 2) for each in slowdowns))


def _findings(pairs: Sequence[Pair]) -> Iterator[str]:
    compared = [pair for pair in pairs if pair.agrees is not None]
    if compared:
        same = sum(pair.agrees is True for pair in compared)
        yield f"the same winner as P3 in {same} of {len(compared)} pairs"
    told = [(pair, pair.foretold) for pair in pairs if pair.foretold is not None]
    if told:
        yield from _told(told)


def _told(pairs: Sequence[tuple[Pair, Prediction]]) -> Iterator[str]:
    """Say what the advice was worth; P3's table is looked at only here."""
    here = sum(told.winner == pair.winner for pair, told in pairs)
    papers = [(pair.paper, told) for pair, told in pairs if pair.paper is not None]
    there = sum(told.winner == _paper_winner(paper) for paper, told in papers)
    yield (
        f"`pgpu advise`, beforehand and from profiles of each program alone, named the winner in {here} of {len(pairs)}"
        f" pairs, P3's in {there} of {len(papers)}"
    )
    for way, errors in (
        ("MPS", [abs(told.mps_slowdown / pair.mps_slowdown - 1) for pair, told in pairs]),
        ("turns", [abs(told.turns_slowdown / pair.turns_slowdown - 1) for pair, told in pairs]),
    ):
        yield f"predicted slowdowns, {way}: {statistics.fmean(errors):.1%} off on average, {max(errors):.1%} at worst"


def _files(stage: Testbed, pairs: Sequence[Pair], table: Table, directory: Path) -> Iterator[Path]:
    yield report.write_table(table, directory / "p3-mps-table.csv")
    ways = {
        "alone": [1000 * pair.alone_seconds for pair in pairs],
        "MPS": [1000 * pair.mps_seconds for pair in pairs],
        "turns": [1000 * pair.turns_seconds for pair in pairs],
    }
    labels = [f"{pair.size}\n{pair.neighbour}" for pair in pairs]
    title = f"An iteration of the cache-sensitive program\n{report.caption(stage)}"
    yield plots.bars(list(ways.items()), labels, directory / "p3-mps.png", title, "ms")
