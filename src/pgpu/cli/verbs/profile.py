"""`pgpu profile`: runs a command in a slice and reports what it did on the GPU."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents
from pgpu.cli.submission.job_arguments import read_submission
from pgpu.cli.submission.job_options import PROFILE, JobOptions
from pgpu.errors import NodeError, RequestError
from pgpu.model import SharingWish

if TYPE_CHECKING:
    from pgpu.profiling.profile_page import ProfileResult

_RUNS = 3


@options.takes_job_options(PROFILE, sharing=SharingWish.EXCLUSIVE.value)
def profile(
    context: typer.Context,
    command: options.Command = None,
    *,
    job: JobOptions,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Run it several times: alone, with the smallest and the largest L1 cache, beside antagonists under MPS.",
        ),
    ] = False,
    runs: Annotated[
        int | None, typer.Option("--runs", metavar="N", help="Number of runs of each kind with --sensitivity (3).")
    ] = None,
    ncu: Annotated[
        bool,
        typer.Option(
            "--ncu", help="Run it once more under Nsight Compute, for cache hit rates and occupancy of each kernel."
        ),
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots that needs no network.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev.")
    ] = None,
    show: Annotated[
        str | None, typer.Option("--show", metavar="JOB", help="Show the profile of an ended job; run nothing.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run a command and measure its memory, kernels and copies.

    The command has the GPU alone unless --sharing says otherwise, so that other jobs do not disturb the measurement.
    The profile goes to stdout, the command's output to stderr. The newest profile of each program is kept for
    `pgpu advise` and --sharing auto. Exits with the command's own code; of several runs, that of the first that failed.
    """
    from pgpu.cli.measurement import profile_runs

    invocation = invocation_of(context)
    if show is not None:
        if command:
            raise RequestError("--show runs nothing", hint="leave out the command or --show")
        _print_finding(profile_runs.load_finding(invocation.client(), show), html, trace, as_json=as_json)
        return
    if runs is not None and not sensitivity:
        raise RequestError("--runs is for --sensitivity", hint="add --sensitivity, or leave --runs out")
    if runs is not None and runs < 1:
        raise RequestError(f"--runs {runs}: there is nothing to measure", hint="at least 1")
    for path in (html, trace):
        if path is not None:
            _refuse_unwritable(path)
    counter_program = _find_ncu(job.image, command) if ncu else None
    settings = invocation.settings(**job.settings())
    submission = read_submission(replace(job, command=tuple(command or ())), settings.wait_timeout, settings.sharing)
    plan = profile_runs.ProfilePlan(invocation.make_client(settings), submission, is_quiet=as_json)
    finding = profile_runs.run_sensitivity(plan, runs or _RUNS) if sensitivity else profile_runs.run_once(plan)
    if counter_program is not None and finding.failed is None:
        finding = profile_runs.with_counters(plan, finding, counter_program)
    _print_finding(finding, html, trace, as_json=as_json)
    sys.stdout.flush()
    raise typer.Exit(exits.OK if finding.failed is None else exits.of_job(finding.failed))


def _print_finding(finding: "ProfileResult", html: Path | None, trace: Path | None, *, as_json: bool) -> None:
    from pgpu.cli.output import profile_report

    for path, write in ((html, profile_report.page_of), (trace, profile_report.trace_of)):
        if path is not None:
            try:
                path.write_text(write(finding), encoding="utf-8")
            except OSError as exc:
                raise NodeError(f"{path} cannot be written: {exc.strerror}") from exc
    if as_json:
        console.print_json(documents.document(profile=profile_report.document_of(finding)))
    else:
        for table in profile_report.tables_of(finding):
            console.print_table(table)


def _find_ncu(image: str | None, command: list[str] | None) -> str:
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
