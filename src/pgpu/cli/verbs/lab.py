"""The verb `lab`: runs the experiments of the papers behind pgpu and prints their tables beside ours.

stdout gets the table or, with `--json`, one object; progress and notes go to stderr.
"""

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents
from pgpu.errors import RequestError
from pgpu.units import is_number, parse_memory_bytes, quoted

if TYPE_CHECKING:
    from pgpu.lab.p3 import PartName
    from pgpu.lab.report import Report
    from pgpu.lab.testbed import Testbed
    from pgpu.scheduling.capacity import Headroom

verbs = typer.Typer(help="Run an experiment of the papers behind pgpu: p1 to p5.", no_args_is_help=True)

_MOST_JOBS = 200
_LARGEST_SIZE = 1_000_000


class ExperimentRuntime(StrEnum):
    """How jobs run."""

    PROCESS = "process"
    DOCKER = "docker"


RuntimeOption = Annotated[
    ExperimentRuntime, typer.Option("--runtime", help="Run the jobs as processes or in containers.")
]
ImageOption = Annotated[
    str | None,
    typer.Option(
        "--image",
        metavar="IMAGE",
        help="With docker: an image in which `python3 -m pgpu.workloads` runs [pgpu-test:latest].",
    ),
]
OutputOption = Annotated[Path, typer.Option("--output", metavar="DIR", help="Directory for CSV, JSON and PNG files.")]
BareOption = Annotated[bool, typer.Option("--without-pgpu", help="Run only without pgpu.")]

BatchesOption = Annotated[
    int, typer.Option("--batches", metavar="N", min=2, help="Batches of each job; fewer take less time.")
]

_DEFAULT_OUTPUT = Path("pgpu-experiments")


@verbs.command("p1")
def p1(
    context: typer.Context,
    *,
    jobs: Annotated[
        str, typer.Option("--jobs", metavar="N[-M]", help="Number of jobs that start together, such as 25 or 2-25.")
    ] = "2-25",
    runtime: RuntimeOption = ExperimentRuntime.PROCESS,
    is_bare: BareOption = False,
    is_both: Annotated[bool, typer.Option("--both", help="Run without pgpu, then with it, in one table.")] = False,
    repetitions: Annotated[int, typer.Option("--repeat", metavar="N", min=1, help="Runs of each number of jobs.")] = 1,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the order in which jobs arrive.")] = 0,
    batches: BatchesOption = 80,
    image: ImageOption = None,
    output: OutputOption = _DEFAULT_OUTPUT,
    as_json: options.Json = False,
) -> None:
    """Start inference jobs together; count those without memory (P1)."""
    from pgpu.lab import p1 as experiment

    if is_bare and is_both:
        raise RequestError("--without-pgpu and --both exclude each other")
    plan = experiment.P1Plan(
        job_counts=_read_counts(jobs),
        with_pgpu=(False, True) if is_both else (not is_bare,),
        repetitions=repetitions,
        seed=seed,
        batches=batches,
    )
    _run(context, lambda bed, place: experiment.run(bed, plan, place), runtime, image, output, as_json=as_json)


@verbs.command("p2")
def p2(
    context: typer.Context,
    *,
    jobs: Annotated[
        int, typer.Option("--jobs", metavar="N", min=1, max=_MOST_JOBS, help="Jobs side by side that take all memory.")
    ] = 10,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Slice of each job.")] = "2GiB",
    batches: BatchesOption = 60,
    runtime: RuntimeOption = ExperimentRuntime.PROCESS,
    is_bare: BareOption = False,
    image: ImageOption = None,
    output: OutputOption = _DEFAULT_OUTPUT,
    as_json: options.Json = False,
) -> None:
    """Train beside jobs that take all memory; count what fits (P2)."""
    from pgpu.lab import p2 as experiment

    plan = experiment.P2Plan(jobs=jobs, slice_bytes=parse_memory_bytes(memory), batches=batches, with_pgpu=not is_bare)
    _run(context, lambda bed, place: experiment.run(bed, plan, place), runtime, image, output, as_json=as_json)


@verbs.command("p3")
def p3(
    context: typer.Context,
    *,
    parts: Annotated[
        str, typer.Option("--part", metavar="PART[,PART]", help="Run only these parts: wall, overhead, mps.")
    ] = "all",
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=2, max=_MOST_JOBS, help="Part wall: most jobs.")] = 60,
    iterations: Annotated[
        int, typer.Option("--iterations", metavar="N", min=1, help="Part wall: steps of each job.")
    ] = 40,
    repetitions: Annotated[
        int, typer.Option("--repeat", metavar="N", min=1, help="Parts overhead and mps: runs of each program and pair.")
    ] = 5,
    sizes: Annotated[
        str, typer.Option("--sizes", metavar="N[,N]", help="Part mps: input sizes.")
    ] = "5120,10240,20480,40960",
    asks_beforehand: Annotated[
        bool, typer.Option("--advise", help="Part mps: profile each program first, and compare with advice.")
    ] = False,
    runtime: RuntimeOption = ExperimentRuntime.PROCESS,
    is_bare: BareOption = False,
    image: ImageOption = None,
    output: OutputOption = _DEFAULT_OUTPUT,
    as_json: options.Json = False,
) -> None:
    """Measure memory limits, containers and MPS (P3)."""
    from pgpu.lab import p3 as experiment
    from pgpu.lab.p3_overhead import OverheadPlan
    from pgpu.lab.p3_sharing_modes import SharingPlan
    from pgpu.lab.testbed import NO_HEADROOM

    plan = experiment.P3Plan(
        parts=_read_parts(parts, experiment.PARTS),
        wall=experiment.WallPlan(jobs=jobs, iterations=iterations, with_pgpu=not is_bare),
        overhead=OverheadPlan(repetitions=repetitions),
        mps=SharingPlan(sizes=_read_sizes(sizes), repetitions=repetitions, asks_beforehand=asks_beforehand),
    )
    _run(
        context,
        lambda bed, place: experiment.run(bed, plan, place),
        runtime,
        image,
        output,
        as_json=as_json,
        # The wall is the number of jobs that fit: memory that pgpu keeps back would change it.
        headroom=NO_HEADROOM,
    )


@verbs.command("p4")
def p4(
    context: typer.Context,
    *,
    neighbours: Annotated[
        int, typer.Option("--neighbours", metavar="N", min=1, max=15, help="Jobs beside the one that takes all memory.")
    ] = 3,
    memory: Annotated[str, typer.Option("--memory", metavar="SIZE", help="Slice of that job.")] = "4GiB",
    batches: BatchesOption = 60,
    runtime: RuntimeOption = ExperimentRuntime.PROCESS,
    is_bare: BareOption = False,
    image: ImageOption = None,
    output: OutputOption = _DEFAULT_OUTPUT,
    as_json: options.Json = False,
) -> None:
    """Let one job take all memory; watch it and its neighbours (P4)."""
    from pgpu.lab import p4 as experiment

    plan = experiment.P4Plan(
        neighbours=neighbours, hog_slice_bytes=parse_memory_bytes(memory), batches=batches, with_pgpu=not is_bare
    )
    _run(context, lambda bed, place: experiment.run(bed, plan, place), runtime, image, output, as_json=as_json)


@verbs.command("p5")
def p5(
    context: typer.Context,
    *,
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", min=2, help="Measured requests to each function.")
    ] = 100,
    networks: Annotated[
        str, typer.Option("--network", metavar="NAME[,NAME]", help="Detectors: wide, mobilenet, vgg16, small.")
    ] = "wide",
    is_cpu_only: Annotated[bool, typer.Option("--cpu-only", help="Leave the GPU function out.")] = False,
    output: OutputOption = _DEFAULT_OUTPUT,
    as_json: options.Json = False,
) -> None:
    """Load a detector once or in each call; compare latencies (P5)."""
    from pgpu.lab.p5 import experiment
    from pgpu.lab.p5.network import SHAPES

    plan = experiment.P5Plan(
        requests=requests, networks=_read_networks(networks, tuple(SHAPES)), with_gpu=not is_cpu_only
    )
    _run(
        context,
        lambda bed, place: experiment.run(bed, plan, place),
        ExperimentRuntime.PROCESS,
        None,
        output,
        as_json=as_json,
    )


def _read_networks(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    """Parse names of detectors, each once.

    Raises:
        RequestError: A name is unknown.
    """
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RequestError(f"--network {unknown[0]!r} is no detector of p5", hint=f"write {', '.join(known)}")
    return names


def _read_counts(text: str) -> tuple[int, ...]:
    """Parse `25`, `2-25` or `8,24-25`.

    Raises:
        RequestError: The text has another form, or a number is out of range.
    """
    counts: list[int] = []
    for part in text.split(","):
        first, separator, last = part.partition("-")
        last = last if separator else first
        if not is_number(first) or not is_number(last):
            raise RequestError(f"--jobs {quoted(text)} is not a number of jobs", hint="write 25, 2-25 or 8,24-25")
        if not 1 <= int(first) <= int(last) <= _MOST_JOBS:
            raise RequestError(
                f"--jobs {quoted(text)}: between 1 and {_MOST_JOBS} jobs can start together, the fewest first"
            )
        counts += range(int(first), int(last) + 1)
    return tuple(counts)


def _read_sizes(text: str) -> tuple[int, ...]:
    """Parse input sizes.

    Raises:
        RequestError: One is no number from 1 to a million.
    """
    sizes = text.split(",")
    if not all(is_number(size) and 0 < int(size) <= _LARGEST_SIZE for size in sizes):
        raise RequestError(
            f"--sizes {quoted(text)} are not input sizes up to {_LARGEST_SIZE:,}", hint="write 5120,10240"
        )
    return tuple(int(size) for size in sizes)


def _read_parts(text: str, known: "tuple[PartName, ...]") -> "tuple[PartName, ...]":
    """Parse names of parts; `all` stands for all of them.

    Raises:
        RequestError: A name is unknown.
    """
    names = text.split(",")
    unknown = [part for part in names if part not in {"all", *known}]
    if unknown:
        raise RequestError(f"--part {unknown[0]!r} is not a part of p3", hint=f"write {', '.join(known)} or all")
    return tuple(part for part in known if part in names or "all" in names)


def _run(
    context: typer.Context,
    experiment: "Callable[[Testbed, Path], Report]",
    runtime: ExperimentRuntime,
    image: str | None,
    output: Path,
    *,
    as_json: bool,
    headroom: "Headroom | None" = None,
) -> None:
    from pgpu.lab.report import output_directory, write_summary
    from pgpu.lab.testbed import open_testbed

    place = output_directory(output)
    settings = invocation_of(context).settings()
    with open_testbed(settings, runtime.value, image, console.print_note, headroom=headroom) as bed:
        report = experiment(bed, place)
    summary = write_summary(report, place / f"{report.experiment}.json")
    if as_json:
        console.print_json(documents.document(report=report.as_json()))
        return
    _print(report)
    for path in (*report.files, summary):
        console.print_note(f"wrote {path}")


def _print(report: "Report") -> None:
    from rich.table import Table

    for shown in (report.table, *report.further):
        table = Table(title=f"{shown.title} ({report.device}, {report.runtime})", title_justify="left")
        for column in shown.columns:
            table.add_column(column)
        for row in shown.rows:
            table.add_row(*("–" if cell is None else str(cell) for cell in row))
        console.print_table(table)
    for finding in report.findings:
        print(finding)
    if report.is_simulated:
        from pgpu.lab.report import SIMULATED_NOTE

        print(SIMULATED_NOTE)
