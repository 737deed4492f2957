"""A function's source: its directory and name, found from a command line, and its description.

The description comes from a child process (`__main__.py`), because it imports the user's module and a new version must not
meet the modules of the old one.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.functions.api import PROJECT_FILE, Declaration, parse_declaration, read_project
from pgpu.structs import Struct
from pgpu.units import quoted

NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
"""For processes that import the source: Python takes stored bytecode for current if a file of the same size was changed within the
same second, as an editor or a formatter does."""


class FunctionSource(Struct, frozen=True):
    """A function before its code is imported."""

    source: Path
    """The directory that is watched, first on the import path, and the function's working directory."""

    app: str
    """`file.py:Attribute` or `module:Attribute`, relative to `source`."""

    name: str | None = None
    """Of its section in `pgpu.toml`; None without a section."""


def find_function(name: str, directory: Path) -> FunctionSource:
    """Find a function by its name on the command line.

    Args:
        name: `path/to/app.py:Detector`, `package.module:Detector`, or the name of a section of `pgpu.toml`.
        directory: The user's working directory.

    Raises:
        RequestError: There is no such file or section, or `pgpu.toml` cannot be read.
    """
    path, _, attribute = name.partition(":")
    if path.endswith(".py"):
        file = directory / path
        if not file.is_file():
            raise RequestError(f"there is no file {quoted(str(file))}", hint="write it like app.py:Detector")
        source = file.parent.resolve()
        app = f"{file.name}:{attribute}" if attribute else file.name
        return FunctionSource(source, app, _section_of(source, app))
    project = read_project(directory)
    if name in project:
        section_app = project[name].app
        if section_app is None:
            raise RequestError(f"{PROJECT_FILE}, function {name}: app is missing", hint='write app = "app.py:Detector"')
        return FunctionSource(directory, section_app, name)
    if ":" not in name and "." not in name:
        raise RequestError(
            f"{quoted(name)} is no function in {PROJECT_FILE}",
            hint="write app.py:Detector, or add a section for it",
        )
    return FunctionSource(directory, name, _section_of(directory, name))


def _section_of(directory: Path, app: str) -> str | None:
    return next((name for name, section in read_project(directory).items() if section.app == app), None)


class FunctionDescription(Struct, frozen=True):
    """What a function's module declares, found by importing it."""

    name: str
    declaration: Declaration
    """Of the decorator, overridden by `pgpu.toml`."""

    body: str | None
    """JSON of an example request; None if the handler takes the raw body."""

    notes: tuple[str, ...] = ()
    """One line for each key of the release before."""


def describe_function(
    function: FunctionSource, name: str | None = None, environment: Mapping[str, str] | None = None
) -> FunctionDescription:
    """Import a function in a child process and return its description.

    Args:
        function: Its source.
        name: Overrides the name of its section, or the one derived from the callable's.
        environment: Variables for the import, over those of its section.

    Raises:
        RequestError: It is no handler, or cannot be imported; then the message is the last line of the traceback.
    """
    command = (sys.executable, "-P", "-m", __package__, function.app, "--source", str(function.source))
    section = () if function.name is None else ("--section", function.name)
    words = {} if function.name is None else read_project(function.source)[function.name].words
    variables = {**parse_declaration(words).environment, **(environment or {})}
    done = subprocess.run(
        (*command, *section),
        capture_output=True,
        text=True,
        check=False,
        cwd=function.source,
        env={**os.environ, **variables, **NO_BYTECODE},
    )
    # The module may have printed before. None: it ended the process before the description was written.
    try:
        answer = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        answer = None
    if done.returncode != 0 or not isinstance(answer, dict):
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["its import ended without a word"]
        place_line = next((line.strip() for line in reversed(lines) if line.lstrip().startswith("File ")), None)
        raise RequestError(lines[-1], hint=place_line)
    if "error" in answer:
        raise RequestError(answer["error"], hint=answer["hint"])
    return FunctionDescription(
        name or answer["name"], parse_declaration(answer["words"]), answer["body"], tuple(answer["notes"])
    )
