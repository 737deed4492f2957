"""What a function's code declares, asked of a process of its own: verbs never import it."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pgpu.cli.output import console
from pgpu.errors import PgpuError

if TYPE_CHECKING:
    from pgpu.functions.api import Declaration
    from pgpu.functions.dev import FunctionSource


def read_declaration(
    app: str, name: str | None, flags: Mapping[str, object]
) -> "tuple[FunctionSource, str, Declaration]":
    """Find a function, ask its code what it declares, and put the flags over that."""
    from pgpu.functions.api import check_name, parse_declaration, read_project
    from pgpu.functions.dev import describe_function, find_function

    place = find_function(app, Path.cwd())
    try:
        described = describe_function(place)
        found, declaration = described.name, described.declaration
    except PgpuError as exc:
        if place.name is None:
            raise
        console.print_note(f"{place.app} cannot be imported here ({exc}): what pgpu.toml says is taken alone")
        found, declaration = place.name, parse_declaration(read_project(place.source)[place.name].words)
    return place, check_name(name or found), parse_declaration(flags, declaration)
