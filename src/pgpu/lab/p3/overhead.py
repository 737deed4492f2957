"""What pgpu adds to a program, as P3 asked what Docker adds: programs timed from the command to their end.

Beside a bare process, `docker run` and `docker exec` stands the same with pgpu, one right after the other, and which of the
two goes first changes from run to run. It refuses to subtract a program's own time: it is in both.
"""

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgpu.errors import NodeError
from pgpu.lab import plots, report
from pgpu.lab.job_outcome import last_line
from pgpu.lab.p3.experiment_part import Part
from pgpu.lab.p3.timings import Timings, TwoWays, sentence, table
from pgpu.lab.paper_figures import P3_OVERHEAD_SECONDS
from pgpu.lab.report import Cell, Table
from pgpu.lab.testbed import Testbed
from pgpu.model import JobSpec, Request
from pgpu.units import MIB

_DEADLINE_SECONDS = 300.0
_LOOK_AGAIN_SECONDS = 0.1
_RESTING = ("sleep", "3600")
_DOCKER_ANSWERS_SECONDS = 20.0

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
"""Each with the words that make it short: what is added does not depend on its length (P3)."""

_PAIRS = (
    TwoWays("process", "pgpu run"),
    TwoWays("docker run", "pgpu run --image"),
    TwoWays("docker exec", "docker exec in a slice"),
)
_DOCKER = TwoWays("process", "docker exec")
"""What P3 measured."""


@dataclass(frozen=True, slots=True)
class OverheadPlan:
    """What to run."""

    programs: tuple[str, ...] = tuple(PROGRAMS)
    repetitions: int = 5
    """P3 ran each program five times."""

    memory_bytes: int = 1024 * MIB
    """Of each slice."""


Ways = Mapping[str, Callable[[tuple[str, ...]], tuple[tuple[str, ...], Mapping[str, str]]]]
"""The command and environment of a workload, by the way's name."""


def run(stage: Testbed, plan: OverheadPlan, directory: Path) -> Part:
    """Time every program every way and write tables and a figure.

    Raises:
        NodeError: A program failed.
    """
    timings = Timings()
    with ExitStack() as stack:
        ways = dict(_process_ways(stage, plan))
        missing = why_no_docker(stage)
        if missing is None:
            ways |= _docker_ways(stage, plan, stack)
        else:
            stage.tell(f"overhead: without containers: {missing}")
        for repetition in range(1, plan.repetitions + 1):
            stage.tell(f"overhead: run {repetition} of {plan.repetitions}, {len(plan.programs)} programs")
            _run_all(ways, plan.programs, timings, is_ours_first=repetition % 2 == 0)
    rows = table(timings, _PAIRS, plan.programs, f"P3: what pgpu adds, {plan.repetitions} runs, in pairs")
    left_out = () if missing is None else (f"overhead: containers left out: {missing}",)
    findings = (*_findings(timings, plan), *left_out)
    return Part(rows, findings, tuple(_files(stage, timings, plan, rows, directory)))


def why_no_docker(stage: Testbed) -> str | None:
    """Return why containers cannot run here, in a few words; None where they can."""
    try:
        subprocess.run(
            ("docker", "image", "inspect", stage.container_image),
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


def _process_ways(stage: Testbed, plan: OverheadPlan) -> Ways:
    slice_words = ("run", "--memory", f"{plan.memory_bytes // MIB}MiB")
    return {
        "process": lambda words: (stage.plain_command(words), stage.bare_environment()),
        "pgpu run": lambda words: (
            stage.pgpu_command((*slice_words, "--", *stage.workload(words))),
            stage.pgpu_environment(),
        ),
    }


def _docker_ways(stage: Testbed, plan: OverheadPlan, stack: ExitStack) -> Ways:
    boxed = stage.in_containers()
    slice_words = ("run", "--memory", f"{plan.memory_bytes // MIB}MiB", "--image", stage.container_image)
    plain = stack.enter_context(_plain_container(boxed))
    sliced = stack.enter_context(_sliced_container(boxed, plan))
    return {
        "docker run": lambda words: (boxed.plain_command(words), os.environ),
        "pgpu run --image": lambda words: (
            stage.pgpu_command((*slice_words, "--", *boxed.workload(words))),
            stage.pgpu_environment(),
        ),
        "docker exec": lambda words: (("docker", "exec", plain, *boxed.workload(words)), os.environ),
        "docker exec in a slice": lambda words: (("docker", "exec", sliced, *boxed.workload(words)), os.environ),
    }


@contextmanager
def _plain_container(stage: Testbed) -> Iterator[str]:
    """Let a container without pgpu rest, and remove it in the end."""
    command = stage.container_command(_RESTING, detached=True)
    container = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    try:
        yield container
    finally:
        subprocess.run(("docker", "rm", "--force", container), capture_output=True, check=False)


@contextmanager
def _sliced_container(stage: Testbed, plan: OverheadPlan) -> Iterator[str]:
    """Let a container in a slice rest, and stop it in the end."""
    spec = JobSpec(command=_RESTING, runtime="docker", image=stage.container_image, name="p3-resting")
    job = stage.client.submit(spec, Request(plan.memory_bytes), wait_timeout_seconds=None)
    try:
        deadline_seconds = time.monotonic() + _DEADLINE_SECONDS
        while not (container := _container_of(job.id)):
            state = stage.client.job(job.id).job.state
            if state.is_final or time.monotonic() > deadline_seconds:
                raise NodeError(f"a container in a slice did not start: it is {state}")
            time.sleep(_LOOK_AGAIN_SECONDS)  # noqa: TID251 - a container engine tells nobody that it started one
        yield container
    finally:
        stage.client.stop(job.id, grace_seconds=0)


def _container_of(job_id: str) -> str:
    listing = ("docker", "ps", "--quiet", "--filter", f"label=io.pgpu.job={job_id}")
    return subprocess.run(listing, capture_output=True, text=True, check=True).stdout.strip()


def _run_all(ways: Ways, programs: Sequence[str], timings: Timings, *, is_ours_first: bool) -> None:
    for program in programs:
        for pair in _PAIRS:
            order = (pair.ours, pair.plain) if is_ours_first else (pair.plain, pair.ours)
            for way in (way for way in order if way in ways):
                timings.add(way, program, _timed(*ways[way]((program, *PROGRAMS[program]))))


def _timed(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the seconds from a command to its end.

    Raises:
        NodeError: It failed.
    """
    began_seconds = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began_seconds
    if done.returncode != 0:
        raise NodeError(f"a program failed with {done.returncode}: {last_line(done.stderr)}")
    return seconds


def _findings(timings: Timings, plan: OverheadPlan) -> Iterator[str]:
    docker = sentence(timings, _DOCKER, plan.programs)
    if docker is not None:
        yield f"{docker}; P3: {P3_OVERHEAD_SECONDS} s"
    for pair in _PAIRS:
        said = sentence(timings, pair, plan.programs)
        if said is not None:
            yield said


def _files(stage: Testbed, timings: Timings, plan: OverheadPlan, rows: Table, directory: Path) -> Iterator[Path]:
    yield report.write_table(rows, directory / "p3-overhead-table.csv")
    runs = Table("runs", ("way", "program", "repetition", "seconds"), tuple(_runs(timings)))
    yield report.write_table(runs, directory / "p3-overhead-runs.csv")
    ways = list(dict.fromkeys(way for way, _ in timings.seconds))
    groups = [(way, [statistics.fmean(timings.of(way, program)) for program in plan.programs]) for way in ways]
    title = f"From the command to its end\n{report.caption(stage)}"
    yield plots.bars(groups, plan.programs, directory / "p3-overhead.png", title, "seconds")


def _runs(timings: Timings) -> Iterator[tuple[Cell, ...]]:
    for (way, program), seconds in timings.seconds.items():
        for repetition, each in enumerate(seconds, start=1):
            yield way, program, repetition, round(each, 4)
