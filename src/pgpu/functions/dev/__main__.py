"""`python -m pgpu.functions.dev APP --source DIRECTORY`: imports a function and says what it is, as one line of JSON.

It refuses to construct it.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.functions.api import default_name, dump_declaration, parse_declaration, read_project
from pgpu.functions.handler import REQUIRED, Signature, load
from pgpu.functions.protocols import Interpreter, example_body


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
        declaration = parse_declaration(over, loaded.declaration)
        name = words.section or default_name(loaded.attribute)
        signature = loaded.signature(declaration)
        loaded.check_arguments(declaration)
        Interpreter(signature, name)  # refuses what no request can hold
        body = _example(signature)
    except RequestError as exc:
        return _said({"error": str(exc), "hint": exc.hint})
    return _said({"name": name, "words": dump_declaration(declaration), "body": body})


def _said(answer: Mapping[str, object]) -> int:
    """Say it on a line of its own, whatever the module has printed."""
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


def _example(signature: Signature) -> str | None:
    """Return JSON for the parameters that a request must fill; None where the one there is takes the body as it is."""
    needed = [each.annotation for each in signature.parameters if each.default is REQUIRED]
    return None if needed == [bytes] else json.dumps(example_body(signature))


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # what the module registered for its end, or its threads, would speak after us or hold us up
