"""What a function says about itself, found out in a process of its own: its module is the user's code.

A new version must not meet the old one's modules, so this process imports neither: `__main__.py` beside this file does. It
refuses to construct the handler.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import Declaration, parse_declaration
from pgpu.functions.dev.function_source import FunctionSource


@dataclass(frozen=True, slots=True)
class FunctionDescription:
    """A function whose module could be imported."""

    name: str
    declaration: Declaration
    """The decorator's words, and over them those of `pgpu.toml`."""

    body: str | None
    """An example of a request's JSON; None where the body is taken as it is."""


def describe_function(place: FunctionSource, name: str | None = None) -> FunctionDescription:
    """Ask a function's code.

    Args:
        place: Where it lies.
        name: What to call it; None for its section's name or one made of the callable's.

    Raises:
        RequestError: It is no handler, or cannot be imported; then the message is the last line that was said.
    """
    command = (sys.executable, "-P", "-m", __package__, place.app, "--source", str(place.source))
    section = () if place.name is None else ("--section", place.name)
    done = subprocess.run((*command, *section), capture_output=True, text=True, check=False, cwd=place.source)
    said = _said(done.stdout)
    if done.returncode != 0 or said is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["it ended without a word"]
        raise RequestError(lines[-1], hint=_where(lines))
    if "error" in said:
        raise RequestError(said["error"], hint=said["hint"])
    return FunctionDescription(name or said["name"], parse_declaration(said["words"]), said["body"])


def _said(output: str) -> dict[str, Any] | None:
    """Return what the last line tells; None where the module ended its process before that."""
    try:
        said = json.loads(output.splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def _where(lines: list[str]) -> str | None:
    """Return the last place in the traceback."""
    return next((line.strip() for line in reversed(lines) if line.lstrip().startswith("File ")), None)
