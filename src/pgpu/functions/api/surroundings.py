"""What a replica finds around its code: variables, in the text form of a declaration."""

import re
from collections.abc import Mapping

from pgpu.errors import RequestError
from pgpu.units import is_text, quoted

_OWN_VARIABLES = re.compile(r"(PGPU|LD)_.*|PYTHON(PATH|HOME)")
"""They would change what pgpu's own processes of a replica load."""


def parse_environment(value: object) -> dict[str, str]:
    """Parse variables: a table of texts by name.

    Raises:
        RequestError: It is no such table, or a name is not allowed.
    """
    if not isinstance(value, Mapping):
        raise RequestError(f"{quoted(str(value))} is not a table", hint='write it like {"MODEL": "small"}')
    return {check_variable(name): _check_value(name, each) for name, each in value.items()}


def check_variable(name: object) -> str:
    """Return the name of a variable unchanged.

    Raises:
        RequestError: It is none, or is pgpu's or the loader's.
    """
    if not isinstance(name, str) or not name or re.search(r"[=\s\0]", name) or not is_text(name):
        raise RequestError(f"{quoted(str(name))} is not a variable's name", hint="letters, digits and _")
    if _OWN_VARIABLES.fullmatch(name):
        raise RequestError(
            f"{quoted(name)} would change what pgpu itself loads", hint="set it in the image, or in the function's code"
        )
    return name


def _check_value(name: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value or not is_text(value):
        raise RequestError(f"the value of {quoted(name)} is not text", hint='write it in quotes: "8"')
    return value
