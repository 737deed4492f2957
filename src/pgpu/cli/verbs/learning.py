"""Verbs about what runs taught: `history` shows what programs held, `waste` what was reserved for nothing."""

from typing import Annotated

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console, documents


def history(
    context: typer.Context,
    program: Annotated[
        str | None,
        typer.Argument(metavar="[PROGRAM]", help="A signature or its beginning, or a job; all programs if left out."),
    ] = None,
    *,
    as_json: options.Json = False,
) -> None:
    """Show what each program held in its runs, and what --memory auto would reserve for it; of one program every run."""
    calls = invocation_of(context).client().history(program)
    if as_json:
        console.print_json(documents.of_history(calls))
        return
    from pgpu.cli.output import usage_tables

    console.print_table(usage_tables.of_calls(calls))
    for call in calls if program is not None else ():
        console.print_table(usage_tables.of_runs(call))


def waste(context: typer.Context, *, as_json: options.Json = False) -> None:
    """Show what jobs reserved against what they used, with the size each should have asked, and the same by user."""
    found = invocation_of(context).client().waste()
    if as_json:
        console.print_json(documents.of_waste(found))
        return
    from pgpu.cli.output import usage_tables

    console.print_table(usage_tables.of_waste(found))
    console.print_table(usage_tables.of_users(found))
