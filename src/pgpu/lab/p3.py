"""P3 in three independent parts: the wall of memory (here), the cost of containers, and MPS against time-slicing.

The parts run one after the other and are joined into one report. If a part cannot run here, a finding gives the reason, and the
others go on.

The wall: hotspot3D in as many containers as a GPU holds, in one more, and in sixty. Without pgpu the jobs that do not fit fail.
What the queue costs is its whole time over the least that works without it: as many as fit, and then the others, by hand.
With its queue they wait; with oversubscription all run together and the host holds the memory that does not fit. Jobs are sized
so that P3's number of them fits, 110 MiB each on its card; on a larger GPU each has more layers. Each job does the same number
of steps in every trial. The jobs that are granted begin at one moment, after all of them have loaded; the makespan counts from
their submission.

Source: P3: Son, Kim and Han, SKKU, 2018, on a GTX 980 Ti.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil

from pgpu.errors import NodeError, PgpuError
from pgpu.gpu.catalog import IMAGINARY
from pgpu.lab import p3_overhead, p3_sharing_modes, report
from pgpu.lab.outcomes import ExperimentTrial, whole_time
from pgpu.lab.p3_overhead import OverheadPlan
from pgpu.lab.p3_sharing_modes import SharingPlan
from pgpu.lab.report import Cell, Report, ReportPart, Table
from pgpu.lab.testbed import Testbed
from pgpu.lab.trials import SlicedJob, run_bare, run_sliced
from pgpu.structs import Struct, field, replace, to_builtins
from pgpu.units import MIB

# Containers of hotspot3D that ran together in 93 % of 6 GB; of more, most failed. Source: P3.
P3_FITTING_CONTAINERS = 52


_COLUMNS = (
    "how",
    "jobs",
    "P3",
    "failed",
    "side by side",
    "makespan s",
    "start-up s",
    "mean s",
    "CPU s",
    "device peak MiB",
)
# Three grids of 512 × 512 floats.
_LAYER_BYTES = 3 * MIB

# The driver maps memory in pages of this size.
_SPARE_BYTES = 2 * MIB

QUEUE, TOGETHER = "pgpu, in the queue", "pgpu, oversubscribed"
BARE = "without pgpu"


class WallPlan(Struct, frozen=True):
    jobs: int = 60
    iterations: int = 40
    host_ms: float = 100.0
    """Host time between two iterations, waited, so that sixty programs meet on the GPU even on few cores."""

    with_pgpu: bool = True


class WallJob(Struct, frozen=True):
    """One of P3's containers on a GPU of some size."""

    memory_bytes: int
    """Context included."""

    layers: int

    def words(self, plan: WallPlan) -> tuple[str, ...]:
        """Return the workload of one job, with its arguments."""
        return (
            *("hotspot3d", "--layers", str(self.layers), "--memory", f"{self.memory_bytes // MIB}MiB"),
            *("--iterations", str(plan.iterations), "--host-ms", str(plan.host_ms)),
        )


# Whole time, and processor time of the whole machine meanwhile: of jobs, container engine, pgpu and the experiment; in seconds.
Cost = tuple[float, float]


class _WallTrial(Struct, frozen=True):
    how: str
    paper: str
    trial: ExperimentTrial
    cpu_seconds: float

    @property
    def cost(self) -> Cost:
        return self.trial.whole_seconds, self.cpu_seconds

    @property
    def side_by_side(self) -> int:
        """Most jobs that ran at one moment, without the failed ones."""
        done = tuple(job for job in self.trial.jobs if not job.is_failed)
        return replace(self.trial, jobs=done).most_side_by_side


def size_job(device_bytes: int, context_bytes: int) -> WallJob:
    """Return the job of which P3's number fits on a device, and one more does not.

    Raises:
        NodeError: A context leaves no room for a grid.
    """
    # Down to whole pages of the driver, or the last job would not fit.
    memory_bytes = device_bytes // P3_FITTING_CONTAINERS // (2 * MIB) * 2 * MIB
    layers = (memory_bytes - context_bytes - _SPARE_BYTES) // _LAYER_BYTES
    if layers < 1 or memory_bytes * (P3_FITTING_CONTAINERS + 1) <= device_bytes:
        raise NodeError(
            f"{P3_FITTING_CONTAINERS} jobs with a context of {context_bytes // MIB} MiB each do not fit on this GPU"
        )
    return WallJob(memory_bytes, layers)


def run_wall(bed: Testbed, plan: WallPlan, directory: Path) -> ReportPart:
    """Run every trial and write tables, samples and a figure.

    Raises:
        NodeError: A program does not load, or this GPU is too small.
    """
    bed.progress("one hotspot3D alone, to see what a context takes")
    probe = run_bare(bed, [("p3-probe", ("hotspot3d", "--layers", "1", "--iterations", "1"))]).jobs[0]
    if probe.result is None:
        raise NodeError(f"hotspot3D does not run: {probe.complaint}")
    job = size_job(bed.device_memory_bytes, int(probe.result["context_bytes"]))
    trials, findings = [], []
    for each in _trials(bed, plan, job):
        if isinstance(each, str):
            findings.append(each)
            continue
        trials.append(each)
        bed.progress(_sentence(each))
    table = Table(f"P3: hotspot3D of {job.memory_bytes // MIB} MiB each", _COLUMNS, tuple(map(_table_row, trials)))
    findings_of_trials = (
        *map(_sentence, trials),
        *_cost_findings(trials),
        *findings,
        *imaginary_findings(bed.device_name),
    )
    return ReportPart(table, findings_of_trials, tuple(_files(bed, trials, table, directory)))


def imaginary_findings(device_name: str) -> Sequence[str]:
    """Return a finding if no such card exists."""
    if not device_name.endswith(IMAGINARY):
        return ()
    card = device_name.removesuffix(IMAGINARY)
    return (f"this card does not exist: a real {card} cannot move memory while kernels run, so it refuses {TOGETHER}",)


def _trials(bed: Testbed, plan: WallPlan, job: WallJob) -> Iterator[_WallTrial | str]:
    """Yield each trial, or the reason why one is left out."""
    fitting = min(P3_FITTING_CONTAINERS, plan.jobs)
    for count in dict.fromkeys((fitting, plan.jobs - fitting, min(fitting + 1, plan.jobs), plan.jobs)):
        if count:
            jobs = [(f"p3-{count}-{number}", job.words(plan)) for number in range(1, count + 1)]
            yield _timed(BARE, p3_result(count), lambda: run_bare(bed, jobs))  # noqa: B023 - called at once
    if not plan.with_pgpu:
        return
    yield _timed(QUEUE, "", lambda: _run_sliced(bed, plan, job, oversubscribes=False))
    try:
        yield _timed(TOGETHER, "proposed", lambda: _run_sliced(bed, plan, job, oversubscribes=True))
    except PgpuError as exc:
        yield f"{TOGETHER}: left out: {exc}"


def _timed(how: str, paper: str, run_trial: Callable[[], ExperimentTrial]) -> _WallTrial:
    before_seconds = _busy_seconds()
    trial = run_trial()
    return _WallTrial(how, paper, trial, _busy_seconds() - before_seconds)


def _busy_seconds() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _cost_findings(trials: Sequence[_WallTrial]) -> Sequence[str]:
    """Compare the queue with the jobs that fit, and then the others, without pgpu."""
    queued = next((each for each in trials if each.how == QUEUE), None)
    if queued is None or len(queued.trial.jobs) <= P3_FITTING_CONTAINERS:
        return ()
    counts = (P3_FITTING_CONTAINERS, len(queued.trial.jobs) - P3_FITTING_CONTAINERS)
    batches = [next(each for each in trials if each.how == BARE and len(each.trial.jobs) == count) for count in counts]
    return (cost_sentence(queued.cost, [each.cost for each in batches], counts),)


def cost_sentence(queued: Cost, batches: Sequence[Cost], counts: Sequence[int]) -> str:
    """Return the costs of the queue over those of batches, of `counts` jobs, that ran one after the other."""
    whole_seconds, cpu_seconds = (sum(part) for part in zip(*batches, strict=True))
    return (
        f"the queue takes {queued[0] / whole_seconds:.2f} times as long as {' and then '.join(map(str, counts))} jobs without "
        f"pgpu ({queued[0]:.1f} s, {whole_seconds:.1f} s), and {queued[1] / cpu_seconds:.2f} times the machine's CPU time "
        f"({queued[1]:.1f} s, {cpu_seconds:.1f} s)"
    )


def p3_result(jobs: int) -> str:
    """Return P3's result for this number of containers."""
    return "all run" if jobs <= P3_FITTING_CONTAINERS else "most fail"


def _run_sliced(bed: Testbed, plan: WallPlan, job: WallJob, *, oversubscribes: bool) -> ExperimentTrial:
    """Submit all jobs; the granted ones begin at one moment, as without pgpu."""
    name = "over" if oversubscribes else "queue"
    jobs = [
        SlicedJob(f"p3-{name}-{number}", job.words(plan), job.memory_bytes, oversubscribes)
        for number in range(1, plan.jobs + 1)
    ]
    return run_sliced(bed, jobs, has_start_line=True)


def _table_row(labelled: _WallTrial) -> tuple[Cell, ...]:
    trial = labelled.trial
    seconds = trial.completed_seconds
    return (
        *(labelled.how, len(trial.jobs), labelled.paper, trial.failed, labelled.side_by_side),
        round(trial.whole_seconds, 2),
        report.rounded(trial.start_up_seconds),
        round(sum(seconds) / len(seconds), 2) if seconds else None,
        round(labelled.cpu_seconds, 1),
        trial.device_peak_bytes // MIB,
    )


def _sentence(labelled: _WallTrial) -> str:
    trial = labelled.trial
    return (
        f"{labelled.how}: {trial.failed} of {len(trial.jobs)} failed, {labelled.side_by_side} ran side by side, "
        f"{whole_time(trial)}"
    )


def _files(bed: Testbed, trials: Sequence[_WallTrial], table: Table, directory: Path) -> Iterator[Path]:
    found = [labelled.trial for labelled in trials]
    yield report.write_table(table, directory / "p3-wall-table.csv")
    yield report.write_jobs(found, directory / "p3-wall-jobs.csv")
    yield report.write_device(found, directory / "p3-wall-device.csv")
    drawn = [trial for trial in found if trial.device_samples]
    if drawn:
        yield report.draw_memory_of_device(drawn, directory / "p3-wall-device.png", report.caption(bed))


PartName = Literal["wall", "overhead", "mps"]
PARTS: tuple[PartName, ...] = ("wall", "overhead", "mps")


class P3Plan(Struct, frozen=True):
    parts: tuple[PartName, ...] = PARTS
    wall: WallPlan = field(default_factory=WallPlan)
    overhead: OverheadPlan = field(default_factory=OverheadPlan)
    mps: SharingPlan = field(default_factory=SharingPlan)

    def settings(self) -> dict[str, Any]:
        """Return the settings of the parts that run."""
        return {name: to_builtins(getattr(self, name)) for name in self.parts}


def run(bed: Testbed, plan: P3Plan, directory: Path) -> Report:
    """Run the parts and write their tables and figures.

    Raises:
        NodeError: matplotlib is missing, or no part could run.
    """
    report.require_plotting()
    ways: dict[PartName, Callable[[], ReportPart]] = {
        "wall": lambda: run_wall(bed, plan.wall, directory),
        "overhead": lambda: p3_overhead.run(bed, plan.overhead, directory),
        "mps": lambda: p3_sharing_modes.run(bed, plan.mps, directory),
    }
    done, failures = [], []
    for name in plan.parts:
        try:
            done.append(ways[name]())
        except PgpuError as exc:
            failures.append(f"{name}: left out: {exc}")
            bed.progress(failures[-1])
    if not done:
        raise NodeError("; ".join(failures))
    return Report(
        experiment="p3",
        device=bed.device_name,
        is_simulated=bed.is_simulated,
        runtime=bed.runtime,
        settings=plan.settings(),
        table=done[0].table,
        findings=(*(finding for part in done for finding in part.findings), *failures),
        files=tuple(file for part in done for file in part.files),
        further=tuple(part.table for part in done[1:]),
    )
