"""64 clients on a server at once, listing and submitting: how long each answer took, and that none failed.

Run `python -m benchmarks.server_load [--clients 64] [--requests 20]`; the result goes to benchmarks/results. The GPU is
full, so that what is submitted waits and nothing but the server, the ledger and the keeper works.
"""

import argparse
import http.client
import json
import os
import shutil
import socket
import statistics
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.served import serving

ASK = {
    "submissions": [
        {
            "spec": {"command": ["true"], "runtime": "process", "working_directory": "/"},
            "request": {"memory_bytes": 20 << 30},
        }
    ],
    "environment": [["PATH", os.environ["PATH"]]],
}


@dataclass
class Tally:
    """What the clients saw of one route."""

    seconds: list[float] = field(default_factory=list)
    errors: int = 0

    def summary(self) -> dict[str, float]:
        """Return counts and milliseconds."""
        cuts = statistics.quantiles(self.seconds, n=100)
        return {
            "answers": len(self.seconds),
            "errors": self.errors,
            "p50_ms": round(1000 * statistics.median(self.seconds), 1),
            "p99_ms": round(1000 * cuts[98], 1),
            "max_ms": round(1000 * max(self.seconds), 1),
        }


class Connection(http.client.HTTPConnection):
    """One client's connection to the server's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("pgpu", timeout=120)
        self._path = path

    def connect(self) -> None:
        """See `HTTPConnection`."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, route: str, body: object, tally: Tally) -> None:
    """Ask once, over a connection of its own as each command does, and note how long it took."""
    began = time.perf_counter()
    connection = Connection(path)
    try:
        connection.request(method, route, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        answer.read()
        is_good = answer.status < 400
    except (OSError, http.client.HTTPException):
        is_good = False
    finally:
        connection.close()
    tally.seconds.append(time.perf_counter() - began)
    tally.errors += not is_good


def load(path: Path, clients: int, requests: int) -> dict[str, dict[str, float]]:
    """Have so many clients list and submit in turn, all at once."""
    listed, submitted = Tally(), Tally()
    ready = threading.Barrier(clients)

    def client() -> None:
        ready.wait()
        for _ in range(requests):
            ask(path, "POST", "/v1/jobs", ASK, submitted)
            ask(path, "GET", "/v1/jobs", None, listed)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"list": listed.summary(), "submit": submitted.summary()}


def main() -> None:
    """Measure once and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="pgpu-load-", dir="/dev/shm"))
    try:
        with serving(directory) as server:
            first = Tally()
            full = json.loads(json.dumps(ASK).replace('["true"]', '["sleep", "600"]'))
            ask(server.socket, "POST", "/v1/jobs", full, first)
            found = load(server.socket, words.clients, words.requests)
            everything = Connection(server.socket)
            everything.request("GET", "/v1/jobs")
            ids = [report["job"]["id"] for report in json.loads(everything.getresponse().read())]
            everything.request("POST", "/v1/jobs/cancel", json.dumps({"jobs": ids, "grace_seconds": 0}))
            everything.getresponse().read()
            everything.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    report = {**circumstances(), "clients": words.clients, "requests_each": words.requests, **found}
    path = words.output / f"server-load-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
