"""P4: a job that takes more than its share, and its neighbours.

Without pgpu a hog takes the whole device, and later jobs fail. In a slice only the hog's own request is refused, with CUDA
error 2; the hog keeps running, and its neighbours are not affected.

P4: "pGPU", thesis abstract, 2022.
"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgpu.lab import report
from pgpu.lab.outcomes import ExperimentTrial, JobOutcome
from pgpu.lab.p1 import P1_JOB_MIB
from pgpu.lab.report import Cell, Report, Table
from pgpu.lab.testbed import Testbed
from pgpu.lab.trials import SlicedJob, run_bare, run_sliced
from pgpu.model import Objective
from pgpu.structs import Struct, to_builtins
from pgpu.units import GIB, MIB

P4_BEFORE = "a process above its share is put into state STOP until it is set to RUN"
P4_WITH = "only that process's request is refused; the container keeps running"


_COLUMNS = ("question", "P4 before", "P4 with pGPU", "ours without pgpu", "ours with pgpu")
_HOG = "p4-hog"
# A neighbour allocates its libraries' memory this long after its start; by then the hog has taken all it can get.
_LOAD_MS = 1000.0


class P4Plan(Struct, frozen=True):
    neighbours: int = 3
    hog_slice_bytes: int = 4 * GIB
    batches: int = 60
    """Of each neighbour."""

    gpu_ms: float = 7.0
    host_ms: float = 86.0
    with_pgpu: bool = True
    """Whether trials with pgpu run, too."""

    neighbour_bytes: int = P1_JOB_MIB * MIB

    def hog_words(self) -> tuple[str, ...]:
        """Return the workload of the hog, which runs longer than its neighbours."""
        neighbour_seconds = self.batches * (self.host_ms + self.gpu_ms) / 1000 + _LOAD_MS / 1000
        return ("hog", "--seconds", f"{2 * neighbour_seconds:.1f}")

    def neighbour_words(self) -> tuple[str, ...]:
        """Return the workload of a neighbour."""
        return (
            *("inference", "--memory", f"{self.neighbour_bytes // MIB}MiB", "--batches", str(self.batches)),
            *("--gpu-ms", str(self.gpu_ms), "--host-ms", str(self.host_ms), "--load-ms", str(_LOAD_MS)),
        )


class _Trials(Struct, frozen=True):
    bare: ExperimentTrial
    quiet: ExperimentTrial | None
    """The neighbours in their slices, without the hog."""

    sliced: ExperimentTrial | None

    def named(self) -> Sequence[tuple[str, ExperimentTrial]]:
        """Return each trial that ran, with its name in the table of times."""
        named = (
            ("a hog and its neighbours", self.bare),
            ("the neighbours alone", self.quiet),
            ("a hog and its neighbours", self.sliced),
        )
        return [(name, trial) for name, trial in named if trial]


def run(bed: Testbed, plan: P4Plan, directory: Path) -> Report:
    """Run all trials and write tables, samples and figures.

    Raises:
        NodeError: matplotlib is missing, or a program does not load.
    """
    report.require_plotting()
    trials = _run_all(bed, plan)
    table = Table("P4: a hog and its neighbours", _COLUMNS, tuple(_rows(trials)))
    figures = _draw(trials, directory, report.caption(bed))
    ran = [trial for _, trial in trials.named()]
    written = report.write_report("p4", bed, to_builtins(plan), ran, directory, table, _findings(trials), figures)
    return report.with_times(written, trials.named(), directory)


def _run_all(bed: Testbed, plan: P4Plan) -> _Trials:
    names = [f"p4-neighbour-{number}" for number in range(1, plan.neighbours + 1)]
    words = plan.neighbour_words()
    bed.progress("a hog and its neighbours without pgpu")
    bare = run_bare(bed, [(_HOG, plan.hog_words()), *((name, words) for name in names)])
    if not plan.with_pgpu:
        return _Trials(bare, None, None)
    neighbours = [SlicedJob(name, words, plan.neighbour_bytes) for name in names]
    bed.progress("the neighbours alone, in slices")
    quiet = run_sliced(bed, neighbours, objective=Objective.SOONEST)
    bed.progress("a hog and its neighbours, in slices")
    hog = SlicedJob(_HOG, plan.hog_words(), plan.hog_slice_bytes)
    sliced = run_sliced(bed, [hog, *neighbours], objective=Objective.SOONEST)
    return _Trials(bare, quiet, sliced)


def _hog(trial: ExperimentTrial) -> JobOutcome:
    return next(job for job in trial.jobs if job.name == _HOG)


def _neighbours(trial: ExperimentTrial) -> Sequence[JobOutcome]:
    return [job for job in trial.jobs if job.name != _HOG]


def _result_field(job: JobOutcome, name: str) -> Cell:
    return job.result.get(name) if job.result else None


def _rows(trials: _Trials) -> Iterator[tuple[Cell, ...]]:
    ran = [trials.bare, trials.sliced]
    yield ("a job past its share", P4_BEFORE, P4_WITH, *(_fate_of_hog(trial) for trial in ran))
    held = [
        None if trial is None else f"{int(_result_field(_hog(trial), 'held_bytes') or 0) // MIB:,} MiB" for trial in ran
    ]
    yield ("the hog holds", "all it requests", "its share", *held)
    fates = [None if trial is None else _fate_of_neighbours(trial) for trial in ran]
    yield ("its neighbours", "locked out", "unharmed", *fates)
    yield ("their mean time", None, None, *(_mean_text(trial) for trial in ran))
    if trials.quiet is not None:
        yield ("the same without a hog", None, None, None, _mean_text(trials.quiet))


def _fate_of_hog(trial: ExperimentTrial | None) -> str | None:
    if trial is None:
        return None
    hog = _hog(trial)
    return (
        f"CUDA error {_result_field(hog, 'error_number')}, then {_result_field(hog, 'beats_after_refusal')} more uses of the GPU, "
        f"exit code {hog.exit_code}"
    )


def _fate_of_neighbours(trial: ExperimentTrial) -> str:
    neighbours = _neighbours(trial)
    failed = sum(job.is_failed for job in neighbours)
    refused = sum(job.saw_refusal for job in neighbours)
    return f"{failed} of {len(neighbours)} failed, {refused} saw an out of memory"


def _mean_text(trial: ExperimentTrial | None) -> str | None:
    seconds = [job.seconds for job in _neighbours(trial) if not job.is_failed] if trial else []
    return f"{statistics.fmean(seconds):.2f} s" if seconds else None


def _findings(trials: _Trials) -> Iterator[str]:
    yield f"without pgpu: neighbours: {_fate_of_neighbours(trials.bare)}"
    if trials.sliced is not None:
        yield f"with pgpu: hog: {_fate_of_hog(trials.sliced)}; neighbours: {_fate_of_neighbours(trials.sliced)}"


def _draw(trials: _Trials, directory: Path, note: str) -> Iterator[Path]:
    for trial in (trials.bare, trials.sliced):
        shown = [job for job in trial.jobs if job.memory_timeline] if trial else []
        if trial is None or not shown:
            continue
        how = "with" if trial.is_with_pgpu else "without"
        path = directory / f"p4-memory-{how}-pgpu.png"
        yield report.draw_memory_of_jobs(shown, path, f"A hog and its neighbours {how} pgpu\n{note}")
