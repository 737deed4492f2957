"""`python -m pgpu.functions.replica`: the process of one replica.

`--app FILE_OR_MODULE:ATTR --source DIR --directory DIR [--http HOST:PORT] [--name N] [--declaration JSON]`
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from pgpu.functions.api import default_name
from pgpu.functions.replica.file_prefetch import read_ahead
from pgpu.functions.replica.slice_signals import block_slice_signals
from pgpu.functions.replica.zygote_process import ServedFunction, fork_zygote
from pgpu.functions.worker.child_processes import die_with_parent


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="pgpu.functions.replica", description="The HTTP process of a function's replica."
    )
    parser.add_argument("--app", required=True, help="module:attribute or file.py:attribute")
    parser.add_argument("--source", type=Path, required=True, help="directory that the module is in")
    parser.add_argument("--directory", type=Path, required=True, help="where http.sock and calls.sock are made")
    parser.add_argument("--http", type=_address, help="HOST:PORT to listen on as well")
    parser.add_argument("--parent", type=int, help="the parent's process id, if this is to leave when that dies")
    parser.add_argument("--name", help="the function's name; that of the attribute by default")
    parser.add_argument(
        "--health-seconds", type=float, default=10.0, help="how often an idle worker is asked how it is"
    )
    parser.add_argument("--declaration", type=json.loads, default={}, help="JSON; goes over what the decorator says")
    return parser.parse_args(words)


if __name__ == "__main__":
    said = _parse(sys.argv[1:])
    name = said.name or default_name(said.app.rpartition(":")[2].removesuffix(".py").replace(".", "-"))
    function = ServedFunction(name, said.app, said.source.resolve(), said.declaration)
    if said.parent is not None:
        die_with_parent(said.parent, signal.SIGTERM)
    first = fork_zygote(function)
    block_slice_signals()
    read_ahead(function.source)
    from pgpu.functions.replica.replica_server import ReplicaSettings, run  # meanwhile the zygote imports the function

    run(function, ReplicaSettings(said.directory, said.http, said.health_seconds), first)
