"""Micro-batching: a handler that takes 5 ms and 0.2 ms for each request of a batch (`python -m benchmarks.function_batching`).

A batch starts as soon as the executor is free, with the requests that arrived meanwhile, at most 32. wrk calls front and worker
over 1 and 64 connections. Ideal: at 1 connection a request takes as long as the handler alone, called here beside the run
(5.2 ms and this machine's oversleep); at 64 every batch is full and the next one waits for its end, so 32 requests take 11.4 ms.
Bars, from the project's design: at 1 connection less than 10 % added to the median, at 64 at least 90 % of the ideal throughput.
`--without` turns batching off, for comparison. Writes one JSON file and prints a table; exits 1 where a bar is missed.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.function_overhead.server import Server, running
from benchmarks.function_overhead.servers import PGPU
from benchmarks.function_overhead.wrk import Load, load
from benchmarks.shim_overhead import RESULTS, circumstances

FIXED_MS, EACH_MS = 5.0, 0.2
MOST_TOGETHER = 32
CALLS_ALONE = 100
MOST_ADDED, LEAST_OF_IDEAL = 0.10, 0.90
PORT = 18090

_HANDLER = """
import threading

NEVER = threading.Event()


class Slow:
    def __call__(self, x: list[int]) -> list[int]:
        NEVER.wait(({fixed} + {each} * len(x)) / 1000)
        return x


class Alone:
    def __call__(self, x: int) -> int:
        NEVER.wait(({fixed} + {each}) / 1000)
        return x
""".replace("{fixed}", str(FIXED_MS)).replace("{each}", str(EACH_MS))


def server(*, is_batched: bool) -> Server:
    """Return how the handler is served."""
    app = "app.py:Slow" if is_batched else "app.py:Alone"
    words: dict[str, Any] = {"queue_limit": 1000}
    words |= {"batch": {"max_size": MOST_TOGETHER}} if is_batched else {}
    command = tuple(app if word == "app.py:Noop" else word for word in PGPU.command)
    return replace(PGPU, command=(*command, "--declaration", json.dumps(words)), files={"app.py": _HANDLER})


def alone_ms(together: int) -> float:
    """Call the handler here, without any server, and return the median."""
    names: dict[str, Any] = {}
    exec(_HANDLER, names)  # noqa: S102 - the very text that is served
    handler, times = names["Slow"](), []
    for _ in range(CALLS_ALONE):
        began = time.perf_counter()
        handler([1] * together)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def ideal(connections: int) -> dict[str, float]:
    """Return the upper bound for any server: every batch is as full as possible, and only the handler takes time."""
    together = min(connections, MOST_TOGETHER)
    per_second = together / alone_ms(together) * 1000
    return {"p50_ms": connections / per_second * 1000, "requests_per_second": per_second}


def measure(connections: int, seconds: int, *, is_batched: bool) -> dict[str, Any]:
    """Send requests over some connections, after a second of warm-up."""
    with running(server(is_batched=is_batched), Path(sys.executable), PORT) as found:
        load(found.url, found.server.body, connections, 1)
        return shown(load(found.url, found.server.body, connections, seconds), connections)


def shown(seen: Load, connections: int) -> dict[str, Any]:
    """Put a run beside the ideal."""
    best = ideal(connections)
    return {
        **{key: round(value, 2) for key, value in asdict(seen).items()},
        "requests_per_second": round(seen.requests_per_second),
        "ideal": {key: round(value, 1) for key, value in best.items()},
        "added": round(seen.p50_ms / best["p50_ms"] - 1, 3),
        "of_ideal": round(seen.requests_per_second / best["requests_per_second"], 3),
    }


def main() -> int:
    """Measure, print, write; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=5, help="of each run")
    parser.add_argument("--without", action="store_true", help="also without batching")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    ways = {"batched": True, **({"one at a time": False} if words.without else {})}
    seen = {
        name: {str(count): measure(count, words.seconds, is_batched=is_batched) for count in (1, 64)}
        for name, is_batched in ways.items()
    }
    bars = {"most_added_at_1": MOST_ADDED, "least_of_ideal_at_64": LEAST_OF_IDEAL}
    report = {**circumstances(), "driver": None, "handler_ms": [FIXED_MS, EACH_MS], "bars": bars, **seen}
    path = words.output / f"function-batching-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for name, runs in seen.items():
        for count, run in runs.items():
            print(
                f"{name}, {count} connections: p50 {run['p50_ms']} ms ({run['added']:+.1%}), "
                f"p99 {run['p99_ms']} ms, {run['requests_per_second']}/s ({run['of_ideal']:.0%} of ideal), "
                f"{run['failed']} failed"
            )
    ours = seen["batched"]
    is_met = ours["1"]["added"] < MOST_ADDED and ours["64"]["of_ideal"] >= LEAST_OF_IDEAL
    return int(not is_met or any(run["failed"] for run in ours.values()))


if __name__ == "__main__":
    raise SystemExit(main())
