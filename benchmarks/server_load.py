"""Latency of a server's clients: 64 at once that list and submit, and one that runs a command on an idle GPU.

Run `python -m benchmarks.server_load [--clients 64] [--requests 20]`; the result goes to benchmarks/results. Under load the
GPU is full, so that what is submitted waits and nothing but the server, the ledger and the agent works.
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


ASK_TIME = json.loads(json.dumps(ASK).replace('["true"]', '["date", "+%s%N"]'))
MULTIPLEXED_HEADER_BYTES = 8
TARGETS = {"accepted_to_exec_ms": 50.0}
"""From the project's design."""


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
    """Send one request over a connection of its own, as each command does, and record its duration."""
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


def said(path: Path, method: str, route: str, body: object = None) -> bytes:
    """Return the server's response time for a single client."""
    connection = Connection(path)
    connection.request(method, route, None if body is None else json.dumps(body))
    data = connection.getresponse().read()
    connection.close()
    return data


def starts(path: Path, count: int) -> dict[str, dict[str, float]]:
    """Run jobs one after another that print when they run, in ms from the request's first byte and from its acceptance."""
    since_asked, since_accepted = [], []
    for _ in range(count):
        asked_seconds = time.time()
        (job,) = json.loads(said(path, "POST", "/v1/jobs", ASK_TIME))
        said(path, "GET", f"/v1/jobs/{job['id']}/wait")
        ran_seconds = int(said(path, "GET", f"/v1/jobs/{job['id']}/logs")[MULTIPLEXED_HEADER_BYTES:]) / 1e9
        since_asked.append(1000 * (ran_seconds - asked_seconds))
        since_accepted.append(1000 * (ran_seconds - job["created_at_seconds"]))
    return {"asked_to_exec_ms": spread(since_asked), "accepted_to_exec_ms": spread(since_accepted)}


def spread(values: list[float]) -> dict[str, float]:
    """Return the least, the median and the most."""
    return {"min": round(min(values), 1), "median": round(statistics.median(values), 1), "max": round(max(values), 1)}


def load(path: Path, clients: int, requests: int) -> dict[str, dict[str, float]]:
    """Have so many clients list and submit in turn, all at once."""
    listed, paged, submitted = Tally(), Tally(), Tally()
    ready = threading.Barrier(clients)

    def client() -> None:
        ready.wait()
        for _ in range(requests):
            ask(path, "POST", "/v1/jobs", ASK, submitted)
            ask(path, "GET", "/v1/jobs", None, listed)
            ask(path, "GET", "/v1/jobs?limit=50", None, paged)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"list": listed.summary(), "list_a_page_of_50": paged.summary(), "submit": submitted.summary()}


def main() -> None:
    """Measure once and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=5)
    parser.add_argument("--starts", type=int, default=30, help="jobs that are timed from request to exec")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="pgpu-load-", dir="/dev/shm"))
    try:
        with serving(directory) as server:
            began = starts(server.socket, words.starts)
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
    report = {
        **circumstances(),
        "is_real_time": os.sched_getscheduler(0) in {os.SCHED_FIFO, os.SCHED_RR},
        "clients": words.clients,
        "requests_each": words.requests,
        **found,
        "starts": began,
        "targets": TARGETS,
    }
    path = words.output / f"server-load-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
