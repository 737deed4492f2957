"""Verbs about jobs that exist: `ps`, `logs`, `stop`, `wait`, `resize`."""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import Invocation, invocation_of
from pgpu.cli.output import console, documents
from pgpu.client import Client, JobReport
from pgpu.errors import JobNotFoundError, PgpuError, RequestError
from pgpu.model import Job

if TYPE_CHECKING:
    from pgpu.cli.verbs.function_logs import Piece


def ps(
    context: typer.Context,
    *,
    include_final: Annotated[bool, typer.Option("--all", "-a", help="Show jobs that ended, too.")] = False,
    is_quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only.")] = False,
    is_uncut: Annotated[bool, typer.Option("--no-trunc", help="Don't shorten commands.")] = False,
    of_kubernetes: Annotated[
        bool,
        typer.Option("--kubernetes", help="List the containers of this node's pods instead: ask in the driver's pod."),
    ] = False,
    driver: Annotated[
        str,
        typer.Option("--driver", metavar="HOST:PORT", help="With --kubernetes: where the driver serves its metrics."),
    ] = "127.0.0.1:9410",
    as_json: options.Json = False,
) -> None:
    """List jobs: those that wait, with the reason, and those that run, with what they hold."""
    if of_kubernetes:
        if include_final or is_quiet:
            raise RequestError(
                "--kubernetes lists what runs now, as a table or as --json", hint="leave out --all and --quiet"
            )
        from pgpu.cli.verbs.kubernetes_pods import list_pods

        list_pods(driver, as_json=as_json)
        return
    client = invocation_of(context).client()
    reports = client.jobs(include_final=include_final)
    if as_json:
        console.print_json(documents.of_jobs(reports))
    elif is_quiet:
        for report in reports:
            if not report.job.is_anonymous:
                print(report.job.id)
    else:
        from pgpu.cli.output import job_tables

        console.print_table(job_tables.of_jobs(reports, is_uncut=is_uncut))
        for line in job_tables.outside(client.outsiders()):
            console.print_note(line)


def logs(
    context: typer.Context,
    job: options.OneJob,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    tail: Annotated[
        str, typer.Option("--tail", "-n", metavar="LINES", help="Only the last lines of what is stored, or all.")
    ] = "all",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            callback=options.note_json,
            is_eager=True,
            help="Print one JSON object for each piece of output; errors are JSON on stderr.",
        ),
    ] = False,
) -> None:
    """Print what a job wrote: its stdout on stdout, its stderr on stderr; of a function, what its replicas write."""
    invocation, tail_lines = invocation_of(context), _line_count(tail)
    client = invocation.client()
    try:
        for stream, data in client.logs(job, follow=follow, tail_lines=tail_lines):
            _print_piece(stream, data, as_json=as_json)
    except JobNotFoundError:
        pieces = _of_function(invocation, client, job, follow=follow, tail_lines=tail_lines)
        if pieces is None:
            raise
        for piece in pieces:
            line = piece.data if as_json else f"{piece.job_id} ".encode() + piece.data
            _print_piece(piece.stream, line, as_json=as_json, job=piece.job_id)


def _print_piece(stream: str, data: bytes, *, as_json: bool, **more: str) -> None:
    if as_json:
        console.print_json_line(documents.document(stream=stream, text=data.decode("utf-8", "replace"), **more))
        return
    target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    target.write(data)
    target.flush()


def _of_function(
    invocation: Invocation, client: Client, name: str, *, follow: bool, tail_lines: int | None
) -> "Iterator[Piece] | None":
    """Return what the replicas of a function write; None if there neither is nor was a function of this name."""
    from pgpu.cli.verbs.function_logs import function_logs, serving

    try:
        invocation.functions().function(name)
    except PgpuError:  # There is no such job all the same.
        if not serving(client, name):
            return None
    return function_logs(client, name, follow=follow, tail_lines=tail_lines)


def _line_count(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise RequestError(f"--tail {text!r} is no number of lines", hint="write --tail 100 or --tail all")
    return int(text)


def stop(
    context: typer.Context,
    jobs: options.Jobs,
    *,
    grace: Annotated[
        str | None,
        typer.Option("--time", "-t", metavar="TIME", help="From SIGTERM to SIGKILL; the setting stop_grace, 10s."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Cancel waiting jobs; end running ones with SIGTERM and, after the grace, SIGKILL to all they started."""
    invocation = invocation_of(context)
    settings = invocation.settings(stop_grace=grace)
    client = invocation.make_client(settings)
    _on_each(
        _elements(client, jobs),
        lambda job: client.stop(job, grace_seconds=settings.stop_grace),
        lambda job: job.id,
        as_json=as_json,
    )


def wait(context: typer.Context, jobs: options.Jobs, *, as_json: options.Json = False) -> None:
    """Block until jobs ended, then print their exit codes, one a line."""
    client = invocation_of(context).client()
    _on_each(_elements(client, jobs), client.wait, lambda job: str(exits.of_job(job)), as_json=as_json)


def resize(
    context: typer.Context,
    job: options.OneJob,
    *,
    memory: Annotated[
        str | None, typer.Option("--memory", "-m", metavar="AMOUNT", help="The new size of each slice.")
    ] = None,
    compute: Annotated[
        str | None,
        typer.Option("--compute", metavar="SHARE", help="The new share of each GPU's time, such as 50%, or none."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Never more than the share; without this and --fair as before.")
    ] = False,
    fair: Annotated[bool, typer.Option("--fair", help="Idle time on top of the share.")] = False,
    as_json: options.Json = False,
) -> None:
    """Change the slices of a waiting or running job, or its share of compute, live.

    A larger slice holds at once, if it fits; a smaller one refuses new allocations until the job's use is below it.
    Another share holds from the job's next launch on.
    """
    from pgpu.cli.submission.job_arguments import read_resize

    if strict and fair:
        raise RequestError("--strict and --fair say the opposite", hint="leave one of them out")
    change = read_resize(memory, compute, is_strict=strict if strict or fair else None)
    invocation = invocation_of(context)
    # The GPUs of the job count, whether simulated GPUs were named on this command line or not.
    settings = invocation.settings()
    found = invocation.make_client(settings).job(job).job
    client = invocation.make_client(dataclasses.replace(settings, simulate=found.gpu_model))
    changed = client.resize(job, change.memory_bytes, compute_share=change.compute_share, is_strict=change.is_strict)
    if as_json:
        console.print_json(documents.of_job(client.job(changed.id)))
    else:
        print(changed.id)


def _elements(client: Client, words: Sequence[str]) -> list[str]:
    """Put an array's jobs in its place; what names nothing stays, for its own complaint."""
    found: list[str] = []
    for word in words:
        try:
            found += [report.job.id for report in client.members(word)]
        except JobNotFoundError:
            found.append(word)
    return list(dict.fromkeys(found))


def _on_each(names: Sequence[str], act: Callable[[str], Job], describe: Callable[[Job], str], *, as_json: bool) -> None:
    """Do something to each job, go on past those that fail, and fail at the end if any did, as Docker does."""
    done: list[Job] = []
    failed = exits.OK
    for name in names:
        try:
            job = act(name)
        except PgpuError as exc:
            console.print_error(exc, as_json=as_json)
            failed = exits.of_error(exc)
            continue
        done.append(job)
        if not as_json:
            print(describe(job), flush=True)
    if as_json:
        _print_ended(done)
    raise typer.Exit(failed)


def _print_ended(jobs: Sequence[Job]) -> None:
    console.print_json(documents.of_jobs(JobReport(job, ()) for job in jobs))
