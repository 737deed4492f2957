"""Options that several verbs share, spelled once."""

from typing import Annotated

import typer

from pgpu.cli.invocation import invocation_of


def note_json(context: typer.Context, *, value: bool) -> bool:
    """Let `main` know how errors are to be written."""
    invocation_of(context).as_json = value
    return value


Json = Annotated[
    bool,
    typer.Option(
        "--json", callback=note_json, is_eager=True, help="Print one JSON object instead; errors are JSON on stderr."
    ),
]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids, beginnings of ids, or names.")]
OneJob = Annotated[str, typer.Argument(metavar="JOB", help="Id, beginning of an id, or name.")]
