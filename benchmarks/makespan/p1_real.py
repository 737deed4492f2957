"""P1's 25 jobs through the engine's queue, batch after batch (`python -m benchmarks.makespan.p1_real`).

Each job is a process that holds P1's 1,205 MiB of a simulated RTX 3090 and works at the speed of P1's table for the number of
jobs that run with it; jobs count each other in a folder. The engine has only the setting `objective = makespan`; from the
second batch on it plans with what it learnt from the batches before. Writes one JSON file
into benchmarks/results.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.makespan.p1 import ALONE_SECONDS, BEST_SECONDS, JOB_BYTES, JOBS, LONGEST_SECONDS
from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.app.client_factory import open_client
from pgpu.app.settings import load_settings
from pgpu.client import Client
from pgpu.model import Array, JobSpec, Request, Submission

MODEL = "RTX 3090"
BAR = 1.05
"""From the project's design: the end over 17.97 s."""

CODE = """
import ctypes, json, os, sys, time

table, alone_seconds, memory_bytes = json.loads(sys.argv[1])
cuda = ctypes.CDLL("libcuda.so.1")
device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
free_bytes, total_bytes = ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(ctypes.byref(free_bytes), ctypes.byref(total_bytes)) == 0
rest = memory_bytes - (total_bytes.value - free_bytes.value)
assert cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(rest // 2097152 * 2097152)) == 0
mine = f"running/{os.getpid()}"
open(mine, "w").close()
left_seconds, seen_seconds = alone_seconds, time.monotonic()
while left_seconds > 0:
    count = str(min(max(len(os.listdir("running")), 2), 20))
    time.sleep(min(0.1, left_seconds))
    now_seconds = time.monotonic()
    left_seconds -= (now_seconds - seen_seconds) / table[count]
    seen_seconds = now_seconds
os.unlink(mine)
"""


def main() -> int:
    """Run the batches, print, write; 1 where the last one ends too late or a job failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--scale", type=float, default=12.0, help="seconds for each of P1's, so that starts weigh less")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    report = {**circumstances(), "driver": f"simulated {MODEL}", "scale": arguments.scale}
    with a_machine() as (client, folder):
        report["batches"] = [batch(client, folder, arguments.scale) for _ in range(arguments.batches)]
    path = arguments.output / f"p1-planned-{report['date']}.json"
    path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    last = report["batches"][-1]
    return 1 if last["over_best"] > BAR or any(each["failed"] for each in report["batches"]) else 0


def batch(client: Client, folder: Path, scale: float) -> dict[str, Any]:
    """Submit 25 jobs together, wait for all, and return when the last ended."""
    table = {count: seconds / ALONE_SECONDS for count, seconds in LONGEST_SECONDS.items()}
    words = (sys.executable, "p1job.py", json.dumps([table, ALONE_SECONDS * scale, JOB_BYTES]))
    spec = JobSpec(words, "process", working_directory=str(folder))
    submitted = client.submit_all([Submission(spec, Request(JOB_BYTES), array=Array(tuple(range(JOBS))))])
    jobs = [client.wait(job.id) for job in submitted]
    began = min(job.created_at_seconds for job in jobs)
    seconds = (max(job.finished_at_seconds or 0.0 for job in jobs) - began) / scale
    found = {
        "end_seconds": round(seconds, 2),
        "over_best": round(seconds / BEST_SECONDS, 3),
        "most_together": most_together([(job.started_at_seconds or 0, job.finished_at_seconds or 0) for job in jobs]),
        "failed": sum(job.exit_code != 0 for job in jobs),
    }
    print(found, flush=True)
    return found


def most_together(spans: list[tuple[float, float]]) -> int:
    """Return how many ran at once at most."""
    return max(sum(start <= begin < end for start, end in spans) for begin, _ in spans)


@contextlib.contextmanager
def a_machine() -> Iterator[tuple[Client, Path]]:
    """Create a machine with the makespan objective, and a folder in which jobs count each other."""
    with tempfile.TemporaryDirectory(prefix="pgpu-p1-", dir="/dev/shm") as name:
        folder = Path(name)
        (folder / "run").mkdir(mode=0o700)
        (folder / "running").mkdir()
        (folder / "p1job.py").write_text(CODE, "utf-8")
        flags = {"state_dir": f"{name}/state", "runtime_dir": f"{name}/run", "simulate": MODEL, "host": "embedded"}
        os.environ["PGPU_OBJECTIVE"] = "makespan"  # of the queue's agent: a process of its own
        client = open_client(load_settings(flags))
        try:
            yield client, folder
        finally:
            for report in client.jobs(include_final=False):
                client.stop(report.job.id, grace_seconds=0.0)


if __name__ == "__main__":
    raise SystemExit(main())
