"""200 functions on one machine that has room for four of them (`python -m benchmarks.function_crowd`).

A real server with its gateway, replicas as processes, a simulated GPU; each function holds GPU memory for its weights and
takes a time of its own to load them. Calls arrive at random (Poisson) from a seed; functions are popular by Zipf's law. Every
call must get an answer or an error with a clear reason, and none may fail for memory. A second server plays the same list at
the same time, with a gateway that values idle replicas by their last use, so that the least recently used is evicted first;
and both policies are replayed alone on this and other lists, without real time. Writes one JSON file; exits 1 where a call was lost or failed for memory.
"""

import argparse
import http.client
import io
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.server_load import Connection
from benchmarks.shim_overhead import RESULTS, circumstances
from tests.clearing import clear
from tests.served import ServerProcess, serving

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.client.address import address_of
from pgpu.client.http_client import HttpClient
from pgpu.client.http_transport import HttpTransport
from pgpu.client.remote_service import HttpFunctions
from pgpu.functions.control.control_plane import HttpControlPlane
from pgpu.functions.deploy.source_bundle import pack_tree
from pgpu.functions.gateway import gateway_server as gateway
from pgpu.functions.router.replica_connection import ReacquireResult
from pgpu.functions.scaling.eviction_value import Frequency, ValueClock, replica_value
from pgpu.ledger import Ledger
from pgpu.model import Deployment, JobState
from pgpu.units import GIB

FUNCTIONS, SLOTS = 200, 4
SLOT_BYTES = 5 * GIB
"""Of an RTX 3090's 24 GiB: a fifth does not fit."""

SKEW = 1.2
"""Zipf's exponent: half of the calls go to four functions of 200. Production traces are steeper."""

LOAD_SECONDS = (0.1, 1.0)
"""Constructors take so long, as many in each octave."""

POLICIES = ("pgpu", "lru")
REPLAYS = 20

CODE = """
import threading

from pgpu.workloads.cuda_driver import Device


class Model:
    def __init__(self, seconds: float) -> None:
        self.device = Device()
        self.weights = self.device.allocate(4 << 30)
        threading.Event().wait(seconds)

    def __call__(self) -> int:
        threading.Event().wait(0.02)
        return self.weights
"""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One call."""

    at_seconds: float
    function: int
    """0 is called most."""


@dataclass(frozen=True, slots=True)
class Answered:
    """Outcome of a call."""

    arrival: Arrival
    status: int
    """0: it was lost, its connection broke or there was no answer."""

    code: str
    """Of a refusal."""

    is_warm: bool
    """A replica was hot when it came."""

    seconds: float


def arrivals(seconds: float, rate: float, seed: int) -> list[Arrival]:
    """Draw the calls."""
    dice, at_seconds, found = random.Random(seed), 0.0, []
    weights = [1 / rank**SKEW for rank in range(1, FUNCTIONS + 1)]
    while (at_seconds := at_seconds + dice.expovariate(rate)) < seconds:
        found.append(Arrival(at_seconds, dice.choices(range(FUNCTIONS), weights)[0]))
    return found


def load_seconds(seed: int) -> list[float]:
    """Draw what each function's constructor takes."""
    dice, (least, most) = random.Random(-seed), LOAD_SECONDS
    return [round(least * (most / least) ** dice.random(), 3) for _ in range(FUNCTIONS)]


def name_of(function: int) -> str:
    """Return a function's name."""
    return f"model-{function:03}"


def deploy(functions: HttpFunctions, loads: Sequence[float]) -> None:
    """Deploy them all, of one bundle."""
    with tempfile.TemporaryDirectory() as source:
        (Path(source) / "app.py").write_text(CODE, "utf-8")
        bundle = io.BytesIO()
        digest = pack_tree(Path(source), bundle).digest
    for function, seconds in enumerate(loads):
        words = {"memory": SLOT_BYTES, "arguments": {"seconds": seconds}}
        bundle.seek(0)
        functions.deploy(Deployment(name_of(function), "app.py:Model", digest, json.dumps(words)), bundle)


def call(socket: Path, arrival: Arrival) -> Answered:
    """Call once, over a connection of its own."""
    connection, began = Connection(socket), time.perf_counter()
    try:
        connection.request(
            "POST", f"/functions/{name_of(arrival.function)}", "{}", {"content-type": "application/json"}
        )
        reply = connection.getresponse()
        body, timing = reply.read(), reply.getheader("server-timing") or ""
    except (OSError, http.client.HTTPException) as error:
        return Answered(arrival, 0, type(error).__name__, is_warm=False, seconds=time.perf_counter() - began)
    finally:
        connection.close()
    code = "" if reply.status == http.HTTPStatus.OK else json.loads(body)["code"]
    return Answered(arrival, reply.status, code, " cold;dur=0," in timing, time.perf_counter() - began)


def play(socket: Path, calls: Sequence[Arrival]) -> list[Answered]:
    """Call by the list, regardless of the results of earlier calls."""
    found: list[Answered] = []
    threads = [threading.Thread(target=lambda each=each: found.append(call(socket, each))) for each in calls]
    began = time.monotonic()
    for each, thread in zip(calls, threads, strict=True):
        time.sleep(max(0.0, began + each.at_seconds - time.monotonic()))  # noqa: TID251 - until it is due
        thread.start()
    for thread in threads:
        thread.join()
    return found


class LruDesk(HttpControlPlane):
    """Values an idle replica by its last use, not by the formula of the gateway; all hold the same memory."""

    def __init__(self, functions: HttpFunctions, client: HttpClient) -> None:
        super().__init__(functions, client)
        self._idle_since: dict[str, float] = {}

    def mark_evictable(self, job_id: str, value: float) -> None:  # noqa: ARG002 - as of `ControlPlane`
        """Offer its lease; again for the value of before, unless it was used meanwhile."""
        super().mark_evictable(job_id, self._idle_since.setdefault(job_id, time.monotonic()))

    def reacquire(self, job_id: str) -> ReacquireResult:
        """Claim its lease."""
        self._idle_since.pop(job_id, None)
        return super().reacquire(job_id)


def run_lru_gateway(server: ServerProcess) -> None:
    """Run as the gateway of a server that has none."""
    address = address_of(server.host)
    assert address is not None  # noqa: S101 - it is the address of a socket
    asked = HttpTransport(address)
    desk = LruDesk(HttpFunctions(asked), HttpClient(asked))
    gateway.run(desk, gateway.GatewaySettings(socket_of(server), None, server.socket.parent))


def socket_of(server: ServerProcess) -> Path:
    """Return where calls go."""
    return server.socket.with_name("functions.sock")


@contextmanager
def lru_gateway(server: ServerProcess) -> Iterator[None]:
    """Run it as a process."""
    words = ("-m", "benchmarks.function_crowd", "--lru-gateway", str(server.socket))
    process = subprocess.Popen([sys.executable, *words])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def measure(calls: Sequence[Arrival], loads: Sequence[float], *, is_lru: bool) -> dict[str, Any]:
    """Serve, deploy, call, and return the results."""
    root = Path(tempfile.mkdtemp(prefix="pgpu-crowd-", dir="/dev/shm"))
    try:
        with serving(root, *(() if is_lru else ("--gateway", "127.0.0.1:0"))) as server:
            functions = open_functions(Settings(host=server.host))
            began = time.monotonic()
            deploy(functions, loads)
            deployed_seconds = time.monotonic() - began
            with lru_gateway(server) if is_lru else nullcontext():
                until(lambda: call(socket_of(server), Arrival(0.0, FUNCTIONS - 1)).status == http.HTTPStatus.OK)
                answers = play(socket_of(server), calls)
            sys.stderr.write(server.said())
            return {
                **report_of(answers),
                **jobs_of(server),
                **starts_of(functions),
                "deploying_s": round(deployed_seconds, 1),
            }
    finally:
        clear(root)


def until(question: Callable[[], bool]) -> None:
    """Wait for a condition."""
    while not question():
        time.sleep(0.1)  # noqa: TID251 - the pause between two looks


def report_of(answers: Sequence[Answered]) -> dict[str, Any]:
    """Count answers and hits, and how long calls took."""
    good = [each for each in answers if each.status == http.HTTPStatus.OK]
    warm = [each for each in good if each.is_warm]
    cold = [each for each in good if not each.is_warm]
    said = Counter(f"{each.status} {each.code}".strip() for each in answers)
    return {
        "calls": len(answers), "answers": dict(said), "lost": said_of(answers, 0), "no_memory": no_memory(answers),
        "warm_hits": round(len(warm) / len(answers), 3), "mean_ms": round(1e3 * statistics.mean(e.seconds for e in answers)),
        "warm_ms": spread([each.seconds for each in warm]), "cold_ms": spread([each.seconds for each in cold]),
    }  # fmt: skip


def said_of(answers: Sequence[Answered], status: int) -> int:
    """Count one status."""
    return sum(each.status == status for each in answers)


def no_memory(answers: Sequence[Answered]) -> int:
    """Count the calls that failed for memory, or because their replica could not be started."""
    return sum(each.code in {"no_memory", "crash_loop", "starting_timeout", "handler_error"} for each in answers)


def spread(seconds: Sequence[float]) -> dict[str, int]:
    """Return median, 90 %, 99 % and most, in ms."""
    ordered = sorted(seconds) or [0.0]
    cuts = {"median": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(1e3 * ordered[math.ceil(part * len(ordered)) - 1]) for name, part in cuts.items()}


def jobs_of(server: ServerProcess) -> dict[str, Any]:
    """Count the replicas that were, and those that failed."""
    client = open_client(Settings(host=server.host))
    jobs = [report.job for report in client.jobs(include_final=True)]
    failed = [
        job for job in jobs if job.reclaimed_at_seconds is None and (job.state is JobState.FAILED or job.exit_code)
    ]
    for job in failed:
        said = b"".join(data for _, data in client.logs(job.id, follow=False)).decode("utf-8", "replace")
        sys.stderr.write(f"{job.id} ended with {job.exit_code}: {said[-2000:]}\n")
    return {
        "replicas": len(jobs),
        "reclaimed": sum(job.reclaimed_at_seconds is not None for job in jobs) + parked_count(server),
        "replicas_failed": len(failed),
        "why": dict(Counter(job.error or job.reason or "" for job in failed)),
    }


def parked_count(server: ServerProcess) -> int:
    """Return how often a replica lost its slice and stayed alive, as far back as the ledger records it."""
    ledger = Ledger(Path(server.environment["PGPU_STATE_DIR"], "ledger.db"))
    try:
        return sum(event.kind == "parked" for event in ledger.events.after(0, 10_000))
    finally:
        ledger.close()


def starts_of(functions: HttpFunctions) -> dict[str, Any]:
    """Return the phases of cold starts, in ms, and the time of a start without its wait for memory and its constructor."""
    starts = [start for function in range(FUNCTIONS) for start in functions.cold_starts(name_of(function))]
    phases: dict[str, list[float]] = {}
    for start in starts:
        for phase, seconds in start.phases:
            phases.setdefault(phase, []).append(seconds)
    own = [sum(took for phase, took in each.phases if phase not in {"grant", "constructor"}) for each in starts]
    return {
        "cold_starts_ms": {phase: spread(seconds) for phase, seconds in phases.items()},
        "start_seconds": round(statistics.median(own), 3) if own else 0.0,
    }


def replayed(calls: Sequence[Arrival], starts_seconds: Sequence[float], *, is_lru: bool) -> tuple[float, float]:
    """Replay a policy alone, without real time, so that only its choice of evicted replicas counts; return hits and seconds per call."""
    clock, often = ValueClock(), [Frequency() for _ in starts_seconds]
    kept: dict[int, Arrival] = {}
    worth: dict[int, float] = {}
    hits, paid_seconds = 0, 0.0

    def worth_of(function: int, now_seconds: float) -> float:
        if is_lru:
            return kept[function].at_seconds
        return replica_value(worth[function], often[function].at(now_seconds), starts_seconds[function], 1)

    for each in calls:
        often[each.function].note(each.at_seconds)
        hits += each.function in kept
        if each.function not in kept:
            paid_seconds += starts_seconds[each.function]
            if len(kept) == SLOTS:
                least, goes = min((worth_of(function, each.at_seconds), function) for function in kept)
                clock.note_eviction(least, 1)
                del kept[goes]
        kept[each.function], worth[each.function] = each, clock.worth
    return hits / len(calls), paid_seconds / len(calls)


def drifting(calls: Sequence[Arrival], seed: int) -> list[Arrival]:
    """Change the popular functions every minute."""
    minutes = range(int(calls[-1].at_seconds // 60) + 1)
    orders = [random.Random(seed * 1000 + each).sample(range(FUNCTIONS), FUNCTIONS) for each in minutes]
    return [replace(each, function=orders[int(each.at_seconds // 60)][each.function]) for each in calls]


def replays(seconds: float, rate: float, start_seconds: float) -> dict[str, Any]:
    """Replay lists of other seeds, too: on one list either policy may be better by chance."""
    found: dict[str, Any] = {"seeds": REPLAYS}
    for kind in ("steady", "another order each minute"):
        for policy in POLICIES:
            played = []
            for seed in range(REPLAYS):
                calls = arrivals(seconds, rate, seed)
                calls = calls if kind == "steady" else drifting(calls, seed)
                costs = [each + start_seconds for each in load_seconds(seed)]
                played.append(replayed(calls, costs, is_lru=policy == "lru"))
            hits, paid = (round(statistics.mean(each), 3) for each in zip(*played, strict=True))
            found[f"{policy}, {kind}"] = {"warm_hits": hits, "starting_s_a_call": paid}
    return found


def main() -> int:
    """Play, print, write; 1 where a call was lost or failed for memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--short", action="store_true", help="20 seconds")
    parser.add_argument("--rate", type=float, default=0.8, help="calls in a second")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--only", choices=("pgpu", "lru"))
    parser.add_argument("--lru-gateway", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    if words.lru_gateway is not None:
        run_lru_gateway(ServerProcess(os.environ, words.lru_gateway))
        return 0
    seconds = 20.0 if words.short else words.seconds
    calls, loads = arrivals(seconds, words.rate, words.seed), load_seconds(words.seed)
    chosen = [words.only] if words.only else POLICIES
    report: dict[str, Any] = {
        **circumstances(), "driver": "simulated RTX 3090", "functions": FUNCTIONS, "slots": SLOTS, "zipf": SKEW,
        "seconds": seconds, "rate": words.rate, "seed": words.seed,
    }  # fmt: skip
    with ThreadPoolExecutor(len(chosen)) as at_once:
        played = [at_once.submit(measure, calls, loads, is_lru=policy == "lru") for policy in chosen]
    report |= {policy: each.result() for policy, each in zip(chosen, played, strict=True)}
    report["replayed"] = replays(seconds, words.rate, report[chosen[0]]["start_seconds"])
    print(json.dumps(report, indent=2), flush=True)
    return written(report, words.output)


def written(report: dict[str, Any], folder: Path) -> int:
    """Write it down, and judge it."""
    path = folder / f"function-crowd-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    played = [report[policy] for policy in POLICIES if policy in report]
    return int(any(each["lost"] or each["no_memory"] or each["replicas_failed"] for each in played))


if __name__ == "__main__":
    raise SystemExit(main())
