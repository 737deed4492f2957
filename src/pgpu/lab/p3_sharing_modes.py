"""P3's table of two programs that share a GPU under MPS or by time-slicing, measured here.

A cache-sensitive program (rows of a matrix times a vector, a thread for each row) runs beside another one like it, or beside a
cache-insensitive one (particles that attract each other), as plain processes. The matrix has N rows of a fixed length, not N × N
as P3's: at 40,960 that would take 6.7 GB. So our times grow with N and not with N²; the winners are compared. A difference
below 1 % counts as even. Before a pair runs, `pgpu profile --sensitivity` of each program alone and `pgpu advise` can predict it;
these predictions use no measurement of a pair.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pgpu.enforcement.mps import find_control
from pgpu.enforcement.mps.control import PIPE_VARIABLE, MpsControl
from pgpu.errors import NodeError
from pgpu.lab import report
from pgpu.lab.outcomes import last_line
from pgpu.lab.report import Cell, ReportPart, Table
from pgpu.lab.testbed import Testbed
from pgpu.lab.trials import run_bare
from pgpu.model import SharingMode
from pgpu.structs import Struct, replace
from pgpu.units import MIB


class P3Cell(Struct, frozen=True):
    """Run time of the cache-sensitive program beside another one, in seconds."""

    size: int
    """P3's input size."""

    neighbour: Literal["CS", "CI"]
    """Another cache-sensitive program, or a cache-insensitive one."""

    mps_seconds: float
    turns_seconds: float
    """Without MPS: the programs take turns."""

    @property
    def mps_wins(self) -> bool:
        """Whether it ran shorter under MPS."""
        return self.mps_seconds < self.turns_seconds


# Source: P3.
P3_TABLE = (
    P3Cell(5_120, "CS", 0.73984, 1.4952),
    P3Cell(10_240, "CS", 2.72925, 3.24161),
    P3Cell(20_480, "CS", 13.38374, 12.57792),
    P3Cell(40_960, "CS", 223.60555, 61.51608),
    P3Cell(5_120, "CI", 0.70990, 1.49199),
    P3Cell(10_240, "CI", 1.58436, 3.35677),
    P3Cell(20_480, "CI", 6.75526, 12.37545),
    P3Cell(40_960, "CI", 40.67550, 50.70506),
)


Kind = Literal["CS", "CI"]
Winner = Literal["MPS", "turns", "even"]

# P3's cache-sensitive and cache-insensitive program.
PROGRAMS: Mapping[Kind, str] = {"CS": "matvec", "CI": "nbody"}

_COLUMNS = (
    *("size", "beside", "P3 MPS s", "P3 turns s", "P3 winner"),
    *("alone ms", "MPS ms", "turns ms", "winner", "turns / MPS"),
    *("advised", "MPS told", "MPS was", "turns told", "turns was"),
)
_MODE_NAMES: Mapping[SharingMode, str] = {SharingMode.MPS: "MPS", SharingMode.TIME_SLICE: "turns"}
# Time of the iterations that are launched together, alone: long beside a launch, short beside a run.
_CHUNK_SECONDS = 0.03

_MOST_AHEAD = 1000
_PROBE_SECONDS = 0.2
# The neighbour runs this much longer, so that it runs to the end of the measured program.
_LONGER_SECONDS = 0.7

_EVEN = 0.01
_QUIT_SECONDS = 1
_PROFILE_SECONDS = 1.0
_ROW_BYTES = 4 * 4096
# Of a profiled program's slice: its context and memory beside its matrix.
_SPARE_BYTES = 1024 * MIB


class SharingPlan(Struct, frozen=True):
    sizes: tuple[int, ...] = tuple(sorted({cell.size for cell in P3_TABLE}))
    seconds: float = 1.0
    """Of each run."""

    repetitions: int = 3
    """Of each pair in each mode; the median counts."""

    asks_beforehand: bool = False
    """Whether each program is profiled and `pgpu advise` runs before any pair; takes minutes."""


class Alone(Struct, frozen=True):
    """A program of one size without a neighbour."""

    kind: Kind
    size: int
    iteration_seconds: float

    @property
    def ahead(self) -> int:
        """Iterations that are launched together."""
        return max(1, min(_MOST_AHEAD, round(_CHUNK_SECONDS / self.iteration_seconds)))

    def words(self, seconds: float) -> tuple[str, ...]:
        """Return the workload for a run of some time."""
        return (*_words(self.kind, self.size), "--ahead", str(self.ahead), "--seconds", f"{seconds:g}")


class Prediction(Struct, frozen=True):
    """The prediction of `pgpu advise` for a pair."""

    winner: str
    """The faster mode, `MPS` or `turns`."""

    mps_slowdown: float
    """The first program's time in the pair by its time alone, under MPS."""

    turns_slowdown: float


class Pair(Struct, frozen=True):
    """The cache-sensitive program beside a neighbour; times are of one of its iterations."""

    size: int
    neighbour: Kind
    alone_seconds: float
    mps_seconds: float
    turns_seconds: float
    prediction: Prediction | None = None
    """The prediction of `pgpu advise`; None if it did not run."""

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
        """The faster mode."""
        gain = self.turns_seconds / self.mps_seconds
        return "even" if abs(gain - 1) < _EVEN else "MPS" if gain > 1 else "turns"

    @property
    def paper(self) -> P3Cell | None:
        """P3's figures of this pair, or None."""
        found = (cell for cell in P3_TABLE if (cell.size, cell.neighbour) == (self.size, self.neighbour))
        return next(found, None)

    @property
    def agrees(self) -> bool | None:
        """Whether P3 found the same winner; None if it has no such pair."""
        return None if self.paper is None else _paper_winner(self.paper) == self.winner


# The program that is measured, and its neighbour.
Couple = tuple[Alone, Alone]


def _paper_winner(cell: P3Cell) -> Winner:
    return "MPS" if cell.mps_wins else "turns"


def _words(kind: Kind, size: int) -> tuple[str, ...]:
    return (PROGRAMS[kind], "--size", str(size))


def run(bed: Testbed, plan: SharingPlan, directory: Path) -> ReportPart:
    """Measure every pair in both modes and write a table and a figure.

    Raises:
        NodeError: There is no MPS here, or a program failed.
    """
    processes = replace(bed, runtime="process", python=sys.executable)
    program = find_control(is_simulated=processes.is_simulated)
    if program is None:
        raise NodeError("there is no MPS on this machine: nvidia-cuda-mps-control is not installed")
    couples = list(_measure_alone(processes, plan))
    advice = _predict(processes, couples, directory / "p3-profiles") if plan.asks_beforehand else {}
    with _mps_testbed(processes, program) as under_mps:
        pairs = [_measure_pair(processes, under_mps, plan, pair, advice.get(pair)) for pair in couples]
    table = Table(
        "P3: a cache-sensitive program beside another, with MPS and without", _COLUMNS, tuple(map(_table_row, pairs))
    )
    return ReportPart(table, tuple(_findings(pairs)), tuple(_files(bed, pairs, table, directory)))


@contextmanager
def _mps_testbed(bed: Testbed, program: Path) -> Iterator[Testbed]:
    """Start an MPS daemon for this GPU, and yield the testbed whose processes are its clients."""
    home = Path(tempfile.mkdtemp(prefix="pgpu-mps-"))
    pipe, log = home / "pipe", home / "log"
    pipe.mkdir()
    log.mkdir()
    control = MpsControl(program, pipe, log, bed.gpu_uuid, bed.simulated_directory)
    try:
        control.start()
        try:
            yield replace(bed, bare_additions={PIPE_VARIABLE: str(pipe)})
        finally:
            # Before its directories are removed: it writes into them until it has ended.
            control.quit(_QUIT_SECONDS)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _measure_alone(bed: Testbed, plan: SharingPlan) -> Iterator[Couple]:
    """Measure each program of each size alone, and yield it with each neighbour of its size."""
    for size in plan.sizes:
        found = []
        for kind in PROGRAMS:
            bed.progress(f"{PROGRAMS[kind]} of size {size} alone")
            # First one iteration at a time, for the number of iterations in a chunk; then in chunks, as in the pairs.
            first = Alone(kind, size, _iteration_seconds(bed, [_words(kind, size)]))
            found.append(replace(first, iteration_seconds=_iteration_seconds(bed, [first.words(_PROBE_SECONDS)])))
        sensitive, insensitive = found
        yield sensitive, sensitive
        yield sensitive, insensitive


def _predict(bed: Testbed, couples: Sequence[Couple], directory: Path) -> Mapping[Couple, Prediction]:
    """Profile each program alone, and run `pgpu advise` for each couple; the profiles stay in the directory.

    Raises:
        NodeError: A command failed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    profiles: dict[Alone, Path] = {}
    for alone in dict.fromkeys(alone for couple in couples for alone in couple):
        bed.progress(f"{PROGRAMS[alone.kind]} of size {alone.size} is profiled")
        memory_bytes = _SPARE_BYTES + alone.size * _ROW_BYTES
        options = ("--sensitivity", "--runs", "1", "--json", "--memory", f"{memory_bytes // MIB}MiB")
        done = _run_pgpu(bed, ("profile", *options, "--", *bed.workload(alone.words(_PROFILE_SECONDS))))
        if done.returncode != 0:
            raise NodeError(f"{PROGRAMS[alone.kind]} could not be profiled: {last_line(done.stderr)}")
        profiles[alone] = directory / f"{alone.kind}-{alone.size}.json"
        profiles[alone].write_text(done.stdout, "utf-8")
    predictions = {}
    for couple in couples:
        done = _run_pgpu(bed, ("advise", "--json", *(str(profiles[alone]) for alone in couple)))
        if done.returncode != 0:
            raise NodeError(f"pgpu advise failed: {last_line(done.stderr)}")
        answer = json.loads(done.stdout)
        first = answer["jobs"][0]
        winner = _MODE_NAMES[SharingMode(answer["faster_mode"])]
        predictions[couple] = Prediction(winner, float(first["mps_slowdown"]), float(first["time_slice_slowdown"]))
    return predictions


def _measure_pair(
    turns: Testbed, under_mps: Testbed, plan: SharingPlan, pair: Couple, predicted: Prediction | None
) -> Pair:
    subject, neighbour = pair
    words = [subject.words(plan.seconds), neighbour.words(plan.seconds + _LONGER_SECONDS)]
    mps_seconds, turns_seconds = (
        statistics.median(_iteration_seconds(bed, words) for _ in range(plan.repetitions)) for bed in (under_mps, turns)
    )
    found = Pair(subject.size, neighbour.kind, subject.iteration_seconds, mps_seconds, turns_seconds, predicted)
    turns.progress(f"size {found.size} beside {found.neighbour}: {found.winner}, turns / MPS {_gain(found)}")
    return found


def _iteration_seconds(bed: Testbed, programs: Sequence[tuple[str, ...]]) -> float:
    """Start programs at one moment and return the time of an iteration of the first.

    Raises:
        NodeError: One failed.
    """
    trial = run_bare(bed, [(f"p3-{number}", words) for number, words in enumerate(programs)])
    failed = [job for job in trial.jobs if job.is_failed or job.result is None]
    if failed:
        raise NodeError(f"a program failed: {failed[0].complaint}")
    result = trial.jobs[0].result or {}
    return float(result["compute_seconds"]) / int(result["iterations"])


def _gain(pair: Pair) -> str:
    return f"{pair.turns_seconds / pair.mps_seconds:.2f}"


def _table_row(pair: Pair) -> tuple[Cell, ...]:
    paper, predicted = pair.paper, pair.prediction
    predictions: tuple[Cell, ...] = (None,) * 5
    if predicted is not None:
        slowdowns = (predicted.mps_slowdown, pair.mps_slowdown, predicted.turns_slowdown, pair.turns_slowdown)
        predictions = (predicted.winner, *(round(each, 2) for each in slowdowns))
    return (
        *(pair.size, pair.neighbour),
        *((None, None, None) if paper is None else (paper.mps_seconds, paper.turns_seconds, _paper_winner(paper))),
        *(round(1000 * seconds, 3) for seconds in (pair.alone_seconds, pair.mps_seconds, pair.turns_seconds)),
        *(pair.winner, _gain(pair), *predictions),
    )


def _findings(pairs: Sequence[Pair]) -> Iterator[str]:
    compared = [pair for pair in pairs if pair.agrees is not None]
    if compared:
        same = sum(pair.agrees is True for pair in compared)
        yield f"the same winner as P3 in {same} of {len(compared)} pairs"
    predicted = [(pair, pair.prediction) for pair in pairs if pair.prediction is not None]
    if not predicted:
        return
    here = sum(prediction.winner == pair.winner for pair, prediction in predicted)
    papers = [(pair.paper, prediction) for pair, prediction in predicted if pair.paper is not None]
    there = sum(prediction.winner == _paper_winner(paper) for paper, prediction in papers)
    yield (
        f"`pgpu advise`, beforehand and from profiles of each program alone, named the winner in {here} of"
        f" {len(predicted)} pairs, P3's in {there} of {len(papers)}"
    )
    for way, errors in (
        ("MPS", [abs(prediction.mps_slowdown / pair.mps_slowdown - 1) for pair, prediction in predicted]),
        ("turns", [abs(prediction.turns_slowdown / pair.turns_slowdown - 1) for pair, prediction in predicted]),
    ):
        yield f"predicted slowdowns, {way}: {statistics.fmean(errors):.1%} off on average, {max(errors):.1%} at worst"


def _files(bed: Testbed, pairs: Sequence[Pair], table: Table, directory: Path) -> Iterator[Path]:
    yield report.write_table(table, directory / "p3-mps-table.csv")
    ways = {
        "alone": [1000 * pair.alone_seconds for pair in pairs],
        "MPS": [1000 * pair.mps_seconds for pair in pairs],
        "turns": [1000 * pair.turns_seconds for pair in pairs],
    }
    labels = [f"{pair.size}\n{pair.neighbour}" for pair in pairs]
    title = f"An iteration of the cache-sensitive program\n{report.caption(bed)}"
    yield report.draw_bars(list(ways.items()), labels, directory / "p3-mps.png", title, "ms")


def _run_pgpu(bed: Testbed, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        bed.pgpu_command(tuple(words)), env=bed.pgpu_environment(), capture_output=True, text=True, check=False
    )
