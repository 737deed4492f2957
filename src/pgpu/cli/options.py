"""Options that several verbs share, spelled once."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead; errors are JSON on stderr.")]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids, beginnings of ids, or names.")]
OneJob = Annotated[str, typer.Argument(metavar="JOB", help="Id, beginning of an id, or name.")]
