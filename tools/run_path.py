"""Count what one `pgpu run -- env` enters in the command's own process: functions and files of pgpu, ledger transactions.

Runs the command on simulated GPUs with a ledger of its own, under `sys.setprofile`, and prints one line. Module bodies,
class bodies and comprehensions are not counted as functions; a file counts if one of its functions ran.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_CHILD = """
import os, sqlite3, sys, threading
root, report = sys.argv[1:3]
entered, transactions, pid = set(), [0], os.getpid()

def note(frame, event, _argument):
    code = frame.f_code
    # CO_OPTIMIZED is set for functions only, not for bodies of modules and classes.
    if event == "call" and code.co_flags & 1 and code.co_filename.startswith(root) and not code.co_name.startswith("<"):
        entered.add((code.co_filename, code.co_firstlineno, code.co_name))

def traced(statement):
    transactions[0] += statement.upper().startswith("BEGIN")

def connect(*arguments, _connect=sqlite3.connect, **named):
    connection = _connect(*arguments, **named)
    connection.set_trace_callback(traced)
    return connection

sqlite3.connect = connect
threading.setprofile(note)
sys.setprofile(note)
from pgpu.cli.main import main
sys.argv = ["pgpu", *sys.argv[3:]]
try:
    main()
finally:
    sys.setprofile(None)
    if os.getpid() == pid:
        with open(report, "w") as file:
            print(len(entered), len({name for name, _, _ in entered}), transactions[0], file=file)
            print(*sorted(f"{name.removeprefix(root)}:{line} {function}" for name, line, function in entered), sep="\\n", file=file)
"""


def measure() -> tuple[list[int], list[str]]:
    """Return (functions, files, ledger transactions) of one run, and the functions."""
    with tempfile.TemporaryDirectory(prefix="pgpu-path-", dir="/dev/shm") as directory:
        report = Path(directory, "report")
        environment = {
            **os.environ,
            "PGPU_HOST": "embedded",
            "PGPU_SIMULATE": "RTX 3090",
            "PGPU_STATE_DIR": f"{directory}/state",
            "PGPU_RUNTIME_DIR": directory,
        }
        command = [
            sys.executable,
            "-c",
            _CHILD,
            f"{ROOT}/src/pgpu/",
            str(report),
            "run",
            "--memory",
            "1GiB",
            "--",
            "env",
        ]
        for _ in range(2):  # The first run also creates the ledger and proves the enforcer.
            done = subprocess.run(command, env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=False)
            if done.returncode:
                sys.exit(done.stderr.decode(errors="replace"))
        counts, *functions = report.read_text().splitlines()
    return [int(count) for count in counts.split()], functions


def main() -> None:
    """Print the counts; with `--list` also the functions."""
    (functions, files, transactions), entered = measure()
    print(f"pgpu run -- env: {functions} functions in {files} files of pgpu, {transactions} ledger transactions")
    if "--list" in sys.argv[1:]:
        print(*entered, sep="\n")


if __name__ == "__main__":
    main()
