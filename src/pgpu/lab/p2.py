"""P2: training jobs that take a whole GPU for a twentieth of it, and how slices put many on one GPU with no change.

By default TensorFlow allocates nearly all visible memory, so a second job cannot start. In a slice only the slice is visible.
The paper's other remedy is memory growth, which each program has to enable in its code.

P2: Kang and Gil, Korea University and Daegu Catholic University, 2022, on an RTX 3090.
"""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from pgpu.lab import report
from pgpu.lab.outcomes import ExperimentTrial, JobOutcome
from pgpu.lab.p1 import P1_DEVICE_MIB
from pgpu.lab.report import Cell, Report, Table
from pgpu.lab.testbed import Testbed
from pgpu.lab.trials import SlicedJob, run_bare, run_sliced
from pgpu.model import Objective
from pgpu.structs import Struct, to_builtins
from pgpu.units import GIB, MIB

# Memory that one training job allocates by default: 94 % of the GPU. Source: P2.
P2_HELD_MIB = 22_885

# The part of it that is used. Source: P2.
P2_USED_MIB = 1_205

# Difference in run time with memory growth: about 0.5 s of 10 epochs. Source: P2.
P2_GROWTH_COST_PERCENT = 0.6


_COLUMNS = ("question", "P2", "ours")
# Default jobs that start at one moment without pgpu: one takes nearly all, and TensorFlow's rule leaves just enough for
# a small second one, which P2's machine did not have.
_TOGETHER = 3


class P2Plan(Struct, frozen=True):
    jobs: int = 10
    """Take-all jobs side by side, each in a slice."""

    slice_bytes: int = 2 * GIB
    epochs: int = 5
    batches: int = 60
    """Of all epochs together: P2's 9,375 scaled down."""

    gpu_ms: float = 7.0
    host_ms: float = 86.0
    with_pgpu: bool = True
    """Whether trials with pgpu run, too."""

    def words(self, *, may_grow: bool = False) -> tuple[str, ...]:
        """Return the workload of one training, with its arguments."""
        return (
            *("training", "--epochs", str(self.epochs), "--batches", str(max(1, self.batches // self.epochs))),
            *("--gpu-ms", str(self.gpu_ms), "--host-ms", str(self.host_ms)),
            *(("--grow",) if may_grow else ()),
        )


class _Trials(Struct, frozen=True):
    alone: ExperimentTrial
    growing: ExperimentTrial
    together: ExperimentTrial
    """Default jobs that start at one moment, without slices."""

    sliced: ExperimentTrial | None

    def named(self) -> Sequence[tuple[str, ExperimentTrial]]:
        """Return each trial that ran, with its name in the table of times."""
        named = (
            ("one default job", self.alone),
            ("one job with growth", self.growing),
            ("default jobs together", self.together),
            ("default jobs in slices", self.sliced),
        )
        return [(name, trial) for name, trial in named if trial]


def run(bed: Testbed, plan: P2Plan, directory: Path) -> Report:
    """Run all trials and write tables, samples and figures.

    Raises:
        NodeError: matplotlib is missing, or a program does not load.
    """
    report.require_plotting()
    trials = _run_all(bed, plan)
    table = Table("P2: memory held and memory used", _COLUMNS, tuple(_rows(trials, plan, bed)))
    figures = _draw(trials, directory, report.caption(bed))
    ran = [trial for _, trial in trials.named()]
    written = report.write_report("p2", bed, to_builtins(plan), ran, directory, table, _findings(trials, plan), figures)
    return report.with_times(written, trials.named(), directory)


def _run_all(bed: Testbed, plan: P2Plan) -> _Trials:
    bed.progress("one job alone, with TensorFlow's default")
    alone = run_bare(bed, [("p2-default", plan.words())])
    bed.progress("one job alone, with memory growth")
    growing = run_bare(bed, [("p2-growth", plan.words(may_grow=True))])
    bed.progress(f"{_TOGETHER} default jobs without pgpu")
    together = run_bare(bed, [(f"p2-bare-{number}", plan.words()) for number in range(1, _TOGETHER + 1)])
    if not plan.with_pgpu:
        return _Trials(alone, growing, together, None)
    bed.progress(f"{plan.jobs} default jobs, each in a slice")
    jobs = [SlicedJob(f"p2-slice-{number}", plan.words(), plan.slice_bytes) for number in range(1, plan.jobs + 1)]
    return _Trials(alone, growing, together, run_sliced(bed, jobs, objective=Objective.SOONEST))


def _held_bytes(job: JobOutcome) -> int:
    return int(job.result["held_bytes"]) if job.result else 0


def _used_bytes(job: JobOutcome) -> int:
    return int(job.result["used_bytes"]) if job.result else 0


def _rows(trials: _Trials, plan: P2Plan, bed: Testbed) -> Iterator[tuple[Cell, ...]]:
    held_bytes = _held_bytes(trials.alone.jobs[0])
    share = 100 * held_bytes / bed.device_memory_bytes
    yield (
        "one default job holds",
        f"{P2_HELD_MIB:,} of {P1_DEVICE_MIB:,} MiB (94 %)",
        f"{held_bytes // MIB:,} of {bed.device_memory_bytes // MIB:,} MiB ({share:.0f} %)",
    )
    yield "and uses", f"{P2_USED_MIB:,} MiB", f"{_used_bytes(trials.alone.jobs[0]) // MIB:,} MiB"
    ran = _TOGETHER - trials.together.failed
    yield f"of {_TOGETHER} default jobs at once without pgpu run", "1", str(ran)
    default_seconds, growing_seconds = trials.alone.jobs[0].seconds, trials.growing.jobs[0].seconds
    cost_percent = 100 * abs(growing_seconds - default_seconds) / default_seconds
    yield "time with growth differs by", f"{P2_GROWTH_COST_PERCENT} %", f"{cost_percent:.1f} %"
    if trials.sliced is not None:
        sliced = trials.sliced
        shares = [100 * _held_bytes(job) / plan.slice_bytes for job in sliced.jobs]
        yield "default jobs side by side in slices", "called for", f"{sliced.most_side_by_side}, {sliced.failed} failed"
        yield "each holds of its slice", "called for", f"{min(shares):.1f} to {max(shares):.1f} %"


def _findings(trials: _Trials, plan: P2Plan) -> Iterator[str]:
    yield f"without pgpu {trials.together.failed} of {_TOGETHER} default jobs failed"
    if trials.sliced is None:
        return
    seconds = statistics.fmean(trials.sliced.completed_seconds) if trials.sliced.completed_seconds else None
    mean = "none completed" if seconds is None else f"mean {seconds:.1f} s"
    yield (
        f"with pgpu {trials.sliced.failed} of {plan.jobs} default jobs failed, "
        f"{trials.sliced.most_side_by_side} ran side by side ({mean})"
    )
    over = sum(used > trials.sliced.device_memory_bytes for _, used in trials.sliced.device_samples)
    yield f"the device held more than it has in {over} of {len(trials.sliced.device_samples)} samples"


def _draw(trials: _Trials, directory: Path, note: str) -> Iterator[Path]:
    shown = [trials.alone.jobs[0], trials.growing.jobs[0], *(trials.sliced.jobs[:1] if trials.sliced else ())]
    labels = ["default", "growth", "default in a slice"][: len(shown)]
    held = [_held_bytes(job) / MIB for job in shown]
    used = [_used_bytes(job) / MIB for job in shown]
    title = f"Memory held and used\n{note}"
    yield report.draw_bars([("held", held), ("used", used)], labels, directory / "p2-memory.png", title, "MiB")
    seconds = [job.seconds for job in shown]
    title = f"Time in both modes\n{note}"
    yield report.draw_bars([("seconds", seconds)], labels, directory / "p2-time.png", title, "seconds")
    if trials.sliced is not None:
        yield report.draw_memory_of_device([trials.sliced], directory / "p2-device.png", note)
