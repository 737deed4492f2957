"""Time of a function scaled to zero until its first answer (`python -m benchmarks.function_cold_starts`).

A real `pgpu serve` with its gateway. The caller measures each start, from its request at the gateway to the answer, and splits it into the phases that `pgpu
functions NAME --cold-starts` shows; then the replica is ended, so that the next start is cold again. Two ways: as a process,
and in a sealed container (`--image`, with DOCKER_HOST as usual). For comparison, the machine's time for two bare interpreters,
one after the other, is measured too.

A function on the simulated GPU that imports torch (`--torch` names a directory of packages with it) and holds 115 MiB there,
as P5's detector does, is scaled to zero by being parked. `frozen`: the driver restores its worker. `zygote`: the worker is
gone, and the zygote forks another one that has imported torch. `idle`: the same for a function without a GPU; its worker ends
after a second without calls. `worker`: a serving worker is killed. `torch`: a start from zero without a zygote. Writes one
JSON file and prints a table; exits 1 if a median misses its bar.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks.function_faults import until
from benchmarks.shim_overhead import RESULTS, circumstances
from tests.clearing import clear
from tests.served import ServerProcess, serving
from tests.system.functions.replicas import JSON, Connection, answer_of

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.functions.api import dump_declaration, parse_declaration
from pgpu.functions.deploy.source_bundle import pack_tree
from pgpu.model import ColdStart, Deployment
from pgpu.structs import replace

SECOND = 1000.0
BARS_MS = {"process": 300.0, "docker": 900.0, "zygote": 50.0, "idle": 50.0, "worker": 50.0}
"""Over the constructor's own time; from the project's design."""

REST_SECONDS = 0.3
NAME = "noop"
CODE = """
import os
import time

{imports}


class Noop:
    def __call__(self, x: int) -> dict[str, int]:
        return {{"x": x, "pid": os.getpid()}}
"""


ON_GPU = """
import ctypes
import os

{imports}


class Noop:
    def __init__(self) -> None:
        cuda, context, memory = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
        assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert cuda.cuCtxSetCurrent(context) == cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(115 << 20)) == 0

    def __call__(self, x: int) -> dict[str, int]:
        return {{"x": x, "pid": os.getpid()}}
"""
"""The weights need not equal P5's: the time to move them is modelled from their size."""


class Served:
    """A server, its gateway, and one function that is called over the gateway's socket."""

    def __init__(self, server: ServerProcess) -> None:
        self._socket = server.socket.with_name("functions.sock")
        self.functions = open_functions(Settings(host=server.host))
        self.client = open_client(Settings(host=server.host))
        until(self._socket.exists)

    def deploy(self, imports: str, image: str | None, packages: Path | None, **declared: object) -> None:
        """Deploy the function; one that declares memory is on a GPU."""
        with tempfile.TemporaryDirectory() as source:
            path = "" if packages is None else f"import sys\nsys.path.append({str(packages)!r})\n"
            code = ON_GPU if "memory" in declared else CODE
            Path(source, "app.py").write_text(code.format(imports=path + imports), encoding="utf-8")
            bundle = BytesIO()
            packed = pack_tree(Path(source), bundle)
        bundle.seek(0)
        declaration = json.dumps(dump_declaration(parse_declaration(declared)))
        asked = Deployment(NAME, "app.py:Noop", packed.digest, declaration=declaration)
        if image is not None:
            asked = replace(asked, runtime="docker", image=image)
        self.functions.deploy(asked, bundle)
        until(self.answers)

    def call(self) -> tuple[int, float]:
        """Call it once; the worker's PID and milliseconds.

        Raises:
            OSError: It does not answer, or not as it should.
        """
        connection = Connection(self._socket)
        began = time.perf_counter()
        connection.request("POST", f"/functions/{NAME}", json.dumps({"x": 1}), JSON)
        answer = answer_of(connection)
        milliseconds = (time.perf_counter() - began) * SECOND
        connection.close()
        if answer.status != HTTPStatus.OK:
            raise OSError(f"{answer.status}: {answer.body.decode()}")
        return answer.value["pid"], milliseconds

    def answers(self) -> int:
        """Return the PID of the worker that answers now; 0 if none does."""
        try:
            return self.call()[0]
        except OSError:
            return 0

    def leave(self) -> None:
        """Remove all containers."""
        for job_id in self.functions.undeploy(NAME):
            self.client.wait(job_id)

    def cool(self) -> None:
        """End the replica and wait until it is removed everywhere."""
        for replica in self.functions.replicas(NAME):
            self.client.stop(replica.job_id, grace_seconds=5)
        until(lambda: not self.functions.replicas(NAME))
        time.sleep(REST_SECONDS)  # noqa: TID251 - what the end of the last one still does is no part of the next start

    def park(self) -> None:
        """Scale it to zero; its process stays."""
        [replica] = self.functions.replicas(NAME)
        self.client.park(replica.job_id)
        until(lambda: self.client.job(replica.job_id).job.parked_at_seconds is not None)
        time.sleep(REST_SECONDS)  # noqa: TID251 - likewise

    def starts(self, most: int) -> Sequence[ColdStart]:
        """Return the phases of the last starts; the very first start was the deployment's."""
        until(lambda: len(self.functions.cold_starts(NAME)) > most)
        return self.functions.cold_starts(NAME)[:most]


@contextmanager
def serving_functions() -> Iterator[Served]:
    """Serve, with the gateway at its socket and a port of its own."""
    root = Path(tempfile.mkdtemp(prefix="pgpu-c-", dir="/dev/shm"))
    try:
        with serving(root, "--gateway", "127.0.0.1:0") as server:
            served = Served(server)
            yield served
            served.leave()
    finally:
        clear(root)


def from_zero(times: int, image: str | None = None, packages: Path | None = None) -> dict[str, Any]:
    """Call a function that has no replica."""
    with serving_functions() as served:
        served.deploy("" if packages is None else "import torch", image, packages)
        seen = [started(served) for _ in range(times)]
        return taken_apart(served, seen)


def taken_apart(served: Served, seen: Sequence[float]) -> dict[str, Any]:
    """Return the caller's measurement beside the gateway's."""
    phases = [dict(start.phases) for start in served.starts(len(seen))]
    constructor = statistics.median(each["constructor"] for each in phases) * SECOND
    medians = {name: round(statistics.median(each[name] for each in phases) * SECOND, 1) for name in phases[0]}
    total = statistics.median(seen)
    return {"total_ms": spread(seen), "phases_ms": medians, "over_constructor_ms": round(total - constructor, 1)}


def started(served: Served) -> float:
    """Start it cold; returns the caller's milliseconds."""
    served.cool()
    return served.call()[1]


def from_parked(times: int, packages: Path | None, *, is_frozen: bool) -> dict[str, Any]:
    """Call a function that is parked, with its worker or without."""
    with serving_functions() as served:
        served.deploy("" if packages is None else "import torch", None, packages, memory="1GiB")
        seen = [woken(served, is_frozen=is_frozen) for _ in range(times)]
        return taken_apart(served, seen)


def woken(served: Served, *, is_frozen: bool) -> float:
    """Park it and call it; the caller's milliseconds."""
    before = served.call()[0]
    served.park()
    if not is_frozen:
        os.kill(before, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{before}").exists())
    after, milliseconds = served.call()
    if (after == before) is not is_frozen:
        raise OSError("its worker is not the one that was expected")
    return milliseconds


def from_idle(times: int, packages: Path | None) -> dict[str, Any]:
    """Call a function without a GPU after its worker has ended for being idle."""
    with serving_functions() as served:
        served.deploy("" if packages is None else "import torch", None, packages, scale_to_zero_after=1)
        seen = [rested(served) for _ in range(times)]
        return taken_apart(served, seen)


def rested(served: Served) -> float:
    """Wait until its worker is gone, and call it; the caller's milliseconds."""
    before = served.call()[0]
    until(lambda: not Path(f"/proc/{before}").exists())
    time.sleep(REST_SECONDS)  # noqa: TID251 - as after the end of a replica
    return served.call()[1]


def after_a_death(times: int, packages: Path | None) -> dict[str, Any]:
    """Kill the worker of a function with a module that imports torch (or nothing), and call at once."""
    with serving_functions() as served:
        served.deploy("" if packages is None else "import torch", None, packages)
        seen = [killed(served) for _ in range(times)]
    return {"total_ms": spread(seen), "over_constructor_ms": round(statistics.median(seen), 1)}


def killed(served: Served) -> float:
    """Kill the worker; milliseconds until another one has answered."""
    time.sleep(REST_SECONDS)  # noqa: TID251 - a worker that lived for less than a tenth of a second is not replaced at once
    before = served.call()[0]
    os.kill(before, signal.SIGKILL)
    began = time.perf_counter()
    until(lambda: served.answers() not in {0, before})
    return (time.perf_counter() - began) * SECOND


def bare(times: int, words: str = "pass") -> dict[str, float]:
    """Start an interpreter that does as little as possible."""
    seen = []
    for _ in range(times):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", words], check=True)
        seen.append((time.perf_counter() - began) * SECOND)
    return spread(seen)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the least, the median and the most, in ms."""
    return {
        "least": round(min(values), 1),
        "median": round(statistics.median(values), 1),
        "most": round(max(values), 1),
    }


def main() -> int:
    """Measure, print, write; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--image", help="of containers; none is started without")
    parser.add_argument("--torch", type=Path, help="directory of packages with torch, for this Python")
    parser.add_argument(
        "--only", default="", help="process, zygote, frozen, idle, worker, torch, docker; comma between"
    )
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    torch = words.torch and words.torch.resolve()
    ways: dict[str, Callable[[], dict[str, Any]]] = {
        "process": lambda: from_zero(words.times),
        "zygote": lambda: from_parked(words.times, torch, is_frozen=False),
        "frozen": lambda: from_parked(words.times, torch, is_frozen=True),
        "idle": lambda: from_idle(words.times, torch),
        "worker": lambda: after_a_death(words.times, torch),
    }
    if torch is not None:
        ways["torch"] = lambda: from_zero(words.times, None, torch)
    if words.image is not None:
        ways["docker"] = lambda: from_zero(words.times, words.image)
    report: dict[str, Any] = {**circumstances(), "driver": None, "times": words.times, "bars_ms": BARS_MS,
              "has_torch": words.torch is not None, "bare_python_ms": bare(words.times)}  # fmt: skip
    report["ways"] = {name: way() for name, way in ways.items() if not words.only or name in words.only.split(",")}
    for found in report["ways"].values():
        found["of_bare_python"] = round(found["total_ms"]["median"] / report["bare_python_ms"]["median"], 1)
    path = words.output / f"function-cold-starts-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print_table(report)
    return int(
        any(
            report["ways"][name]["over_constructor_ms"] > bar for name, bar in BARS_MS.items() if name in report["ways"]
        )
    )


def print_table(report: Mapping[str, Any]) -> None:
    """Print a line for each way."""
    print(f"{report['cpu']}, {report['cores']} cores, load {report['load_average']}")
    print(f"bare python: {report['bare_python_ms']['median']} ms")
    for name, found in report["ways"].items():
        print(f"{name:8} {found['total_ms']} ms, {found['of_bare_python']} x bare python, bar {BARS_MS.get(name)} ms over the"
              f" constructor; {found.get('phases_ms', '')}")  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
