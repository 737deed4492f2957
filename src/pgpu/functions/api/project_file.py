"""`pgpu.toml`: declarations for callables whose code should not, or cannot, say them.

    [function.detector]
    app = "app.py:Detector"
    memory = "4GiB"

It refuses to merge: `from_words(section.words, declared(callable))` does, and the file has the last word.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.functions.api.declaration_fields import parse_declaration
from pgpu.functions.api.function_name import check_name

PROJECT_FILE = "pgpu.toml"


@dataclass(frozen=True, slots=True)
class ProjectSection:
    """One `[function.NAME]`: where its callable is, and what is declared of it."""

    app: str | None
    """`module:attribute` or `file.py:attribute`; None: not said."""

    words: Mapping[str, object]
    """What `from_words` reads."""


def read_project(directory: Path) -> dict[str, ProjectSection]:
    """Read a directory's `pgpu.toml`, by the functions' names; nothing where there is none.

    Raises:
        RequestError: It cannot be read, or says something that is not known.
    """
    try:
        text = (directory / PROJECT_FILE).read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{PROJECT_FILE} cannot be read: {error}") from error
    return parse_project(text)


def parse_project(text: str) -> dict[str, ProjectSection]:
    """Read the text of a `pgpu.toml`, by the functions' names.

    Raises:
        RequestError: It is no TOML, or says something that is not known.
    """
    try:
        tables = tomllib.loads(text).get("function", {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RequestError(f"{PROJECT_FILE} is not TOML: {error}") from error
    return {check_name(name): _section(name, table) for name, table in _table("function", tables).items()}


def _section(name: str, table: object) -> ProjectSection:
    words = _table(f"function.{name}", table)
    app = words.pop("app", None)
    if app is not None and not isinstance(app, str):
        raise RequestError(f"{PROJECT_FILE}, function {name}: app is not text", hint='write app = "app.py:Detector"')
    try:
        parse_declaration(words)
    except RequestError as error:
        raise RequestError(f"{PROJECT_FILE}, function {name}: {error}", hint=error.hint) from error
    return ProjectSection(app, words)


def _table(name: str, value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise RequestError(f"{PROJECT_FILE}: {name} is not a table", hint="write it like [function.detector]")
    return dict(value)
