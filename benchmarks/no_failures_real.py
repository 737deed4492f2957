"""No job fails for lack of memory: the jobs of `no_failures` as real CUDA programs (`python -m benchmarks.no_failures_real`).

Every job is a process of its own that calls the driver: P1's inference 25 times for each GPU; and 300 of mixed size and
length, inference that grows to a part of its slice, and training that takes all it sees. They come at random, are
submitted to the engine's queue like any other job, and run on one, two and eight simulated GPUs. Beside them the same
processes without pgpu: each starts when it comes, on the GPU with most free memory. Only the durations of the mixed jobs
are scaled. Writes one JSON file into benchmarks/results, after every day.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.no_failures import mixed_jobs, p1_jobs
from benchmarks.replaying import Arrival
from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.app.client_factory import open_client
from pgpu.app.composition import make_engine
from pgpu.app.settings import load_settings
from pgpu.client import Client
from pgpu.engine.agent.agents import GO
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.nvml import NvmlSource
from pgpu.gpu.simulated import start_simulated
from pgpu.lab.outcomes import OUT_OF_MEMORY, last_line, last_result
from pgpu.lab.p1 import P1Plan
from pgpu.libraries import SIMULATED_CUDA, library_path
from pgpu.model import JobSpec, JobState, Request
from pgpu.scheduling.yielding_headroom import KEPT_BYTES
from pgpu.units import MIB

MODEL = "RTX 3090"
LEAST_MIB = 700
"""What the smallest job needs: a context, libraries and a pool."""

LOOK_AGAIN_SECONDS = 0.1
DEADLINE_SECONDS = 60.0
BEAT_SECONDS = 0.1
"""Host time of a batch, waited."""

P1, MIXED = "P1's 25 jobs", "300 mixed jobs"
FAILED, REFUSED = "failed", "saw_out_of_memory"
KEYS = ("kind", "gpus", "with_pgpu")
SUMMED = ("jobs", FAILED, REFUSED, "samples", "samples_past_headroom")


@dataclass(frozen=True, slots=True)
class RealJob:
    """One program, and when it comes."""

    name: str
    at_seconds: float
    slice_bytes: int
    words: tuple[str, ...]
    """Of the workload."""


@dataclass(slots=True)
class Tally:
    """What was seen of one day's jobs and GPUs."""

    jobs: int = 0
    failed: int = 0
    saw_out_of_memory: int = 0
    complaints: dict[str, int] = field(default_factory=dict)
    samples: int = 0
    samples_past_headroom: int = 0
    """Looks at a GPU that held more than slices may ever sum to; headroom may have yielded all but `KEPT_BYTES`."""

    most_used_share: float = 0.0
    most_together: int = 0
    seconds: float = 0.0

    def count(self, exit_code: int | None, stdout: str, stderr: str) -> None:
        """Add one job that ended."""
        result = last_result(stdout)
        self.jobs += 1
        self.saw_out_of_memory += bool(result and result.get("refusals")) or OUT_OF_MEMORY in stderr
        if exit_code != 0 or result is None:
            self.failed += 1
            complaint = last_line(stderr)[:100] or f"exit code {exit_code}"
            self.complaints[complaint] = self.complaints.get(complaint, 0) + 1

    def sample(self, used_and_memory_bytes: Iterable[tuple[int, int]]) -> None:
        """Add one look at all GPUs."""
        for used_bytes, memory_bytes in used_and_memory_bytes:
            self.samples += 1
            self.samples_past_headroom += used_bytes > memory_bytes - KEPT_BYTES
            self.most_used_share = round(max(self.most_used_share, used_bytes / memory_bytes), 4)


def main() -> int:
    """Run what is missing in the file, print, write; 1 if any job failed or was refused memory under pgpu."""
    arguments = _arguments()
    path = arguments.output or RESULTS / f"no-failures-real-{circumstances()['date']}.json"
    report = read(path) or {**circumstances(), "driver": f"simulated {MODEL}", "within": arguments.within, "days": []}
    done = {(each["kind"], each["seed"], each["gpus"], each["with_pgpu"]) for each in report["days"]}
    for seed, kind, gpu_count, is_with in itertools.product(
        range(arguments.seeds), arguments.kinds, arguments.gpus, (True, False)
    ):
        if (kind, seed, gpu_count, is_with) not in done and (is_with or seed < arguments.control_seeds):
            jobs = real_jobs(kind, seed, gpu_count, arguments.within)
            report["days"].append({"kind": kind, "seed": seed, **day(jobs, gpu_count, is_with=is_with)})
            print(report["days"][-1], flush=True)
            report["summary"] = summary(report["days"])
            path.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(json.dumps(report["summary"], indent=1))
    bad = [each for each in report["days"] if each["with_pgpu"] and (each[FAILED] or each[REFUSED])]
    return 1 if bad else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--kinds", nargs="+", default=[P1, MIXED], choices=[P1, MIXED])
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--within", type=float, default=45.0, help="seconds within which the mixed jobs come")
    parser.add_argument("--control-seeds", type=int, default=1, help="days that are run without pgpu, too")
    parser.add_argument("--output", type=Path, default=None)
    return parser.parse_args()


def read(path: Path) -> dict[str, Any] | None:
    """Return what was measured before, if anything."""
    return json.loads(path.read_text("utf-8")) if path.exists() else None


def real_jobs(kind: str, seed: int, gpu_count: int, within_seconds: float) -> list[RealJob]:
    """Return the jobs of a seed as programs; the mixed ones' times are scaled so that they come within so many seconds."""
    if kind == P1:
        plan = P1Plan(job_counts=())
        return [
            RealJob(each.candidate.job_id, each.candidate.eligible_at_seconds, plan.memory_bytes, plan.words())
            for each in p1_jobs(seed, gpu_count)
        ]
    arrivals = mixed_jobs(seed, gpu_count)
    last = max(arrival.candidate.eligible_at_seconds for arrival in arrivals)
    return [_program(number, arrival, within_seconds / last) for number, arrival in enumerate(arrivals)]


def _program(number: int, arrival: Arrival, scale: float) -> RealJob:
    """Every second one trains, as in `mixed_jobs`."""
    slice_bytes = max(LEAST_MIB * MIB, arrival.candidate.request.memory_bytes)
    used_mib = max(LEAST_MIB, (arrival.used_bytes or slice_bytes) // MIB)
    batches = str(max(2, round(arrival.duration_seconds * scale / BEAT_SECONDS)))
    memory = ("--memory", f"{LEAST_MIB if number % 2 else used_mib}MiB")
    words = ("training", "--epochs", "1") if number % 2 else ("inference",)
    return RealJob(
        f"job{number}",
        arrival.candidate.eligible_at_seconds * scale,
        slice_bytes,
        (*words, *memory, "--batches", batches, "--host-ms", str(BEAT_SECONDS * 1000)),
    )


def day(jobs: Sequence[RealJob], gpu_count: int, *, is_with: bool) -> dict[str, Any]:
    """Run all jobs in one of the two ways, and return what was observed."""
    load_average = round(os.getloadavg()[0], 1)
    tally = with_pgpu(jobs, gpu_count) if is_with else without_pgpu(jobs, gpu_count)
    seen = {name: getattr(tally, name) for name in Tally.__slots__}
    return {"gpus": gpu_count, "with_pgpu": is_with, **seen, "load_average": load_average}


def with_pgpu(jobs: Sequence[RealJob], gpu_count: int) -> Tally:
    """Submit each job when it comes, and look at the GPUs until all have ended."""
    tally, began = Tally(), time.monotonic()
    with a_machine(gpu_count) as client:
        submitter = threading.Thread(target=_submit_all, args=(client, jobs, began), daemon=True)
        submitter.start()
        live = client.jobs(include_final=False)
        while submitter.is_alive() or live:
            live = client.jobs(include_final=False)
            tally.most_together = max(tally.most_together, sum(each.job.state is JobState.RUNNING for each in live))
            tally.sample((gpu.used_bytes, gpu.gpu.memory_bytes) for gpu in client.gpus())
            time.sleep(LOOK_AGAIN_SECONDS)  # noqa: TID251 - the pause between two looks
        for report in client.jobs(include_final=True):
            texts = {"stdout": b"", "stderr": b""}
            for stream, chunk in client.logs(report.job.id, follow=False):
                texts[stream] += chunk
            tally.count(report.job.exit_code, texts["stdout"].decode(), texts["stderr"].decode())
    if tally.jobs != len(jobs):
        raise RuntimeError(f"{tally.jobs} of {len(jobs)} jobs were accepted")
    tally.seconds = round(time.monotonic() - began, 1)
    return tally


def _submit_all(client: Client, jobs: Sequence[RealJob], began: float) -> None:
    for job in in_time(jobs, began):
        spec = JobSpec((sys.executable, "-m", "pgpu.workloads", *job.words), "process", name=job.name)
        client.submit(spec, Request(job.slice_bytes), wait_timeout_seconds=None)


def in_time(jobs: Sequence[RealJob], began: float) -> Iterator[RealJob]:
    """Yield each job when it comes."""
    for job in sorted(jobs, key=lambda each: each.at_seconds):
        time.sleep(max(0.0, began + job.at_seconds - time.monotonic()))  # noqa: TID251 - it comes then
        yield job


@contextlib.contextmanager
def a_machine(gpu_count: int) -> Iterator[Client]:
    """Make a machine with so many simulated GPUs and no job."""
    with tempfile.TemporaryDirectory(prefix="pgpu-days-", dir="/dev/shm") as folder:
        (Path(folder) / "run").mkdir(mode=0o700)
        simulate = f"{MODEL}x{gpu_count}"
        flags = {"state_dir": f"{folder}/state", "runtime_dir": f"{folder}/run", "simulate": simulate}
        settings = load_settings({**flags, "host": "embedded"})
        engine, client = make_engine(settings), open_client(settings)
        try:
            yield client
        finally:
            for report in client.jobs(include_final=False):
                client.stop(report.job.id, grace_seconds=0.0)
            _until(lambda: not any(entry.is_live for entry in engine.ledger.entries(include_final=True)))
            _until(lambda: not engine.agents.send(engine.settings.gpu_model, GO))


def _until(question: Callable[[], bool]) -> None:
    """Wait for a condition; what has not ended by then would write into a folder that is gone."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not question() and time.monotonic() < deadline:
        time.sleep(LOOK_AGAIN_SECONDS)  # noqa: TID251 - the pause between two looks


def without_pgpu(jobs: Sequence[RealJob], gpu_count: int) -> Tally:
    """Start each job when it comes, on the GPU with most free memory.

    Training asks for no more than its slice would be, which is kinder than what it does by itself.
    """
    tally, began = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pgpu-days-", dir="/dev/shm") as folder:
        directory = Path(folder) / "simgpu"
        start_simulated(directory, parse_model(MODEL)[0], gpu_count)
        source = NvmlSource(directory)
        with ThreadPoolExecutor(len(jobs)) as waiters:
            ends = [waiters.submit(_ended, _started(job, directory, source)) for job in in_time(jobs, began)]
            while not all(end.done() for end in ends):
                tally.sample((source.memory(gpu.uuid).used_bytes, gpu.memory_bytes) for gpu in source.gpus())
                time.sleep(LOOK_AGAIN_SECONDS)  # noqa: TID251 - the pause between two looks
        for end in ends:
            tally.count(*end.result())
    tally.seconds = round(time.monotonic() - began, 1)
    return tally


def _started(job: RealJob, directory: Path, source: NvmlSource) -> subprocess.Popen[str]:
    emptiest = max(source.gpus(), key=lambda gpu: gpu.memory_bytes - source.memory(gpu.uuid).used_bytes)
    words = job.words
    if words[0] == "training":
        place = words.index("--memory") + 1
        words = (*words[:place], f"{job.slice_bytes // MIB}MiB", *words[place + 1 :], "--grow")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library_path(SIMULATED_CUDA).parent),
        "PGPU_SIMGPU_DIR": str(directory),
        "CUDA_VISIBLE_DEVICES": emptiest.uuid,
    }
    command = (sys.executable, "-m", "pgpu.workloads", *words)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


def summary(days: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum over seeds."""
    rows = []
    for key in dict.fromkeys(tuple(each[name] for name in KEYS) for each in days):
        same = [each for each in days if tuple(each[name] for name in KEYS) == key]
        sums = {name: sum(each[name] for each in same) for name in SUMMED}
        most = {name: max(each[name] for each in same) for name in ("most_used_share", "most_together")}
        rows.append({**dict(zip(KEYS, key, strict=True)), "days": len(same), **sums, **most})
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
