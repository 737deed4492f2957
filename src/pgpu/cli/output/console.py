"""How pgpu speaks: results on stdout, everything else on stderr, one line at a time.

stdout belongs to the job; so what pgpu has to say beside a result never goes there.
"""

import json
import sys
from typing import Any

from pgpu.cli.output import documents
from pgpu.cli.output.visible import visible, visible_json
from pgpu.errors import PgpuError


def print_json(content: documents.Document) -> None:
    """Print one object as a result."""
    print(visible_json(json.dumps(content, ensure_ascii=False, indent=2)))


def print_json_line(content: documents.Document, *, to_stderr: bool = False) -> None:
    """Print one object on one line, for streams of objects."""
    line = visible_json(json.dumps(content, ensure_ascii=False))
    print(line, file=sys.stderr if to_stderr else sys.stdout, flush=True)


def print_note(line: str) -> None:
    """Say something that is no result."""
    print(f"pgpu: {visible(line)}", file=sys.stderr, flush=True)


def print_error(error: PgpuError, *, as_json: bool) -> None:
    """Say what went wrong, in one line and a hint, or as JSON."""
    if as_json:
        print_json_line(documents.of_error(error), to_stderr=True)
        return
    print_note(_on_one_line(error))
    if error.hint:
        print_note(f"hint: {error.hint}")


def print_table(table: Any) -> None:
    """Print a rich table: as wide as the terminal, or uncut into a pipe."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    console = Console(file=sys.stdout, width=None if is_terminal else 240, highlight=False)
    console.print(table, soft_wrap=not is_terminal)


def _on_one_line(error: PgpuError) -> str:
    return " ".join(str(error).split()) or type(error).__name__
