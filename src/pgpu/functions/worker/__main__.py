"""`python -m pgpu.functions.worker`: a zygote. A front starts it; nobody else has reason to."""

import argparse
import json
import signal
import socket
import sys
from pathlib import Path

from pgpu.functions.worker.zygote import ZygoteArguments, main


def _parse(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pgpu.functions.worker", description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--app", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--declaration", type=json.loads, default={})
    parser.add_argument("--control", type=int, required=True, help="descriptor of the socket to the front")
    parser.add_argument("--front", type=int, required=True, help="process id of the front")
    return parser.parse_args(words)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a front holds back what it hears of its slice
    said = _parse(sys.argv[1:])
    birth = ZygoteArguments(said.name, said.app, said.source, said.declaration, said.front)
    sys.exit(main(birth, socket.socket(fileno=said.control)))
