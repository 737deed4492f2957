"""What pgpu learns about jobs and their sharing: `history`, `waste`, `profile`, `advise`, `calibrate`."""

import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import Invocation, invocation_of
from pgpu.cli.job_arguments import read_submission
from pgpu.cli.job_options import PROFILE, JobOptions, rows_of
from pgpu.cli.listings import OPTIONS_OF_FIRST, Kind, ListOptions, print_listing
from pgpu.cli.option_table import COMMAND, JSON, Option, OptionKind, takes
from pgpu.cli.output import console, documents
from pgpu.errors import NodeError, RequestError
from pgpu.model import Gpu, Objective, Profile, SharingWish
from pgpu.units import parse_duration_seconds

if TYPE_CHECKING:
    from pgpu.client import CallHistory, Client
    from pgpu.profiling.profile_page import ProfileResult

_LARGEST_FILE_BYTES = 16 << 20
_LONGEST_SECONDS = 3600
_RUNS = 3
_WEEK = "7d"


@takes(
    Option(
        "program",
        OptionKind.OPTIONAL_WORD,
        (),
        "Signature of a program, its beginning, or a job: show each run [all programs].",
        "[PROGRAM]",
    ),
    Option(
        "gpu", OptionKind.FLAG, ("--gpu",), "Show the memory and the time of the GPUs instead, a line for each day."
    ),
    Option("since", OptionKind.TEXT, ("--since",), "With --gpu, so far back; a week is kept [7d].", "DURATION"),
    *OPTIONS_OF_FIRST,
    JSON,
)
def history(invocation: Invocation, *, program: str | None, gpu: bool, since: str | None, **given: Any) -> None:
    """Show peaks of earlier runs and sizes for --memory auto.

    Runs of the same program with the same arguments have one signature, the first column. With --gpu and --json, a value for
    each minute in which a job had the GPU.
    """
    options = ListOptions(**given)
    if gpu:
        if program is not None:
            raise RequestError("--gpu is about GPUs and not about a program", hint="leave out the program or --gpu")
        options.refuse_rows("--gpu prints a line for each day")
        _print_gpu_history(invocation.client(), parse_duration_seconds(since or _WEEK), as_json=options.wants_json)
        return
    if since is not None:
        raise RequestError("--since is for --gpu", hint="add --gpu, or leave --since out")
    from pgpu.cli.output import usage_tables

    client = invocation.client()
    calls: Sequence[CallHistory] = ()

    def read() -> "Sequence[CallHistory]":
        nonlocal calls
        calls = client.history(program)
        return calls

    kind = Kind(
        lambda reports, is_uncut: usage_tables.of_calls(reports, is_uncut=is_uncut),
        documents.of_history,
        lambda call: (call.signature, ""),
        keeps_first=True,
    )
    print_listing(options, kind, read)
    for call in calls if program is not None and options.wants_table else ():
        console.print_table(usage_tables.of_runs(call))


def _print_gpu_history(client: "Client", span_seconds: float, *, as_json: bool) -> None:
    found = client.gpu_history(time.time() - span_seconds)
    if as_json:
        console.print_json(documents.of_gpu_history(found))
        return
    from pgpu.cli.output import usage_tables

    gpus: Sequence[Gpu] = ()
    with suppress(NodeError):  # without a driver, or of GPUs that are gone, the UUID names them
        gpus = [report.gpu for report in client.gpus()]
    console.print_table(usage_tables.of_gpu_history(found, gpus))


def waste(context: typer.Context, *, as_json: options.Json = False) -> None:
    """Compare reserved with used memory, by job and by user.

    For each job it shows the size that would have been enough.
    """
    found = invocation_of(context).client().waste()
    if as_json:
        console.print_json(documents.of_waste(found))
        return
    from pgpu.cli.output import usage_tables

    console.print_table(usage_tables.of_waste(found))
    console.print_table(usage_tables.of_users(found))


def advise(
    context: typer.Context,
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB JOB...", help="Ids or names of jobs, signatures, or files of `pgpu profile --json`."
        ),
    ],
    *,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="MODEL", help="Model of the GPU [that of the profiles, or of this machine]."),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Slow no job down by more than 1.3 times.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Predict how jobs should share a GPU: by turns, MPS, or not.

    The prediction uses a profile of each job alone; `pgpu profile` makes one.
    """
    from pgpu.advising.advice import INTERACTIVE_TOLERANCE
    from pgpu.cli.output import reports

    given = [_read_job(word) for word in jobs]
    tolerance = INTERACTIVE_TOLERANCE if interactive else None
    found = invocation_of(context).client().advise(given, gpu_model=gpu, tolerance=tolerance)
    if as_json:
        console.print_json(reports.document_of_advice(found))
        return
    console.print_table(reports.of_advice(found))
    for line in reports.verdict_of(found):
        print(line)


def _read_job(word: str) -> str | Profile:
    """Return the profile in a file that `pgpu profile --json` wrote; a word that names no file stays.

    Raises:
        RequestError: The file cannot be read, or is no profile.
    """
    from pgpu.services import wire

    path = Path(word)
    if not ("/" in word or path.suffix == ".json" or path.is_file()):
        return word
    hint = "write one with: pgpu profile --json -- COMMAND > FILE"
    try:
        with path.open("rb") as file:
            # Bounded: the word may name a device, or a file of any size.
            data = file.read(_LARGEST_FILE_BYTES)
    except OSError as exc:
        raise RequestError(f"{path} cannot be read: {exc.strerror}", hint=hint) from exc
    try:
        content = wire.parse(data)
        return wire.decode(
            Profile, content["profile"] if isinstance(content, dict) and "profile" in content else content
        )
    except RequestError as exc:
        raise RequestError(f"{path} is no profile: {exc}", hint=hint) from exc


def calibrate(
    context: typer.Context,
    *,
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", help="Length of each run.")] = 3.0,
    as_json: options.Json = False,
) -> None:
    """Measure this kind of GPU, for better advice (takes minutes).

    Workloads of pgpu run alone, in turns and under MPS, and the constants of the predictions are fitted to their times.
    The bandwidths of the link and of the memory are measured as well. The GPUs must be idle.
    """
    from pgpu.cli import calibration_runs
    from pgpu.cli.output import reports

    if not 0 < seconds <= _LONGEST_SECONDS:
        raise RequestError(f"--seconds {seconds:g}: a run takes more than 0 s and at most an hour")
    client = invocation_of(context).client()
    client.check_calibration()  # refuses callers that may not store constants, before anything runs
    # Any other work on the GPU would be in the measured times, and the constants fitted to it.
    if any(report.jobs or report.outsiders for report in client.gpus()):
        raise RequestError("the GPUs are in use", hint="calibrate while nothing else runs: pgpu ps")
    found = calibration_runs.run_calibration(client, seconds, is_quiet=as_json)
    client.keep_constants(found.gpu_uuid, found.constants, found.bandwidths)
    gpu = next(report.gpu for report in client.gpus() if report.gpu.uuid == found.gpu_uuid)
    if as_json:
        console.print_json(
            reports.document_of_calibration(
                found.constants, found.before, found.after, found.pairs, found.bandwidths, gpu
            )
        )
        return
    for line in reports.lines_of_calibration(found.constants, found.before, found.after, found.pairs):
        print(line)
    for line in reports.lines_of_bandwidths(found.bandwidths, gpu):
        print(line)


@takes(
    COMMAND,
    *rows_of(PROFILE, sharing=SharingWish.EXCLUSIVE.value),
    Option(
        "sensitivity",
        OptionKind.FLAG,
        ("--sensitivity",),
        "Run it several times: alone, with the smallest and the largest L1 cache, beside antagonists under MPS.",
    ),
    Option("runs", OptionKind.NUMBER, ("--runs",), "Number of runs of each kind with --sensitivity [3].", "N"),
    Option(
        "ncu",
        OptionKind.FLAG,
        ("--ncu",),
        "Run it once more under Nsight Compute, for cache hit rates and occupancy of each kernel.",
    ),
    Option("html", OptionKind.TEXT, ("--html",), "Write a page with plots that needs no network.", "FILE"),
    Option("trace", OptionKind.TEXT, ("--trace",), "Write a trace for ui.perfetto.dev.", "FILE"),
    Option("show", OptionKind.TEXT, ("--show",), "Show the profile of an ended job; run nothing.", "JOB"),
    JSON,
)
def profile(
    invocation: Invocation,
    *,
    sensitivity: bool,
    runs: int | None,
    ncu: bool,
    html: str | None,
    trace: str | None,
    show: str | None,
    as_json: bool,
    **given: Any,
) -> int | None:
    """Run a command and measure its memory, kernels and copies.

    The command has the GPU alone unless --sharing names another mode, so that other jobs do not disturb the measurement.
    The profile goes to stdout, the command's output to stderr. The newest profile of each program is kept for
    `pgpu advise` and --sharing auto. Exits with the command's own code; of several runs, that of the first that failed.
    """
    from pgpu.cli import profile_runs

    job = JobOptions(**given, objective=Objective.SOONEST, no_retry=True)
    page_path, trace_path = (None if text is None else Path(text) for text in (html, trace))
    if show is not None:
        if job.command:
            raise RequestError("--show runs nothing", hint="leave out the command or --show")
        _print_finding(profile_runs.load_finding(invocation.client(), show), page_path, trace_path, as_json=as_json)
        return None
    if runs is not None and not sensitivity:
        raise RequestError("--runs is for --sensitivity", hint="add --sensitivity, or leave --runs out")
    if runs is not None and runs < 1:
        raise RequestError(f"--runs {runs}: there is nothing to measure", hint="at least 1")
    for path in (page_path, trace_path):
        if path is not None:
            _refuse_unwritable(path)
    # Everything that can be refused is, before the command runs: it may take hours.
    counter_program = _find_ncu(job.image, job.command) if ncu else None
    settings = invocation.settings(**job.settings())
    submission = read_submission(job, settings)
    plan = profile_runs.ProfilePlan(invocation.make_client(settings), submission, is_quiet=as_json)
    finding = profile_runs.run_sensitivity(plan, runs or _RUNS) if sensitivity else profile_runs.run_once(plan)
    if counter_program is not None and finding.failed is None:
        finding = profile_runs.with_counters(plan, finding, counter_program)
    _print_finding(finding, page_path, trace_path, as_json=as_json)
    sys.stdout.flush()
    return exits.OK if finding.failed is None else exits.of_job(finding.failed)


def _print_finding(finding: "ProfileResult", html: Path | None, trace: Path | None, *, as_json: bool) -> None:
    from pgpu.cli.output import reports

    for path, write in ((html, reports.page_of), (trace, reports.trace_of)):
        if path is not None:
            try:
                path.write_text(write(finding), encoding="utf-8")
            except OSError as exc:
                raise NodeError(f"{path} cannot be written: {exc.strerror}") from exc
    if as_json:
        console.print_json(documents.document(profile=reports.document_of_profile(finding)))
    else:
        for table in reports.tables_of(finding):
            console.print_table(table)


def _find_ncu(image: str | None, command: Sequence[str]) -> str:
    """Return the ncu that counts; a container uses the one in its image."""
    from pgpu.profiling.counters import PROGRAM

    if not command:
        raise RequestError("--ncu needs the command", hint="write it after --, for an image too")
    found = PROGRAM if image is not None else shutil.which(PROGRAM)
    if found is None:
        raise RequestError(
            "ncu, the command line of Nsight Compute, is not on PATH",
            hint="leave --ncu out, or add it, such as PATH=/usr/local/cuda/bin:$PATH",
        )
    return found


def _refuse_unwritable(path: Path) -> None:
    """Check a file before the job, which may take hours."""
    if path.is_dir():
        raise RequestError(f"{path} is a directory", hint="name a file")
    if not path.parent.is_dir():
        raise RequestError(f"{path} cannot be written: there is no directory {path.parent}", hint="make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RequestError(f"{path} cannot be written: permission denied", hint="name a file of your own")
