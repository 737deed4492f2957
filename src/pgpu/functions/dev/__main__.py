"""`python -m pgpu.functions.dev APP --source DIRECTORY`: imports a function and describes it in one line of JSON.

A process of its own, so that `pgpu function dev` never imports the user's code. The handler is not constructed.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from pgpu.errors import RequestError
from pgpu.functions.api import default_name, dump_declaration, parse_declaration, read_project
from pgpu.functions.handler import REQUIRED, load
from pgpu.functions.protocols import Interpreter, example_body


def main() -> int:
    """Import the function and write its name, declaration and an example body, or the error, as one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m pgpu.functions.dev")
    parser.add_argument("app")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--section")
    options = parser.parse_args()
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
        answer = {"name": name, "words": dump_declaration(declaration), "body": body}
    except RequestError as exc:
        answer = {"error": str(exc), "hint": exc.hint}
    # On a line of its own, since the module may have printed without a final line break.
    sys.stdout.write("\n" + json.dumps(answer) + "\n")
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # exit handlers and threads of the user's module could write after the answer, or block the exit
