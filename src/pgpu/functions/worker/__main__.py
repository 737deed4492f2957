"""`python -m pgpu.functions.worker`: the zygote process, started by a replica."""

import argparse
import json
import signal
import socket
import sys
from pathlib import Path

from pgpu.functions.worker.zygote import ZygoteArguments, main

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a replica starts this process with its slice signals blocked
    parser = argparse.ArgumentParser(prog="pgpu.functions.worker", description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--app", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--declaration", type=json.loads, default={})
    parser.add_argument("--control", type=int, required=True, help="descriptor of the socket to the replica")
    parser.add_argument("--front", type=int, required=True, help="process id of the replica")
    options = parser.parse_args()
    arguments = ZygoteArguments(options.name, options.app, options.source, options.declaration, options.front)
    sys.exit(main(arguments, socket.socket(fileno=options.control)))
