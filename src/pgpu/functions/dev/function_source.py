"""Where a function's code lies: from what a user writes to a directory and a name in it.

It refuses to import anything.
"""

from dataclasses import dataclass
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.functions.api import PROJECT_FILE, read_project
from pgpu.units import quoted


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """A function before anybody looked at its code."""

    source: Path
    """The directory that is watched, that imports begin in and that the function runs in."""

    app: str
    """`file.py:Attribute` or `module:Attribute`, as seen from there."""

    name: str | None = None
    """Of its section in `pgpu.toml`; None where it has none."""


def find_function(words: str, directory: Path) -> FunctionSource:
    """Find a function.

    Args:
        words: `path/to/app.py:Detector`, `package.module:Detector`, or the name of a section of `pgpu.toml`.
        directory: Where the user is.

    Raises:
        RequestError: There is no such file or section, or `pgpu.toml` cannot be read.
    """
    path, _, attribute = words.partition(":")
    if path.endswith(".py"):
        return _of_file(directory / path, attribute)
    project = read_project(directory)
    if words in project:
        app = project[words].app
        if app is None:
            raise RequestError(
                f"{PROJECT_FILE}, function {words}: app is missing", hint='write app = "app.py:Detector"'
            )
        return FunctionSource(directory, app, words)
    if ":" not in words and "." not in words:
        raise RequestError(
            f"{quoted(words)} is no function in {PROJECT_FILE}",
            hint="write app.py:Detector, or give it a section there",
        )
    return FunctionSource(directory, words, _section_of(directory, words))


def _of_file(path: Path, attribute: str) -> FunctionSource:
    if not path.is_file():
        raise RequestError(f"there is no file {quoted(str(path))}", hint="write it like app.py:Detector")
    source = path.parent.resolve()
    app = f"{path.name}:{attribute}" if attribute else path.name
    return FunctionSource(source, app, _section_of(source, app))


def _section_of(directory: Path, app: str) -> str | None:
    return next((name for name, section in read_project(directory).items() if section.app == app), None)
