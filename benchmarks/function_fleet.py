"""Many functions on a machine with room for few of them at a time (`python -m benchmarks.function_fleet`).

`[--functions 200] [--slots 4] [--seconds 300] [--rate 2]`. A real server on a simulated GPU serves functions that do
nothing and hold memory, `--slots` of which fit. Calls come by a Zipf law (exponent 1) at random moments. Each must be
answered: by a warm replica, or by a cold start in the memory that the engine takes from the idle replica that is worth least.
Beside it, how many of the same calls would find a warm replica if the least recently used one gave way and nothing took time
(LRU). Writes one JSON file; exits 1 if a call was not answered with 200.
"""

import argparse
import io
import json
import random
import shutil
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.clearing import clear
from tests.served import ServerProcess, serving
from tests.system.functions.gateways import free_port

from pgpu.app.clients import open_functions
from pgpu.app.settings import Settings
from pgpu.client.functions_http import HttpFunctions
from pgpu.functions.deploying import pack_tree
from pgpu.model import Deployment

_HANDLER = "class Noop:\n    def __call__(self, x: int) -> int:\n        return x\n"
_SEED = 17
_GPU_GIB = 22.0
"""What slices of the simulated RTX 3090 may sum to, rounded down."""

_OK = 200


@dataclass(frozen=True)
class Called:
    """One call and what became of it."""

    status: int
    seconds: float
    was_cold: bool


def main() -> int:
    """Run it and write what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", type=int, default=200)
    parser.add_argument("--slots", type=int, default=4, help="replicas that fit at a time")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--rate", type=float, default=2.0, help="calls in a second")
    parser.add_argument("--output", type=Path, default=RESULTS)
    words = parser.parse_args()
    arrivals = trace(words.functions, words.seconds, words.rate)
    called = run(words.functions, words.slots, arrivals)
    report = {**circumstances(), **vars(words), "output": None, **summary(called, arrivals, words.slots)}
    path = words.output / f"function-fleet-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({key: report[key] for key in _SHOWN}, indent=2))
    return int(report["not_answered"] > 0)


_SHOWN = (
    "calls",
    "not_answered",
    "warm_ratio",
    "lru_ratio",
    "seconds_warm_p50",
    "seconds_cold_p50",
    "seconds_cold_p99",
)


def trace(functions: int, seconds: float, rate: float) -> list[tuple[float, int]]:
    """Draw (moment, function) for each call."""
    dice = random.Random(_SEED)
    weights = [1 / (rank + 1) for rank in range(functions)]
    moments, now = [], 0.0
    while (now := now + dice.expovariate(rate)) < seconds:
        moments.append((now, dice.choices(range(functions), weights)[0]))
    return moments


def run(functions: int, slots: int, arrivals: Sequence[tuple[float, int]]) -> list[Called]:
    """Serve the trace."""
    root = Path(tempfile.mkdtemp(prefix="pgpu-fleet-", dir="/dev/shm"))
    port = free_port()
    try:
        with serving(root, "--gateway", f"127.0.0.1:{port}") as server:
            deploy_all(server, functions, slots)
            return play(port, arrivals)
    finally:
        clear(root)


def deploy_all(server: ServerProcess, functions: int, slots: int) -> None:
    """Deploy them all, each with its part of the GPU."""
    client = open_functions(Settings(host=server.host))
    assert isinstance(client, HttpFunctions)  # noqa: S101 - a server was named
    source = Path(tempfile.mkdtemp(prefix="pgpu-fleet-source-"))
    (source / "app.py").write_text(_HANDLER)
    bundle = io.BytesIO()
    digest = pack_tree(source, bundle).digest
    declaration = json.dumps({"memory": f"{_GPU_GIB / slots:.2f}GiB", "public": True, "timeout": "120s"})
    for number in range(functions):
        bundle.seek(0)
        client.deploy(Deployment(f"f{number}", "app.py:Noop", digest, declaration), bundle)
    shutil.rmtree(source)


def play(port: int, arrivals: Sequence[tuple[float, int]]) -> list[Called]:
    """Call at the drawn moments, whoever still waits."""
    called: list[Called] = []
    began, threads = time.monotonic(), []
    for moment, number in arrivals:
        time.sleep(max(0.0, began + moment - time.monotonic()))  # noqa: TID251 - arrivals have their moments
        thread = threading.Thread(target=lambda at=number: called.append(call(port, at)))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    return called


def call(port: int, number: int) -> Called:
    """Call one function."""
    began = time.monotonic()
    connection = HTTPConnection("127.0.0.1", port, timeout=180)
    try:
        connection.request("POST", f"/functions/f{number}", b'{"x":1}', {"content-type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        timing = reply.getheader("server-timing") or ""
        return Called(reply.status, time.monotonic() - began, "cold;dur=0," not in timing)
    except OSError:
        return Called(0, time.monotonic() - began, was_cold=True)
    finally:
        connection.close()


def summary(called: Sequence[Called], arrivals: Sequence[tuple[float, int]], slots: int) -> dict[str, Any]:
    """Put it in figures."""
    warm = sorted(each.seconds for each in called if not each.was_cold)
    cold = sorted(each.seconds for each in called if each.was_cold)
    return {
        "calls": len(called),
        "not_answered": sum(each.status != _OK for each in called),
        "statuses": {
            str(status): sum(each.status == status for each in called) for status in {c.status for c in called}
        },
        "warm_ratio": round(len(warm) / max(1, len(called)), 3),
        "lru_ratio": round(lru_ratio([number for _, number in arrivals], slots), 3),
        "seconds_warm_p50": at(warm, 0.5),
        "seconds_cold_p50": at(cold, 0.5),
        "seconds_cold_p99": at(cold, 0.99),
    }


def lru_ratio(numbers: Sequence[int], slots: int) -> float:
    """Return which part of the calls finds its function among the `slots` that were called last; nothing takes time."""
    there: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for number in numbers:
        hits += number in there
        there.pop(number, None)
        there[number] = None
        if len(there) > slots:
            there.popitem(last=False)
    return hits / max(1, len(numbers))


def at(seconds: Sequence[float], part: float) -> float | None:
    """Return a quantile."""
    return round(seconds[min(len(seconds) - 1, int(part * len(seconds)))], 4) if seconds else None


if __name__ == "__main__":
    raise SystemExit(main())
