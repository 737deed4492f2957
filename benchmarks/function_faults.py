"""Requests under faults of a function, its clients and its machine (`python -m benchmarks.function_faults`).

One front and its worker, called over its Unix socket: workers killed in mid-request, constructors that raise or hang, a handler
that burns the CPU and the GIL, one that takes more GPU memory than its slice (simulated), bodies of 1 GiB, slow clients,
clients that leave. Every request must get an answer or a clear status, others must not notice, and it must serve again within
a second. Writes one JSON file and prints a line for each fault; exits 1 where one does not hold. `--kills` sets the number of kills.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.functions.dev.dev_session import DevReplica, replica_command, socket_directory

MIB, GIB = 1 << 20, 1 << 30
SECOND = 1000.0
BARS_MS = {"health_while_burning": 50.0, "answer_after_kill": 100.0, "serving_after_kill": 300.0}
"""From the project's design; the last one without the constructor's own time, which is nothing here."""

PGPU = (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())")
CODE = """
import os
import threading
import time

NEVER = threading.Event()


class Plain:
    def __call__(self, seconds: float = 0.0, burn: bool = False) -> int:
        if burn:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                3 ** 60_000 % 7  # long enough in C to hold the GIL, again and again
        else:
            NEVER.wait(seconds)
        return os.getpid()


class Bytes:
    def __call__(self, body: bytes) -> int:
        return len(body)


class Raising:
    def __init__(self) -> None:
        raise OSError("the weights are not there")

    def __call__(self) -> int:
        return 1


class Hanging:
    def __init__(self) -> None:
        NEVER.wait()

    def __call__(self) -> int:
        return 1


class Leaking:
    def __init__(self) -> None:
        from pgpu.workloads.cuda_driver import Device

        self.device, self.held = Device(), []

    def __call__(self, mib: int) -> int:
        self.held.append(self.device.allocate(mib << 20))
        return len(self.held)

    def health(self) -> bool:
        return True
"""

Answer = tuple[int, bytes, float]
"""Status, body, milliseconds."""


@contextmanager
def served(
    attribute: str, declaration: Mapping[str, object] | None = None, prefix: tuple[str, ...] = (), *, waits: bool = True
) -> Iterator[DevReplica]:
    """Serve one of the handlers above, silently."""
    directory = socket_directory()
    (directory / "app.py").write_text(CODE, encoding="utf-8")
    front = replica_command(f"app.py:{attribute}", directory, directory, declaration or {})
    with tempfile.TemporaryFile() as log:
        replica = DevReplica(subprocess.Popen((*prefix, *front), stdout=log, stderr=log), directory)
        try:
            until(lambda: replica.is_ready() if waits else bool(replica.is_ready() or replica.health))
            yield replica
        finally:
            replica.end()


def until(question: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: It did not become true.
    """
    deadline = time.monotonic() + seconds
    while not question():
        if time.monotonic() > deadline:
            raise TimeoutError("it never came true")
        time.sleep(0.002)  # noqa: TID251 - the pause between two looks


class Caller(http.client.HTTPConnection):
    """One client."""

    def __init__(self, replica: DevReplica) -> None:
        super().__init__("localhost", timeout=60)
        self._path = str(replica.http_socket)

    def connect(self) -> None:
        """See `HTTPConnection`."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self._path)


def ask(replica: DevReplica, body: object = None, path: str = "/") -> Answer:
    """Ask over a connection of its own; status 0 where the connection broke."""
    caller = Caller(replica)
    began = time.perf_counter()
    try:
        method = "GET" if body is None else "POST"
        content = None if body is None else json.dumps(body)
        caller.request(method, path, content, {"Content-Type": "application/json"})
        reply = caller.getresponse()
        return reply.status, reply.read(), (time.perf_counter() - began) * SECOND
    except (OSError, http.client.HTTPException):
        return 0, b"", (time.perf_counter() - began) * SECOND
    finally:
        caller.close()


def kills(times: int) -> dict[str, Any]:
    """Kill the worker in mid-request: its caller gets an error at once, and the next worker serves the request behind it."""
    in_flight: list[float] = []
    again: list[float] = []
    statuses: Counter[str] = Counter()
    with served("Plain") as replica, ThreadPoolExecutor(2) as callers:
        for _ in range(times):
            pid = int(ask(replica, {})[1])
            struck = callers.submit(ask, replica, {"seconds": 30.0})
            until(lambda pid=pid: is_resting(pid))  # type: ignore[misc]
            behind = callers.submit(ask, replica, {})
            killed = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            status, _, _ = struck.result()
            in_flight.append((time.perf_counter() - killed) * SECOND)
            next_status, _, _ = behind.result()
            again.append((time.perf_counter() - killed) * SECOND)
            statuses.update((f"in flight {status}", f"behind it {next_status}"))
    held = statuses == Counter({"in flight 502": times, "behind it 200": times})
    bars = max(in_flight) <= BARS_MS["answer_after_kill"] and statistics.median(again) <= BARS_MS["serving_after_kill"]
    return {"held": held and bars and max(again) <= SECOND, "statuses": dict(statuses),
            "answer_ms": spread(in_flight), "serving_again_ms": spread(again)}  # fmt: skip


def is_resting(pid: int) -> bool:
    """Return whether a worker is inside its handler's wait: its main thread waits for no socket."""
    with contextlib.suppress(OSError):
        return "futex" in Path(f"/proc/{pid}/wchan").read_text() or "futex" in syscall_name(pid)
    return False


def syscall_name(pid: int) -> str:
    """Return whether it is in futex or a timed wait of a lock, by number."""
    number = Path(f"/proc/{pid}/syscall").read_text().split(" ", 1)[0]
    return {"202": "futex", "230": "clock_nanosleep"}.get(number, number)


def burning() -> dict[str, Any]:
    """Ask for health while the handler holds the GIL."""
    with served("Plain") as replica, ThreadPoolExecutor(1) as callers:
        busy = callers.submit(ask, replica, {"seconds": 3.0, "burn": True})
        answers = []
        while not busy.done():
            answers.append(ask(replica, path="/healthz"))
            time.sleep(0.02)  # noqa: TID251 - a plausible interval between health checks
        times = [milliseconds for _, _, milliseconds in answers]
        is_healthy = all(status == 200 for status, _, _ in answers)
    held = (
        is_healthy
        and busy.result()[0] == 200
        and statistics.quantiles(times, n=100)[98] < BARS_MS["health_while_burning"]
    )
    return {"held": held, "asked": len(times), "health_ms": spread(times)}


def constructors() -> dict[str, Any]:
    """Call a function that never starts: a clear status, and failing health while the front lives."""
    found = {}
    for attribute in ("Raising", "Hanging"):
        with served(attribute, {"startup_timeout": 1.0, "timeout": 3.0}, waits=False) as replica:
            status, body, milliseconds = ask(replica, {})
            health, said, _ = ask(replica, path="/healthz")
            found[attribute] = {
                "status": status, "body": json.loads(body or b"null"), "ms": round(milliseconds), "health": health,
                "said": json.loads(said or b"null"),
            }  # fmt: skip
    held = all(each["status"] in {503, 504} and each["health"] for each in found.values())
    return {"held": held and "weights" not in json.dumps(found), **found}


def leaking() -> dict[str, Any]:
    """Take GPU memory past the slice: the call that does is refused, the function lives."""
    with tempfile.TemporaryDirectory() as state:
        prefix = (*PGPU, "--simulate", "RTX 3090", "--state-dir", state, "run", "--memory", "2GiB", "--")
        with served("Leaking", prefix=prefix) as replica:
            statuses = [ask(replica, {"mib": 400})[0] for _ in range(8)]
            small, _, _ = ask(replica, {"mib": 2})
    held = set(statuses) == {200, 500} and statuses == sorted(statuses) and small == 200
    return {"held": held, "statuses": statuses, "small_one_after": small, "simulated": True}


def large_bodies() -> dict[str, Any]:
    """Send 1 GiB, announced and not: refused early, and never held in memory."""
    with served("Bytes") as replica, ThreadPoolExecutor(1) as callers:
        front = psutil.Process(replica.process.pid)
        announced = raw(replica, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % GIB)
        chunks = callers.submit(chunked, replica)
        others, most = [], 0
        while not chunks.done():
            others.append(ask(replica, path="/healthz")[2])
            most = max(most, front.memory_info().rss)
            time.sleep(0.01)  # noqa: TID251 - a plausible interval between health checks
    statuses = [announced[:12].decode(), chunks.result()[:12].decode()]
    held = all("413" in status for status in statuses) and max(others) < SECOND
    return {"held": held, "statuses": statuses, "front_mib_at_most": most // MIB, "others_ms": spread(others)}


def raw(replica: DevReplica, head: bytes) -> bytes:
    """Send bytes and read the beginning of the answer."""
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(60)
        ours.connect(str(replica.http_socket))
        ours.sendall(head)
        return ours.recv(4096)


def chunked(replica: DevReplica) -> bytes:
    """Send 1 GiB in chunks until there is a response."""
    piece = b"100000\r\n" + bytes(MIB) + b"\r\n"
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(60)
        ours.connect(str(replica.http_socket))
        ours.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(
            OSError
        ):  # a server that refuses may close the connection before the whole body is sent
            for _ in range(GIB // MIB):
                ours.sendall(piece)
        with contextlib.suppress(OSError):
            return ours.recv(4096)
    return b""


def slow_clients() -> dict[str, Any]:
    """Keep 100 incomplete requests open, and send others beside them."""
    with served("Plain") as replica, contextlib.ExitStack() as stack:
        quiet = [ask(replica, {}) for _ in range(100)]
        for _ in range(100):
            ours = stack.enter_context(socket.socket(socket.AF_UNIX))
            ours.connect(str(replica.http_socket))
            ours.sendall(
                b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
            )
        beside = [ask(replica, {}) for _ in range(100)]
    held = all(status == 200 for status, _, _ in quiet + beside)
    times = {"alone_ms": spread([each[2] for each in quiet]), "beside_100_ms": spread([each[2] for each in beside])}
    return {"held": held and times["beside_100_ms"]["median"] < 50, **times}


def gone_clients() -> dict[str, Any]:
    """Let 30 clients send requests of a fifth of a second each and disconnect: the next client does not wait for their six seconds."""
    with served("Plain") as replica:
        body = json.dumps({"seconds": 0.2}).encode()
        head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        for _ in range(30):
            with socket.socket(socket.AF_UNIX) as ours:
                ours.connect(str(replica.http_socket))
                ours.sendall(head + body)
                threading.Event().wait(0.005)
        status, _, milliseconds = ask(replica, {})
    return {"held": status == 200 and milliseconds < SECOND, "status": status, "ms": round(milliseconds)}


def spread(values: list[float]) -> dict[str, float]:
    """Return median, 99 % and most, in ms."""
    ordered = sorted(values)
    cut = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return {"median": round(statistics.median(ordered), 2), "p99": round(cut, 2), "max": round(ordered[-1], 2)}


def main() -> int:
    """Try every fault, print, write; 1 where one does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--only", default="", help="names of faults, comma between")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    faults: dict[str, Callable[[], dict[str, Any]]] = {
        "kills": lambda: kills(words.kills),
        **{each.__name__: each for each in (burning, constructors, leaking, large_bodies, slow_clients, gone_clients)},
    }
    chosen = [name for name in faults if not words.only or name in words.only.split(",")]
    found: dict[str, dict[str, Any]] = {}
    for name in chosen:
        found[name] = faults[name]()
        print(f"{'held' if found[name]['held'] else 'NOT HELD'}  {name}: {json.dumps(found[name])}", flush=True)
    report = {**circumstances(), "bars_ms": BARS_MS, "faults": found}
    path = words.output / f"function-faults-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(not all(each["held"] for each in found.values()))


if __name__ == "__main__":
    raise SystemExit(main())
