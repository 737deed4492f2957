"""What front and worker cost beside bare uvicorn and beside other servers of functions, for a function that does nothing.

`python -m benchmarks.function_overhead [--install] [--only NAME,NAME] [--rounds 2] [--seconds 3]`. wrk asks over 1, 16 and 64
connections, on this machine's own cores, so servers and wrk share them: trust the CPU time of a request first. Servers run
one at a time, all of them in each round; of the rounds the one with the most answers counts. `--install` makes each peer's
environment under build/functions. Writes one JSON file and prints a table, with what one, two and three processes take that
do nothing; exits 1 where front and worker take more than 1.5 × bare uvicorn's CPU time, or with the gateway more than 3 ×.
"""

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.function_overhead.server import Running, Server, running
from benchmarks.function_overhead.servers import FLOORS, GATEWAY, PEERS, PGPU, UVICORN
from benchmarks.function_overhead.wrk import load
from benchmarks.shim_overhead import RESULTS, circumstances

CONNECTIONS = (1, 16, 64)
CPU_TARGETS = {PGPU.name: 1.5, GATEWAY.name: 3.0}
"""Of bare uvicorn's, at each number of connections; from the project's design."""

ENVIRONMENTS = Path("build/functions")
PORT = 18080


def main() -> int:
    """Measure, print, write; 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--install", action="store_true", help="make the peers' environments first")
    parser.add_argument("--only", default="", help="names, comma between: uvicorn, pgpu, fastapi, litserve, …")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=3, help="of each run of wrk")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    servers = chosen(words.only)
    for server in servers if words.install else ():
        install(server)
    report = measure([each for each in servers if is_installed(each)], words.rounds, words.seconds)
    path = words.output / f"function-overhead-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print_table(report)
    ratios = report["cpu_of_uvicorn"]
    return int(any(max(ratios[name].values()) > most for name, most in CPU_TARGETS.items() if name in ratios))


def chosen(only: str) -> Sequence[Server]:
    """Return the servers with these names, or all."""
    names = [name for name in only.split(",") if name]
    return [each for each in (UVICORN, *FLOORS, PGPU, GATEWAY, *PEERS) if not names or each.name.split(",")[0] in names]


def python_of(server: Server) -> Path:
    """Return the interpreter that it runs in."""
    return ENVIRONMENTS.absolute() / server.name / "bin" / "python" if server.packages else Path(sys.executable)


def is_installed(server: Server) -> bool:
    """Return whether it can be started; print a line if not."""
    if python_of(server).exists():
        return True
    print(f"{server.name} is not installed (--install)")
    return False


def install(server: Server) -> None:
    """Make its environment from PyPI."""
    if server.packages and not python_of(server).exists():
        subprocess.run((sys.executable, "-m", "venv", python_of(server).parent.parent), check=True)
        subprocess.run((python_of(server), "-m", "pip", "install", "--quiet", *server.packages), check=True)


def measure(servers: Sequence[Server], rounds: int, seconds: int) -> dict[str, Any]:
    """Run all servers in turns and put them side by side."""
    runs: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    facts: dict[str, dict[str, Any]] = defaultdict(dict)
    for number in range(rounds):
        for server in servers:
            try:
                with running(server, python_of(server), PORT + number) as found:
                    for connections in CONNECTIONS:
                        runs[server.name][connections].append(one_run(found, connections, seconds))
                    facts[server.name] = noted(found)
            except RuntimeError as exc:
                print(exc)
    best = {
        name: {str(count): max(each, key=lambda run: run["requests_per_second"]) for count, each in counts.items()}
        for name, counts in runs.items()
    }
    report: dict[str, Any] = {**circumstances(), "driver": None, "rounds": rounds, "seconds": seconds}
    return {**report, "servers": {name: {**facts[name], "connections": best[name]} for name in best},
            "cpu_of_uvicorn": cpu_ratios(runs), "cpu_targets": CPU_TARGETS}  # fmt: skip


def one_run(found: Running, connections: int, seconds: int) -> dict[str, Any]:
    """Load one server."""
    load(found.url, found.server.body, connections, 1)
    before = found.cpu_seconds()
    seen = load(found.url, found.server.body, connections, seconds)
    cpu = found.cpu_seconds() - before
    return {
        **{key: round(value, 3) for key, value in asdict(seen).items()},
        "requests_per_second": round(seen.requests_per_second),
        "cpu_us": round(cpu / max(1, seen.requests) * 1e6, 1),
    }


def noted(found: Running) -> dict[str, Any]:
    """Return its memory and the time to its first answer."""
    return {"pss_mib": round(found.memory_bytes() / (1 << 20)), "cold_seconds": round(found.cold_seconds, 2)}


def cpu_ratios(runs: dict[str, dict[int, list[dict[str, Any]]]]) -> dict[str, dict[str, float]]:
    """Return the least CPU time of a request over bare uvicorn's least, by server and connections."""
    least = {
        name: {count: min(run["cpu_us"] for run in each) for count, each in counts.items()}
        for name, counts in runs.items()
    }
    floor = least.get(UVICORN.name)
    if floor is None:
        return {}
    return {
        name: {str(count): round(cpu / floor[count], 2) for count, cpu in each.items()} for name, each in least.items()
    }


def print_table(report: dict[str, Any]) -> None:
    """Print a line for each server."""
    print(f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}; req/s, p50/p99 ms, CPU µs")
    for name, seen in report["servers"].items():
        cells = [
            f"c{count}: {run['requests_per_second']:>6}, {run['p50_ms']:.2f}/{run['p99_ms']:.2f}, {run['cpu_us']:.0f}"
            + (f" ({run['failed']} failed)" if run["failed"] else "")
            for count, run in seen["connections"].items()
        ]
        print(f"{name:38} {'   '.join(cells)}   {seen['pss_mib']} MiB, cold {seen['cold_seconds']} s")
    for name, ratios in report["cpu_of_uvicorn"].items():
        most = f" (at most {CPU_TARGETS[name]})" if name in CPU_TARGETS else ""
        print(f"CPU of bare uvicorn's: {name:38} {ratios}{most}")


if __name__ == "__main__":
    raise SystemExit(main())
