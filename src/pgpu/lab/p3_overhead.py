"""The time that pgpu adds to a program, like P3's measurement of Docker: from the command to its end, and until it executes.

A bare process, `docker run` and `docker exec` are each paired with the same under pgpu. The two of a pair run one right after the
other, in an order that alternates, and are compared pair by pair, so other load on the machine affects both.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pgpu.errors import NodeError
from pgpu.lab import report
from pgpu.lab.outcomes import Moment, last_line, last_result
from pgpu.lab.report import Cell, ReportPart, Table
from pgpu.lab.testbed import Testbed
from pgpu.model import JobSpec, Request
from pgpu.structs import Struct, field
from pgpu.units import MIB

# Mean time that `docker exec` adds to a program, independent of the program. Source: P3.
P3_OVERHEAD_SECONDS = 0.96


_DEADLINE_SECONDS = 300.0
_POLL_SECONDS = 0.1
_RESTING = ("sleep", "3600")
_DOCKER_ANSWERS_SECONDS = 20.0

# With arguments for a short run: the added time does not depend on its length (P3).
PROGRAMS: Mapping[str, tuple[str, ...]] = {
    "hotspot": ("--rows", "1024", "--columns", "1024"),
    "hotspot3d": (),
    "srad": ("--rows", "1024", "--columns", "1024"),
    "pathfinder": (),
    "nw": ("--length", "256", "--iterations", "5"),
    "kmeans": ("--points", "100000"),
    "bfs": ("--nodes", "100000"),
    "matvec": ("--size", "5120"),
}


class TwoWays(Struct, frozen=True):
    """Two ways to run a program."""

    plain: str
    ours: str
    """The same with pgpu."""


class Spread(Struct, frozen=True):
    """Mean and standard deviation of some times."""

    mean_seconds: float
    deviation_seconds: float | None
    """Standard deviation of a sample; None for a single figure."""

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Spread | None":
        """Return the spread of some times; None if there are none."""
        if not seconds:
            return None
        return cls(statistics.fmean(seconds), statistics.stdev(seconds) if len(seconds) > 1 else None)

    def cells(self) -> tuple[Cell, Cell]:
        """Return mean and deviation for a table."""
        return round(self.mean_seconds, 3), None if self.deviation_seconds is None else round(self.deviation_seconds, 3)

    def text(self) -> str:
        deviation = "" if self.deviation_seconds is None else f" ± {self.deviation_seconds:.3f}"
        return f"{self.mean_seconds:.3f}{deviation} s"


class Timings(Struct):
    """Times of all runs, by way and program, in the order of repetitions."""

    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """From the command to its end."""

    start_up_seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """From the command until the program executes; without runs of programs that do not report it."""

    def add(self, way: str, program: str, seconds: float, start_up_seconds: float | None = None) -> None:
        self.seconds.setdefault((way, program), []).append(seconds)
        if start_up_seconds is not None:
            self.start_up_seconds.setdefault((way, program), []).append(start_up_seconds)

    def mean_start_up(self, way: str, programs: Sequence[str]) -> float | None:
        """Return the mean start-up of programs; None if none was reported."""
        found = [each for program in programs for each in self.start_up_seconds.get((way, program), ())]
        return statistics.fmean(found) if found else None

    def of(self, way: str, program: str) -> Sequence[float]:
        """Return the times of a program; empty if that way did not run."""
        return self.seconds.get((way, program), ())

    def added_seconds(self, pair: TwoWays, program: str) -> Sequence[float]:
        """Return by how much longer a program took one way than the other, in each repetition."""
        both = zip(self.of(pair.ours, program), self.of(pair.plain, program), strict=False)
        return [ours - plain for ours, plain in both]

    def added_seconds_of_all(self, pair: TwoWays, programs: Sequence[str]) -> Sequence[float]:
        """Return the same of several programs together."""
        return [seconds for program in programs for seconds in self.added_seconds(pair, program)]


# `sd`: standard deviation over the runs; of the added time, over the pairs.
COLUMNS = (
    *("program", "without pgpu", "without s", "without sd"),
    *("with pgpu", "with s", "with sd", "pgpu adds s", "pgpu adds sd"),
    *("without start-up s", "with start-up s"),
)


def table(timings: Timings, pairs: Sequence[TwoWays], programs: Sequence[str], title: str) -> Table:
    """Return a row for each program of each pair, then one for all of them."""
    rows: list[tuple[Cell, ...]] = []
    for pair in pairs:
        for name, of in (*((program, (program,)) for program in programs), ("all", programs)):
            plain = [each for program in of for each in timings.of(pair.plain, program)]
            ours = [each for program in of for each in timings.of(pair.ours, program)]
            added = Spread.of(timings.added_seconds_of_all(pair, of))
            if added is not None:
                starts = [report.rounded(timings.mean_start_up(way, of)) for way in (pair.plain, pair.ours)]
                rows.append((name, pair.plain, *_cells(plain), pair.ours, *_cells(ours), *added.cells(), *starts))
    return Table(title, COLUMNS, tuple(rows))


def _cells(seconds: Sequence[float]) -> tuple[Cell, Cell]:
    found = Spread.of(seconds)
    return (None, None) if found is None else found.cells()


def sentence(timings: Timings, pair: TwoWays, programs: Sequence[str]) -> str | None:
    """Return a sentence on the time that one way adds to the other; None if either did not run."""
    added = Spread.of(timings.added_seconds_of_all(pair, programs))
    if added is None:
        return None
    means = [statistics.fmean(timings.added_seconds(pair, program)) for program in programs]
    return f"{pair.ours} adds {added.text()} to {pair.plain} (by program {min(means):.3f} to {max(means):.3f} s)"


_PAIRS = (
    TwoWays("process", "pgpu run"),
    TwoWays("docker run", "pgpu run --image"),
    TwoWays("docker exec", "docker exec in a slice"),
)
# The pair that P3 measured.
_DOCKER = TwoWays("process", "docker exec")


class OverheadPlan(Struct, frozen=True):
    programs: tuple[str, ...] = tuple(PROGRAMS)
    repetitions: int = 5
    """P3 ran each program five times."""

    memory_bytes: int = 1024 * MIB
    """Of each slice."""


# The command and environment of a workload, by the way's name.
Ways = Mapping[str, Callable[[tuple[str, ...]], tuple[tuple[str, ...], Mapping[str, str]]]]


def run(bed: Testbed, plan: OverheadPlan, directory: Path) -> ReportPart:
    """Time every program every way and write tables and a figure.

    Raises:
        NodeError: A program failed.
    """
    timings = Timings()
    with ExitStack() as stack:
        missing = docker_obstacle(bed)
        if missing is not None:
            bed.progress(f"overhead: without containers: {missing}")
        ways = _open_ways(bed, plan, stack, with_docker=missing is None)
        for repetition in range(1, plan.repetitions + 1):
            bed.progress(f"overhead: run {repetition} of {plan.repetitions}, {len(plan.programs)} programs")
            # Every other time ours goes first: what the first of a pair leaves in caches helps both ways equally often.
            _run_all(ways, plan.programs, timings, is_ours_first=repetition % 2 == 0)
    rows = table(timings, _PAIRS, plan.programs, f"P3: what pgpu adds, {plan.repetitions} runs, in pairs")
    left_out = () if missing is None else (f"overhead: containers left out: {missing}",)
    findings = (*_findings(timings, plan), *left_out)
    return ReportPart(rows, findings, tuple(_files(bed, timings, plan, rows, directory)))


def docker_obstacle(bed: Testbed) -> str | None:
    """Return why containers cannot run here; None if they can."""
    try:
        subprocess.run(
            ("docker", "image", "inspect", bed.container_image),
            capture_output=True,
            text=True,
            check=True,
            timeout=_DOCKER_ANSWERS_SECONDS,
        )
    except OSError:
        return "docker is not installed"
    except subprocess.TimeoutExpired:
        return "the Docker engine does not answer"
    except subprocess.CalledProcessError as exc:
        return last_line(exc.stderr) or "docker does not work here"
    return None


def _open_ways(bed: Testbed, plan: OverheadPlan, stack: ExitStack, *, with_docker: bool) -> Ways:
    """Return the ways to run a program here; the stack ends the containers for `docker exec`."""
    slice_words = ("run", "--memory", f"{plan.memory_bytes // MIB}MiB")
    processes: Ways = {
        "process": lambda words: (bed.plain_command(words), bed.bare_environment()),
        "pgpu run": lambda words: (
            bed.pgpu_command((*slice_words, "--", *bed.workload(words))),
            bed.pgpu_environment(),
        ),
    }
    if not with_docker:
        return processes
    boxed = bed.in_containers()
    image_words = (*slice_words, "--image", bed.container_image)
    plain = stack.enter_context(_plain_container(boxed))
    sliced = stack.enter_context(_sliced_container(boxed, plan))
    return {
        **processes,
        "docker run": lambda words: (boxed.plain_command(words), os.environ),
        "pgpu run --image": lambda words: (
            bed.pgpu_command((*image_words, "--", *boxed.workload(words))),
            bed.pgpu_environment(),
        ),
        "docker exec": lambda words: (("docker", "exec", plain, *boxed.workload(words)), os.environ),
        "docker exec in a slice": lambda words: (("docker", "exec", sliced, *boxed.workload(words)), os.environ),
    }


@contextmanager
def _plain_container(bed: Testbed) -> Iterator[str]:
    """Keep an idle container without pgpu."""
    command = bed.container_command(_RESTING, detached=True)
    container = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield container
    finally:
        subprocess.run(("docker", "rm", "--force", container), capture_output=True, check=False)


@contextmanager
def _sliced_container(bed: Testbed, plan: OverheadPlan) -> Iterator[str]:
    """Keep an idle container in a slice."""
    spec = JobSpec(command=_RESTING, runtime="docker", image=bed.container_image, name="p3-resting")
    job = bed.client.submit(spec, Request(plan.memory_bytes), wait_timeout_seconds=None)
    try:
        deadline_seconds = time.monotonic() + _DEADLINE_SECONDS
        listing = ("docker", "ps", "--quiet", "--filter", f"label=io.pgpu.job={job.id}")
        while not (container := subprocess.run(listing, capture_output=True, text=True, check=True).stdout.strip()):
            state = bed.client.job(job.id).job.state
            if state.is_final or time.monotonic() > deadline_seconds:
                raise NodeError(f"a container in a slice did not start: it is {state}")
            time.sleep(_POLL_SECONDS)  # noqa: TID251 - the container engine gives no event that it started one
        yield container
    finally:
        bed.client.stop(job.id, grace_seconds=0)


def _run_all(ways: Ways, programs: Sequence[str], timings: Timings, *, is_ours_first: bool) -> None:
    """Time every program every way once, from the start of its command to the end.

    Raises:
        NodeError: A program failed.
    """
    for program in programs:
        for pair in _PAIRS:
            order = (pair.ours, pair.plain) if is_ours_first else (pair.plain, pair.ours)
            for way in (way for way in order if way in ways):
                command, environment = ways[way]((program, *PROGRAMS[program]))
                submission = Moment.now()
                # Each way has a session, and so a share of a busy processor, like the job that `pgpu run` starts (autogroups).
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, check=False, start_new_session=True
                )
                seconds = time.monotonic() - submission.monotonic_seconds
                if done.returncode != 0:
                    raise NodeError(f"a program failed with {done.returncode}: {last_line(done.stderr)}")
                timings.add(way, program, seconds, start_up_seconds(done.stdout, submission))


def start_up_seconds(standard_output: str, submission: Moment) -> float | None:
    """Return the seconds from a submission until a workload executed, by its output; None if that does not contain it."""
    executed_at_seconds = (last_result(standard_output) or {}).get("executed_at_seconds")
    return None if executed_at_seconds is None else submission.seconds_until(executed_at_seconds)


def _findings(timings: Timings, plan: OverheadPlan) -> Iterator[str]:
    docker = sentence(timings, _DOCKER, plan.programs)
    if docker is not None:
        yield f"{docker}; P3: {P3_OVERHEAD_SECONDS} s"
    for pair in _PAIRS:
        finding = sentence(timings, pair, plan.programs)
        if finding is not None:
            yield finding


def _files(bed: Testbed, timings: Timings, plan: OverheadPlan, rows: Table, directory: Path) -> Iterator[Path]:
    yield report.write_table(rows, directory / "p3-overhead-table.csv")
    runs: list[tuple[Cell, ...]] = [
        (way, program, repetition, round(each, 4))
        for (way, program), seconds in timings.seconds.items()
        for repetition, each in enumerate(seconds, start=1)
    ]
    table_of_runs = Table("runs", ("way", "program", "repetition", "seconds"), tuple(runs))
    yield report.write_table(table_of_runs, directory / "p3-overhead-runs.csv")
    ways = list(dict.fromkeys(way for way, _ in timings.seconds))
    groups = [(way, [statistics.fmean(timings.of(way, program)) for program in plan.programs]) for way in ways]
    title = f"From the command to its end\n{report.caption(bed)}"
    yield report.draw_bars(groups, plan.programs, directory / "p3-overhead.png", title, "seconds")
