"""`pgpu profile`: a command in a slice, and what it did on the GPU."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents
from pgpu.cli.submission import job_arguments
from pgpu.errors import NodeError, RequestError
from pgpu.model import SharingWish, Submission

if TYPE_CHECKING:
    from pgpu.profiling.profile_page import ProfileResult

_RUNS = 3


def profile(
    context: typer.Context,
    command: options.Command = None,
    *,
    memory: options.Memory = None,
    gpus: options.Gpus = 1,
    image: options.Image = None,
    priority: options.Priority = "normal",
    wait_timeout: options.WaitTimeout = None,
    environment: options.Environment = None,
    environment_files: options.EnvironmentFiles = None,
    volumes: options.Volumes = None,
    working_directory: options.WorkingDirectory = None,
    user: options.User = None,
    name: options.Name = None,
    remove: options.Remove = True,
    wait_for_memory: options.WaitForMemory = "0s",
    sharing: options.Sharing = SharingWish.EXCLUSIVE.value,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Run it several times: alone, with the smallest and the largest L1 cache, beside antagonists under MPS.",
        ),
    ] = False,
    runs: Annotated[
        int | None, typer.Option("--runs", metavar="N", help="With --sensitivity: so many of each (3).")
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
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace that ui.perfetto.dev opens.")
    ] = None,
    show: Annotated[
        str | None, typer.Option("--show", metavar="JOB", help="Run nothing: show the profile of a job that ended.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run a command in a slice and tell what it did on the GPU: memory by kind, kernels, copies, how busy it was.

    It has the GPU for itself unless --sharing says otherwise, so that nobody disturbs the measurement.
    The profile goes to stdout, and what the command prints to stderr. It is remembered: `pgpu advise` and --sharing auto
    rest on the newest of each program. Exits with the command's own code, of several runs the first that failed.
    """
    from pgpu.cli.measurement import profile_runs

    invocation = invocation_of(context)
    if show is not None:
        if command:
            raise RequestError("--show runs nothing", hint="leave the command out, or --show")
        _tell(profile_runs.load_finding(invocation.client(), show), html, trace, as_json=as_json)
        return
    _refuse_runs(runs, is_sensitivity=sensitivity)
    for path in (html, trace):
        if path is not None:
            _refuse_unwritable(path)
    counting = _counting_program(image, command) if ncu else None
    settings = invocation.settings(wait_timeout=wait_timeout, sharing=sharing)
    spec, request = job_arguments.read_job(
        command=tuple(command or ()),
        memory=memory,
        gpu_count=gpus,
        priority=priority,
        compute=job_arguments.ComputeArguments(
            None, settings.sharing, is_strict=False, oversubscribes=False, preempts=False
        ),
        image=image,
        environment_words=environment or (),
        environment_files=environment_files or (),
        volume_words=volumes or (),
        working_directory=working_directory,
        user=user,
        name=name,
        wants_tty=False,
        wants_stdin=False,
        is_detached=False,
        remove=remove,
        wait_for_memory=wait_for_memory,
    )
    client = invocation.make_client(settings)
    plan = profile_runs.ProfilePlan(
        client, Submission(spec, request, wait_timeout_seconds=settings.wait_timeout), is_quiet=as_json
    )
    finding = profile_runs.run_sensitivity(plan, runs or _RUNS) if sensitivity else profile_runs.run_once(plan)
    if counting is not None and finding.failed is None:
        finding = profile_runs.with_counters(plan, finding, counting)
    _tell(finding, html, trace, as_json=as_json)
    sys.stdout.flush()
    raise typer.Exit(exits.OK if finding.failed is None else exits.of_job(finding.failed))


def _tell(finding: "ProfileResult", html: Path | None, trace: Path | None, *, as_json: bool) -> None:
    from pgpu.cli.output import profile_report

    if html is not None:
        _write(html, profile_report.page_of(finding))
    if trace is not None:
        _write(trace, profile_report.trace_of(finding))
    if as_json:
        console.print_json(documents.document(profile=profile_report.document_of(finding)))
    else:
        for table in profile_report.tables_of(finding):
            console.print_table(table)


def _refuse_runs(runs: int | None, *, is_sensitivity: bool) -> None:
    if runs is not None and not is_sensitivity:
        raise RequestError(
            "--runs is how often --sensitivity runs the command", hint="add --sensitivity, or leave it out"
        )
    if runs is not None and runs < 1:
        raise RequestError(f"--runs {runs}: there is nothing to measure", hint="at least 1")


def _counting_program(image: str | None, command: list[str] | None) -> str:
    """Return the ncu that a job of this kind would find; a container brings its own."""
    from pgpu.profiling.counters import PROGRAM

    if not command:
        raise RequestError("--ncu needs the command's words", hint="write them after --, for an image too")
    found = PROGRAM if image is not None else shutil.which(PROGRAM)
    if found is None:
        raise RequestError(
            "ncu, the command line of Nsight Compute, is not on PATH",
            hint="leave --ncu out, or add it, such as PATH=/usr/local/cuda/bin:$PATH",
        )
    return found


def _refuse_unwritable(path: Path) -> None:
    """A job may take hours: what cannot be written after it is said before."""
    if path.is_dir():
        raise RequestError(f"{path} is a directory", hint="name a file")
    if not path.parent.is_dir():
        raise RequestError(f"{path} cannot be written: there is no directory {path.parent}", hint="make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise RequestError(f"{path} cannot be written: you may not", hint="name a file of your own")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as exc:
        raise NodeError(f"{path} cannot be written: {exc.strerror}") from exc
