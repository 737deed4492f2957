"""P2: training jobs that take a whole GPU for a twentieth of it, and how slices put many on one GPU with no change.

By default TensorFlow takes nearly all memory it sees, so a second job cannot start. In a slice it sees the slice. Memory
that grows as needed is the paper's other remedy; it has to be coded into each program.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pgpu.lab import plots, report
from pgpu.lab.bare_trial import run_bare
from pgpu.lab.job_outcome import JobOutcome, Trial
from pgpu.lab.paper_figures import P1_DEVICE_MIB, P2_GROWTH_COST_PERCENT, P2_HELD_MIB, P2_USED_MIB
from pgpu.lab.report import Cell, Report, Table
from pgpu.lab.sliced_trial import SlicedJob, run_sliced
from pgpu.lab.testbed import Testbed
from pgpu.units import GIB, MIB

_COLUMNS = ("question", "P2", "ours")
_TOGETHER = 3
"""Default jobs that start at one moment without pgpu: one takes nearly all, and what TensorFlow's rule leaves of the device
is just enough for a small second one, which P2's machine did not have."""


@dataclass(frozen=True, slots=True)
class P2Plan:
    """What to run."""

    jobs: int = 10
    """Take-all jobs side by side, each in a slice."""

    slice_bytes: int = 2 * GIB
    epochs: int = 5
    batches: int = 60
    """Of all epochs together: P2's 9,375 scaled down."""

    gpu_ms: float = 7.0
    host_ms: float = 86.0
    with_pgpu: bool = True
    """Whether slices are shown too, or only how it is without them."""

    def words(self, *, may_grow: bool = False) -> tuple[str, ...]:
        """Return the workload's words of one training."""
        return (
            *("training", "--epochs", str(self.epochs), "--batches", str(max(1, self.batches // self.epochs))),
            *("--gpu-ms", str(self.gpu_ms), "--host-ms", str(self.host_ms)),
            *(("--grow",) if may_grow else ()),
        )


@dataclass(frozen=True, slots=True)
class _Trials:
    alone: Trial
    growing: Trial
    together: Trial
    """Default jobs that start at one moment, without slices."""

    sliced: Trial | None

    def all(self) -> Sequence[Trial]:
        return [trial for trial in (self.alone, self.growing, self.together, self.sliced) if trial]


def run(stage: Testbed, plan: P2Plan, directory: Path) -> Report:
    """Run all trials, write tables, samples and figures, and report.

    Raises:
        NodeError: No figures can be drawn here, or a program does not load.
    """
    plots.require_plotting()
    trials = _run_all(stage, plan)
    table = Table("P2: memory held and memory used", _COLUMNS, tuple(_rows(trials, plan, stage)))
    figures = _draw(trials, directory, report.caption(stage))
    return report.write_report(
        "p2", stage, asdict(plan), trials.all(), directory, table, _findings(trials, plan), figures
    )


def _run_all(stage: Testbed, plan: P2Plan) -> _Trials:
    stage.tell("one job alone, with TensorFlow's default")
    alone = run_bare(stage, [("p2-default", plan.words())])
    stage.tell("one job alone, with memory growth")
    growing = run_bare(stage, [("p2-growth", plan.words(may_grow=True))])
    stage.tell(f"{_TOGETHER} default jobs without pgpu")
    together = run_bare(stage, [(f"p2-bare-{number}", plan.words()) for number in range(1, _TOGETHER + 1)])
    if not plan.with_pgpu:
        return _Trials(alone, growing, together, None)
    stage.tell(f"{plan.jobs} default jobs, each in a slice")
    jobs = [SlicedJob(f"p2-slice-{number}", plan.words(), plan.slice_bytes) for number in range(1, plan.jobs + 1)]
    return _Trials(alone, growing, together, run_sliced(stage, jobs))


def _held_bytes(job: JobOutcome) -> int:
    return int(job.result["held_bytes"]) if job.result else 0


def _used_bytes(job: JobOutcome) -> int:
    return int(job.result["used_bytes"]) if job.result else 0


def _growth_cost_percent(trials: _Trials) -> float:
    default_seconds = trials.alone.jobs[0].seconds
    return 100 * abs(trials.growing.jobs[0].seconds - default_seconds) / default_seconds


def _rows(trials: _Trials, plan: P2Plan, stage: Testbed) -> Iterator[tuple[Cell, ...]]:
    held_bytes = _held_bytes(trials.alone.jobs[0])
    share = 100 * held_bytes / stage.device_memory_bytes
    yield (
        "one default job holds",
        f"{P2_HELD_MIB:,} of {P1_DEVICE_MIB:,} MiB (94 %)",
        f"{held_bytes // MIB:,} of {stage.device_memory_bytes // MIB:,} MiB ({share:.0f} %)",
    )
    yield "and uses", f"{P2_USED_MIB:,} MiB", f"{_used_bytes(trials.alone.jobs[0]) // MIB:,} MiB"
    ran = _TOGETHER - trials.together.failed
    yield f"of {_TOGETHER} default jobs at once without pgpu run", "1", str(ran)
    yield (
        "time with growth differs by",
        f"{P2_GROWTH_COST_PERCENT} %",
        f"{_growth_cost_percent(trials):.1f} %",
    )
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
    yield plots.bars([("held", held), ("used", used)], labels, directory / "p2-memory.png", title, "MiB")
    seconds = [[job.seconds for job in shown]]
    title = f"Time in both modes\n{note}"
    yield plots.bars([("seconds", seconds[0])], labels, directory / "p2-time.png", title, "seconds")
    if trials.sliced is not None:
        yield plots.memory_of_device([trials.sliced], directory / "p2-device.png", note)
