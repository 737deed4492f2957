"""`python -m pgpu.functions.dev APP --source DIRECTORY`: imports a function and says what it is, as one line of JSON.

It refuses to construct it.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.declaring import from_words, name_of, read_project, to_words
from pgpu.functions.handler import REQUIRED, load

_EXAMPLES: Mapping[Any, object] = {int: 1, float: 1.0, str: "text", bool: True}


def main() -> int:
    """Import the function, and write its name, declaration and an example as one line of JSON, or why it is none."""
    parser = argparse.ArgumentParser(prog="python -m pgpu.functions.dev")
    parser.add_argument("app")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--section")
    words = parser.parse_args()
    try:
        loaded = load(words.app, words.source)
        over = read_project(words.source)[words.section].words if words.section else {}
        declaration = from_words(over, loaded.declaration)
        body = _example([each for each in loaded.signature(declaration).parameters if each.default is REQUIRED])
        name = words.section or name_of(loaded.attribute)
    except RequestError as exc:
        return _said({"error": str(exc), "hint": exc.hint})
    return _said({"name": name, "words": to_words(declaration), "body": body})


def _said(answer: Mapping[str, object]) -> int:
    """Say it on a line of its own, whatever the module has printed."""
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


def _example(needed: Sequence[Any]) -> str | None:
    """Return JSON for the parameters that a request must fill; None where the one there is takes the body as it is."""
    if len(needed) == 1 and needed[0].annotation is bytes:
        return None
    return json.dumps({each.name: _EXAMPLES.get(each.annotation, []) for each in needed})


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # what the module registered for its end, or its threads, would speak after us or hold us up
