"""What one user's largest requests cost the server, its disk and the other users (`python -m benchmarks.request_costs`).

A real server of root, with a full simulated GPU, and two users with UIDs of their own. One lists the queue and all jobs, submits a
job and cancels it, again and again; the other one sends large requests meanwhile: long variables, ten thousand elements, both, and
four clients that submit and cancel arrays. The bar is for every route of the first user, in every scenario: 99 of 100 answers
within a second. What the server held at most, what the ledger took and kept, and the sizes of the answers stand beside it.
Writes one JSON file into benchmarks/results; 1 where the bar is missed.
"""

import argparse
import grp
import http.client
import json
import os
import shutil
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.served import ServerProcess, serving

LARGE_UID, OTHER_UID = 61_001, 61_002
GROUP = next(each for each in grp.getgrall() if each.gr_name in {"users", "nogroup", "nobody"})
MOST_P99_SECONDS = 1.0
VARIABLES = [[f"VARIABLE_{number}", "x" * 100_000] for number in range(19)]
"""1.9 MB."""

PAUSE_SECONDS = 0.02
QUIET_SECONDS = 5.0
STORM_SECONDS = 20.0
STORM_CLIENTS = 4
SHRINK_SECONDS = 25.0
"""An agent gives back what is free every ten seconds."""


def array(count: int, environment: Sequence[Sequence[str]] = ()) -> dict[str, Any]:
    """Return a request for an array of processes that do not fit."""
    spec = {"command": ["true"], "runtime": "process", "working_directory": "/", "environment": environment}
    job = {"spec": spec, "request": {"memory_bytes": 20 << 30}, "array": {"indices": list(range(count))}}
    return {"submissions": [job], "environment": [["PATH", "/usr/bin:/bin"]]}


SCENARIOS = {
    "variables_1.9_mb_x_200": array(200, VARIABLES),
    "elements_10000": array(10_000),
    "variables_1.9_mb_x_10000": array(10_000, VARIABLES),
}
ONE = array(1) | {"submissions": [{**array(1)["submissions"][0], "array": None}]}
CANCEL = "/v1/jobs/cancel"


class Connection(http.client.HTTPConnection):
    """One connection to the server's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("pgpu", timeout=600)
        self._path = path

    def connect(self) -> None:
        """See `HTTPConnection`."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(600)
        self.sock.connect(str(self._path))


def ask(path: Path, method: str, route: str, body: object = None) -> tuple[int, bytes, float]:
    """Send one request over a connection of its own, as each command does; return status, answer and seconds."""
    text = None if body is None else json.dumps(body)
    began = time.perf_counter()
    connection = Connection(path)
    connection.request(method, route, text)
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    return answer.status, data, time.perf_counter() - began


def good(answer: tuple[int, bytes, float]) -> tuple[bytes, float]:
    """Return body and seconds of an answer that is no error."""
    status, data, seconds = answer
    if status >= 400:
        raise RuntimeError(data.decode(errors="replace")[:300])
    return data, seconds


def as_user(uid: int, act: Callable[[], Any]) -> Callable[[], Any]:
    """Run a function in a process of a user; return a function that waits for its result, which is JSON."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([GROUP.gr_gid])
            os.setgid(GROUP.gr_gid)
            os.setuid(uid)
            with os.fdopen(writer, "w") as file:
                json.dump(act(), file)
        finally:
            os._exit(0)
    os.close(writer)

    def result() -> Any:
        with os.fdopen(reader) as file:
            text = file.read()
        os.waitpid(pid, 0)
        return json.loads(text)

    return result


def other_user(path: Path, over: int) -> dict[str, list[float]]:
    """List, submit and cancel, beside a job that waits, until a descriptor is at its end.

    Returns:
        The seconds of each route's answers.
    """
    found: dict[str, list[float]] = defaultdict(list)
    os.set_blocking(over, False)
    waiting = json.loads(good(ask(path, "POST", "/v1/jobs", ONE))[0])[0]["id"]
    while True:
        try:
            if not os.read(over, 1):
                ask(path, "POST", CANCEL, {"jobs": [waiting], "grace_seconds": 0})
                return found
        except BlockingIOError:
            pass
        for name, method, route in (("queue", "GET", "/v1/queue"), ("list", "GET", "/v1/jobs")):
            found[name].append(good(ask(path, method, route))[1])
        data, seconds = good(ask(path, "POST", "/v1/jobs", ONE))
        found["submit"].append(seconds)
        job = {"jobs": [json.loads(data)[0]["id"]], "grace_seconds": 0}
        found["cancel"].append(good(ask(path, "POST", CANCEL, job))[1])
        time.sleep(PAUSE_SECONDS)  # noqa: TID251 - a user's own pace


@contextmanager
def beside_other_user(path: Path) -> Iterator[dict[str, dict[str, float]]]:
    """Let the other user work meanwhile; afterwards the mapping has the figures of its routes."""
    over, end = os.pipe()

    def act() -> dict[str, list[float]]:
        os.close(end)
        return other_user(path, over)

    result = as_user(OTHER_UID, act)
    os.close(over)
    figures: dict[str, dict[str, float]] = {}
    try:
        yield figures
    finally:
        os.close(end)
        figures |= {name: summary(seconds) for name, seconds in result().items()}


def summary(seconds: Sequence[float]) -> dict[str, float]:
    """Return count and quantiles."""
    ordered = sorted(seconds)
    return {
        "count": len(ordered),
        "p50_s": round(statistics.median(ordered), 3),
        "p99_s": round(ordered[max(0, -(-99 * len(ordered) // 100) - 1)], 3),
        "max_s": round(ordered[-1], 3),
    }


def large_request(path: Path, body: object) -> dict[str, Any]:
    """Submit, list and cancel as the other user's neighbour; return seconds and sizes."""

    def act() -> dict[str, Any]:
        status, data, seconds = ask(path, "POST", "/v1/jobs", body)
        found = {"status": status, "submit_s": round(seconds, 2), "answer_mb": round(len(data) / 1e6, 2)}
        if status != 201:
            return {**found, "error": data.decode()[:300]}
        ids = [each["id"] for each in json.loads(data)]
        _, data, seconds = ask(path, "GET", "/v1/queue")
        found |= {"queue_s": round(seconds, 2), "queue_mb": round(len(data) / 1e6, 2)}
        time.sleep(QUIET_SECONDS)  # noqa: TID251 - the other user works beside the waiting jobs
        _, data, seconds = ask(path, "POST", CANCEL, {"jobs": ids, "grace_seconds": 0})
        return {**found, "cancel_s": round(seconds, 2), "cancel_answer_mb": round(len(data) / 1e6, 2)}

    found: dict[str, Any] = as_user(LARGE_UID, act)()
    return found


def quiet() -> dict[str, Any]:
    """Leave the other user alone with the server for a time."""
    time.sleep(QUIET_SECONDS)  # noqa: TID251 - nothing happens meanwhile
    return {}


def storm(path: Path) -> dict[str, Any]:
    """Submit and cancel ten thousand elements with several clients for a time; return how often each was answered."""

    def act() -> dict[str, int]:
        answers: dict[str, int] = defaultdict(int)
        deadline = time.monotonic() + STORM_SECONDS
        body = SCENARIOS["elements_10000"]
        while time.monotonic() < deadline:
            status, data, _ = ask(path, "POST", "/v1/jobs", body)
            answers[str(status)] += 1
            if status == 201:
                ids = [each["id"] for each in json.loads(data)]
                status, _, _ = ask(path, "POST", CANCEL, {"jobs": ids, "grace_seconds": 0})
                answers[f"cancel {status}"] += 1
        return answers

    total: dict[str, int] = defaultdict(int)
    for result in [as_user(LARGE_UID, act) for _ in range(STORM_CLIENTS)]:
        for name, count in result().items():
            total[name] += count
    return {"clients": STORM_CLIENTS, "answers": dict(total)}


def ledger_mb(state: Path) -> float:
    """Return the size of the ledger and its log, in MB."""
    return round(sum(each.stat().st_size for each in state.glob("ledger.db*") if "version" not in each.name) / 1e6, 1)


@contextmanager
def most(read: Callable[[], float]) -> Iterator[dict[str, float]]:
    """Read a figure twenty times a second; afterwards the mapping has its maximum."""
    found, over = {"most": read()}, threading.Event()

    def keep_reading() -> None:
        while not over.wait(0.05):
            found["most"] = max(found["most"], read())

    thread = threading.Thread(target=keep_reading)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()


def measured(server: ServerProcess, state: Path, act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run one scenario beside the other user."""
    process = Path(f"/proc/{server.process.pid}")
    (process / "clear_refs").write_text("5")  # from here on VmHWM counts anew
    with most(lambda: ledger_mb(state)) as disk, beside_other_user(server.socket) as figures:
        found = act()
    lines = (process / "status").read_text().splitlines()
    peak_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    found |= {"server_peak_mb": round(peak_kib * 1.024e-3, 1), "ledger_most_mb": disk["most"]}
    return {**found, "other_user": figures}


def main() -> int:
    """Measure, print, write; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="names of scenarios")
    parser.add_argument("--label", default="", help="of this code, in the file and its name")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="pgpu-costs-", dir="/dev/shm"))
    directory.chmod(0o711)
    state = Path(tempfile.mkdtemp(prefix="pgpu-costs-"))  # on a disk, where commits are synced
    report: dict[str, Any] = {**circumstances(), "label": words.label, "bar_p99_s": MOST_P99_SECONDS, "scenarios": {}}
    try:
        with serving(directory, state_dir=state, environment={"PGPU_SUBMITTERS": GROUP.gr_name}) as server:
            path = server.socket
            full = json.loads(json.dumps(ONE).replace('["true"]', '["sleep", "3600"]'))
            holder = json.loads(ask(path, "POST", "/v1/jobs", full)[1])[0]["id"]
            acts: dict[str, Callable[[], dict[str, Any]]] = {
                "alone": quiet,
                **{name: partial(large_request, path, body) for name, body in SCENARIOS.items()},
                "storm": partial(storm, path),
            }
            for name, act in acts.items():
                if words.only is None or name in words.only:
                    report["scenarios"][name] = measured(server, state, act)
                    print(name, json.dumps(report["scenarios"][name]), file=sys.stderr, flush=True)
            time.sleep(SHRINK_SECONDS)  # noqa: TID251 - the agent tidies meanwhile
            report["ledger_kept_mb"] = ledger_mb(state)
            ask(path, "POST", CANCEL, {"jobs": [holder], "grace_seconds": 0})
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(state, ignore_errors=True)
    report["missed"] = {
        f"{name}: {route}": figures["p99_s"]
        for name, found in report["scenarios"].items()
        for route, figures in found["other_user"].items()
        if figures["p99_s"] > MOST_P99_SECONDS
    }
    ending = f"-{words.label}" if words.label else ""
    (words.output / f"request-costs-{report['date']}{ending}.json").write_text(
        json.dumps(report, indent=2) + "\n", "utf-8"
    )
    print(json.dumps(report, indent=2))
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
