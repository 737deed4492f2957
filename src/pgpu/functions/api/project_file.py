"""`pgpu.toml`: declarations for callables whose source cannot or should not be decorated.

    [function.detector]
    app = "app.py:Detector"
    memory = "4GiB"

A section has priority over the decorator: callers merge them by `parse_declaration(section.words, attached_declaration(it))`.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.functions.api.declaration import check_name, parse_declaration

PROJECT_FILE = "pgpu.toml"


@dataclass(frozen=True, slots=True)
class ProjectSection:
    """One `[function.NAME]`."""

    app: str | None
    """`module:attribute` or `file.py:attribute`; None if the section has no `app`."""

    words: Mapping[str, object]
    """The other keys, as `parse_declaration` takes them."""


def read_project(directory: Path) -> dict[str, ProjectSection]:
    """Read the `pgpu.toml` of a directory; empty if there is no such file.

    Returns:
        Sections by the function's name.

    Raises:
        RequestError: The file cannot be read, is not TOML, or has an invalid section.
    """
    try:
        text = (directory / PROJECT_FILE).read_text("utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{PROJECT_FILE} cannot be read: {error}") from error
    return parse_project(text)


def parse_project(text: str) -> dict[str, ProjectSection]:
    """Parse the text of a `pgpu.toml` into sections by the function's name.

    Raises:
        RequestError: The text is not TOML, or has an invalid section.
    """
    try:
        tables = tomllib.loads(text).get("function", {})
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RequestError(f"{PROJECT_FILE} is not TOML: {error}") from error
    return {check_name(name): _parse_section(name, table) for name, table in _table("function", tables).items()}


def _parse_section(name: str, table: object) -> ProjectSection:
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
