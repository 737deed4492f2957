"""`python -m pgpu.functions.replica`: the process of one replica.

`--app FILE_OR_MODULE:ATTR --source DIR --directory DIR [--http HOST:PORT] [--name N] [--declaration JSON]
[--secret-variable NAME:env=VARIABLE]…`
"""

import argparse
import json
import os
import signal
import sys
from pathlib import Path

from pgpu.functions.api import default_name
from pgpu.functions.api.surroundings import parse_secret
from pgpu.functions.ipc.local_sockets import parse_address
from pgpu.functions.replica.startup import ServedFunction, block_slice_signals, export_secrets, fork_zygote, read_ahead
from pgpu.functions.worker.child_processes import die_with_parent


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pgpu.functions.replica", description="The HTTP process of a function's replica."
    )
    parser.add_argument("--app", required=True, help="module:attribute or file.py:attribute")
    parser.add_argument("--source", type=Path, required=True, help="directory of the module")
    parser.add_argument("--directory", type=Path, required=True, help="directory for http.sock and calls.sock")
    parser.add_argument("--http", type=parse_address, help="HOST:PORT to listen on as well")
    parser.add_argument("--parent", type=int, help="exit when the parent with this process id dies")
    parser.add_argument("--name", help="the function's name; by default that of the attribute")
    parser.add_argument(
        "--health-seconds", type=float, default=10.0, help="interval of health probes of an idle worker"
    )
    parser.add_argument("--declaration", type=json.loads, default={}, help="JSON; overrides the decorator's values")
    parser.add_argument("--secret-variable", type=parse_secret, action="append", default=[], help="NAME:env=VARIABLE")
    return parser.parse_args(words)


if __name__ == "__main__":
    options = _parse(sys.argv[1:])
    name = options.name or default_name(options.app.rpartition(":")[2].removesuffix(".py").replace(".", "-"))
    function = ServedFunction(name, options.app, options.source.resolve(), options.declaration)
    if options.parent is not None:
        die_with_parent(options.parent, signal.SIGTERM)
    export_secrets(options.secret_variable, Path(os.environ.get("PGPU_SECRETS", "/run/secrets")))
    first = fork_zygote(function)
    block_slice_signals()
    read_ahead(function.source)
    # The zygote imports the function while this process loads the server.
    from pgpu.functions.replica.replica_server import ReplicaSettings, run

    run(function, ReplicaSettings(options.directory, options.http, options.health_seconds), first)
