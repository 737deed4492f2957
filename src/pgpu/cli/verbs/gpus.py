"""Verbs about the machine's GPUs: `gpus` and the live `top`."""

import sys

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents


def gpus(context: typer.Context, *, as_json: options.Json = False) -> None:
    """Show every GPU: what is held, granted and still grantable, and which enforcer makes slices bind on it."""
    reports = invocation_of(context).client().gpus()
    if as_json:
        console.print_json(documents.of_gpus(reports))
        return
    from pgpu.cli.output import job_tables

    console.print_table(job_tables.of_gpus(reports))
    if not reports:
        console.print_note(
            "no GPU was found; `pgpu doctor` says why, and --simulate 'RTX 3090' before the verb simulates one"
        )
    for line in (
        *job_tables.outside(each for report in reports for each in report.outsiders),
        *job_tables.uncovered(reports),
    ):
        console.print_note(line)


def top(context: typer.Context, *, as_json: options.Json = False) -> None:
    """Watch GPUs and jobs, afresh each second; sorted by use, by slice, by age or by name. Into a pipe: once."""
    client = invocation_of(context).client()
    if as_json:
        console.print_json(documents.of_top(client.gpus(), client.jobs(include_final=False)))
        return
    from pgpu.cli.verbs import watching

    if sys.stdout.isatty() and sys.stdin.isatty():
        watching.watch(client)
    else:
        console.print_table(watching.picture(client, watching.ORDERS[0]))
