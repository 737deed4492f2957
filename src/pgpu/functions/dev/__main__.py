"""`python -m pgpu.functions.dev APP --source DIRECTORY`: imports a function and describes it in one line of JSON.

A process of its own, so that `pgpu function dev` never imports the user's code. The handler is not constructed.
"""

import argparse
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from pgpu.errors import RequestError
from pgpu.functions.api import FormerKeyWarning, default_name, dump_declaration, parse_declaration, read_project
from pgpu.functions.handler import REQUIRED, load
from pgpu.functions.protocols import Interpreter, example_body


def main() -> int:
    """Import the function and write its name, declaration and an example body, or the error, as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m pgpu.functions.dev")
    parser.add_argument("app")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--section")
    options = parser.parse_args()
    with warnings.catch_warnings(record=True, action="always", category=FormerKeyWarning) as noted:
        answer = _describe(options)
    answer["notes"] = sorted({str(each.message) for each in noted if each.category is FormerKeyWarning})
    # On a line of its own, since the module may have printed without a final line break.
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


def _describe(options: argparse.Namespace) -> dict[str, Any]:
    try:
        loaded = load(options.app, options.source)
        section = read_project(options.source)[options.section].words if options.section else {}
        declaration = parse_declaration(section, loaded.declaration)
        name = options.section or default_name(loaded.attribute)
        signature = loaded.signature(declaration)
        loaded.check_arguments(declaration)
        Interpreter(signature, name)  # raises for parameters that no request can fill
        needed = [each.annotation for each in signature.parameters if each.default is REQUIRED]
        body = None if needed == [bytes] else json.dumps(example_body(signature))
    except RequestError as exc:
        return {"error": str(exc), "hint": exc.hint}
    return {"name": name, "words": dump_declaration(declaration), "body": body}


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # exit handlers and threads of the user's module could write after the answer, or block the exit
