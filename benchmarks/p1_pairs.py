"""P1's jobs with pgpu beside the same without, in pairs (`python -m benchmarks.p1_pairs`).

Both sides run the same programs on simulated GPUs of one model, from the submission of all of them to the last end, with the same
clock and nothing that samples meanwhile. The sides of a pair follow each other directly and take turns in going first. *Warm*: an
agent runs, for a job without a GPU. *Cold*: none does, as after ten seconds without a job. All settings are the defaults, and the
first pair waits until headroom yields.

Then P1's batch of 25, with defaults: its jobs last as long as P1's table says for the number that runs (`p1_pace`), so 13 and 12
would end after 17.97 s. *First* is the first batch of a new ledger, *second* the next one there. *Bare* are 13 plain processes and
then 12: what starting and ending the same programs takes of this machine's cores, without pgpu.

Prints each ratio and writes one JSON file into benchmarks/results; 1 where a median is above its bar or a job failed.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.app.settings import Settings
from pgpu.host.file_lock import try_lock
from pgpu.lab.p1 import P1_JOB_MIB, P1_TABLE, P1Plan
from pgpu.lab.testbed import Testbed, open_testbed
from pgpu.lab.trials import settle
from pgpu.model import JobSpec, Request, Submission
from pgpu.units import MIB

MODEL = "RTX 3090"
PAIRED_BAR = 1.03
BATCH = 25
FIRST_BAR, SECOND_BAR = 1.10, 1.03
PACE = Path(__file__).with_name("p1_pace.py")


class JobFailedError(Exception):
    """A job of either side failed, so its times compare nothing."""


def main() -> int:
    """Measure, print and write; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", default="2,5,10,15,19,20", help="numbers of jobs, with commas (2,5,10,15,19,20)")
    parser.add_argument("--pairs", type=int, default=7, help="of each number, warm and cold (7)")
    parser.add_argument("--batches", type=int, default=7, help="first and second batches of 25 (7)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    settings = Settings(simulate=MODEL)
    report: dict[str, Any] = {**circumstances(), "driver": f"simulated {MODEL}", "pairs": [], "batches": []}
    counts = [int(word) for word in arguments.jobs.split(",") if word] if arguments.pairs else []
    if counts:
        with open_testbed(settings, "process", None, print) as bed:
            settle(bed)
            for is_warm in (True, False):
                report["pairs"] += [paired(bed, count, arguments.pairs, is_warm=is_warm) for count in counts]
    if arguments.batches:
        report["batches"] = batches(settings, arguments.batches)
    report["load_average_after"] = round(os.getloadavg()[0], 2)
    path = arguments.output / f"p1-pairs-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"written to {path}")
    return int(any(row["median"] > row["bar"] for row in (*report["pairs"], *report["batches"])))


def paired(bed: Testbed, count: int, pairs: int, *, is_warm: bool) -> dict[str, Any]:
    """Run both sides in pairs and return their times and the ratios."""
    words = P1Plan((count,)).words()
    with_seconds, without_seconds, waves = [], [], []
    for number in range(pairs):
        for is_with in (True, False) if number % 2 else (False, True):
            if not is_with:
                without_seconds.append(run_without(bed, bed.plain_command(words), count))
                continue
            with keeping_agent(bed) if is_warm else without_agent(bed):
                seconds, most_waves = run_with(bed, bed.workload(words), count)
            with_seconds.append(seconds)
            waves.append(most_waves)
    ratios = [ours / bare for ours, bare in zip(with_seconds, without_seconds, strict=True)]
    row = {"jobs": count, "is_warm": is_warm, **spread(ratios, PAIRED_BAR), "waves": max(waves)}
    print(f"{count} jobs, {'warm' if is_warm else 'cold'}: {as_text(row)}, waves {max(waves)}")
    return {**row, "with_seconds": rounded(with_seconds), "without_seconds": rounded(without_seconds)}


def batches(settings: Settings, repetitions: int) -> list[dict[str, Any]]:
    """Run first and second batches of 25, each pair on a ledger of its own, and the same programs bare in two waves."""
    lengths = law()
    ideal_seconds = lengths[BATCH // 2] + lengths[BATCH - BATCH // 2]
    halves = (BATCH - BATCH // 2, BATCH // 2)
    bare_seconds = []
    runs: dict[str, list[tuple[float, int]]] = {"first": [], "second": []}
    for _ in range(repetitions):
        with open_testbed(settings, "process", None, print) as bed, tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "law.json").write_text(json.dumps(lengths))
            command = (bed.python, str(PACE), directory)
            bare_seconds.append(sum(run_without(bed, command, half) for half in halves))
            for taken in runs.values():
                taken.append(run_with(bed, command, BATCH))
    bare = statistics.median(bare_seconds)
    print(f"{halves[0]} and then {halves[1]} bare over {ideal_seconds:.2f} s: {bare / ideal_seconds:.3f}")
    found = []
    for which, bar in (("first", FIRST_BAR), ("second", SECOND_BAR)):
        seconds, waves = [each for each, _ in runs[which]], [groups for _, groups in runs[which]]
        row: dict[str, Any] = {"batch": which, "jobs": BATCH, "ideal_seconds": round(ideal_seconds, 2)}
        row |= spread([each / ideal_seconds for each in seconds], bar)
        over_bare = round(statistics.median(seconds) / bare, 3)
        print(
            f"{which} batch of {BATCH} over {ideal_seconds:.2f} s: {as_text(row)}, over bare {over_bare}, waves {waves}"
        )
        row |= {"over_bare": over_bare, "bare_seconds": rounded(bare_seconds)}
        found.append({**row, "waves": waves, "seconds": rounded(seconds)})
    return found


def law() -> list[float]:
    """Return the longest of P1's jobs by the number that runs, in s; a job alone lasts as one of two."""
    fewest = P1_TABLE[0].longest_seconds
    return [fewest, fewest, *(row.longest_seconds for row in P1_TABLE)]


def run_with(bed: Testbed, command: Sequence[str], count: int) -> tuple[float, int]:
    """Submit jobs together, wait for all, and return the whole time in s and the waves in which they were granted.

    Raises:
        JobFailedError: One of them failed.
    """
    request = Request(P1_JOB_MIB * MIB)
    submissions = [
        Submission(JobSpec(command=tuple(command), runtime="process", name=f"p1-{number}"), request)
        for number in range(count)
    ]
    client = bed.client
    began = time.monotonic()
    jobs = client.submit_all(submissions)
    with ThreadPoolExecutor(count) as waiters:
        ended = list(waiters.map(lambda job: (client.wait(job.id), time.monotonic()), jobs))
    failed = [job for job, _ in ended if job.exit_code != 0]
    if failed:
        raise JobFailedError(f"{len(failed)} of {count} failed with pgpu: {failed[0].error or failed[0].exit_code}")
    return max(at for _, at in ended) - began, granted_waves([job for job, _ in ended])


def granted_waves(jobs: Sequence[Any]) -> int:
    """Return in how many groups jobs were granted, each after an end of the group before."""
    count, first_end = 0, float("-inf")
    for granted, finished in sorted((job.lease.granted_at_seconds, job.finished_at_seconds) for job in jobs):
        if granted > first_end:
            count, first_end = count + 1, float("inf")
        first_end = min(first_end, finished)
    return count


def run_without(bed: Testbed, command: Sequence[str], count: int) -> float:
    """Start plain processes together, wait for all, and return the whole time in s.

    Raises:
        JobFailedError: One of them failed.
    """
    began = time.monotonic()
    processes = [
        # A session of its own for each, as with pgpu: the kernel shares a busy processor among sessions first.
        subprocess.Popen(command, env=bed.bare_environment(), stdout=subprocess.DEVNULL, start_new_session=True)
        for _ in range(count)
    ]
    codes = [process.wait() for process in processes]
    seconds = time.monotonic() - began
    if any(codes):
        raise JobFailedError(f"{sum(code != 0 for code in codes)} of {count} failed without pgpu")
    return seconds


@contextmanager
def keeping_agent(bed: Testbed) -> Iterator[None]:
    """Hold an agent by a job that needs no GPU, and has begun."""
    [holder] = bed.client.submit_all(
        [Submission(JobSpec(command=("sleep", "infinity"), runtime="process"), Request(0, 0))]
    )
    while bed.client.job(holder.id).job.started_at_seconds is None:
        time.sleep(0.05)  # noqa: TID251 - before anything is timed
    try:
        yield
    finally:
        bed.client.stop(holder.id, grace_seconds=0)


@contextmanager
def without_agent(bed: Testbed) -> Iterator[None]:
    """Wait until the agent of the last job has ended."""
    [lock] = Path(bed.environment["PGPU_RUNTIME_DIR"]).rglob("keepers/*.lock")
    while (descriptor := try_lock(lock)) is None:
        time.sleep(0.2)  # noqa: TID251 - before anything is timed
    os.close(descriptor)
    yield


def spread(ratios: Sequence[float], bar: float) -> dict[str, Any]:
    """Return median, least and most of some ratios beside their bar."""
    return {
        "median": round(statistics.median(ratios), 3),
        "least": round(min(ratios), 3),
        "most": round(max(ratios), 3),
        "bar": bar,
    }


def as_text(row: dict[str, Any]) -> str:
    """Format a median with its spread and its bar."""
    return f"{row['median']:.3f} ({row['least']:.3f} to {row['most']:.3f}), bar {row['bar']}"


def rounded(seconds: Sequence[float]) -> list[float]:
    return [round(each, 2) for each in seconds]


if __name__ == "__main__":
    raise SystemExit(main())
