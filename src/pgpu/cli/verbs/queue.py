"""Verbs about the queue: `queue` shows it, `cancel` takes jobs out of it."""

from typing import Annotated

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents
from pgpu.client import JobReport


def queue(context: typer.Context, *, as_json: options.Json = False) -> None:
    """List the jobs that wait, in the order in which they are looked at: why they wait, and until about when.

    A job that waits for others (--after) has no place in the line until they ended.
    """
    reports = invocation_of(context).client().queue()
    if as_json:
        console.print_json(documents.of_queue(reports))
        return
    from pgpu.cli.output import job_tables

    console.print_table(job_tables.of_queue(reports))


def cancel(
    context: typer.Context,
    jobs: options.Jobs,
    *,
    grace: Annotated[
        str | None,
        typer.Option("--time", "-t", metavar="TIME", help="From SIGTERM to SIGKILL; the setting stop_grace, 10s."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Take waiting jobs out of the queue and stop those that run, of an array all; those after them are cancelled, too.

    If one of the words names no job, nothing is changed.
    """
    invocation = invocation_of(context)
    settings = invocation.settings(stop_grace=grace)
    ended = invocation.make_client(settings).cancel(jobs, grace_seconds=settings.stop_grace)
    if as_json:
        console.print_json(documents.of_jobs(JobReport(job, ()) for job in ended))
    else:
        for job in ended:
            print(job.id)
