"""What users get of a GPU when one has many processes and another has one (`python -m benchmarks.user_turns`).

Loads run under the shim on a simulated GPU, without pgpu's engine; what each got is the simulated driver's own account of device
time, as in `benchmarks.share_accuracy`. It makes no statement about real GPUs, whose time slices may differ.

Bars: each user's part of what all got is within three points of its fair part, with kernels of up to 20 ms and however the
processes are spread over jobs, and after some were killed (unequal time slices are measured without a bar); a user without company gets what it gets without the division, and its
steps take at most 1.01 times as long beside idle jobs of others. Writes one JSON file; 1 where a bar is missed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.share_accuracy import circumstances
from tests.compute_world import ComputeJob, ComputeWorld, Load, a_compute_world, divided, until_used

from pgpu.enforcement.compute_word import ComputeWord

RESULTS = Path(__file__).parent / "results"
POINTS = 3.0
"""Distance of a user's part from the fair one: 47 to 53 % for two."""

SLOWER = 1.01
"""Of the median step of a user without company, beside idle jobs of others."""

LEFT = 0.95
"""Of an idle GPU, for jobs of one user beside an idle one of another."""

MEASURED = ComputeWord(is_measured=True)
_MILLISECOND, _SECOND = 1_000_000, 1_000_000_000
_WARM_PART = 1.0
"""Of a measurement's GPU time, before it: what all launched before they knew of each other is repaid."""

_STEPS = 1500
_STEP_NS = 1_000_000
_ROUNDS, _SHORT_ROUNDS = 15, 3


@dataclass(frozen=True)
class Case:
    """Users that launch the same kernels at once."""

    name: str
    jobs: tuple[int, ...]
    """Of each user."""

    processes: int = 1
    """Of each job of the first user."""

    cost_ns: int = 5 * _MILLISECOND
    sync: int = 1
    """Launches between two waits."""

    is_divided: bool = True
    key: str = ""
    """Of gpus.conf, with its value."""

    has_bar: bool = True

    @property
    def fair(self) -> float:
        """Each user's part."""
        return 1 / len(self.jobs)


CASES = (
    Case("60 processes and 1, as today", (60, 1), is_divided=False, has_bar=False),
    Case("60 jobs and 1, 5 ms", (60, 1)),
    Case("60 jobs and 1, 20 ms", (60, 1), cost_ns=20 * _MILLISECOND),
    Case("60 jobs and 1, 5 ms, 4 at a time", (60, 1), sync=4),
    Case("1 job of 24 processes and 1", (1, 1), processes=24),
    Case("1 job of 24 processes and 1, 20 ms", (1, 1), processes=24, cost_ns=20 * _MILLISECOND),
    Case("8 jobs and 1, 1 ms, 4 at a time", (8, 1), cost_ns=_MILLISECOND, sync=4),
    Case("8 jobs and 3", (8, 3)),
    Case("12 jobs, 4 and 1, 4 at a time", (12, 4, 1), sync=4),
    Case("8 jobs and 1, unequal slices", (8, 1), key="unequal_slices=3", has_bar=False),
)
SHORT_CASES = (CASES[1], CASES[2], CASES[4], CASES[8])


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="four cases and fewer steps")
    parser.add_argument("--seconds", type=float, default=6.0, help="of GPU time in each measurement")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    report = circumstances(arguments.seconds)
    report["parts"] = [shown(case, arguments.seconds) for case in (SHORT_CASES if arguments.short else CASES)]
    report["killed"] = killed(arguments.seconds)
    report["idle_neighbour"] = idle_neighbour(arguments.seconds)
    report["step"] = step(_SHORT_ROUNDS if arguments.short else _ROUNDS)
    report["missed"] = list(missed(report))
    arguments.output.mkdir(parents=True, exist_ok=True)
    path = arguments.output / f"user-turns-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(f"written to {path}; missed: {'; '.join(report['missed']) or 'nothing'}")
    return 1 if report["missed"] else 0


def missed(report: dict[str, Any]) -> Iterator[str]:
    """Yield the bars that were missed."""
    for row in [*report["parts"], report["killed"]]:
        if row["has_bar"] and row["worst_points"] > POINTS:
            yield f"{row['case']}: {row['worst_points']} points off"
    if report["idle_neighbour"]["got"] < LEFT:
        yield "time that another user leaves idle is not used"
    if report["step"]["ratio"] > SLOWER:
        yield f"a lone user's step takes {report['step']['ratio']} times as long"


def shown(case: Case, seconds: float) -> dict[str, Any]:
    """Measure one case and print it."""
    with a_compute_world(configuration=case.key) as world, _running(world, case) as users:
        row = _parts(world, case, users, seconds)
    print(f"{case.name:<36} {' '.join(f'{part:6.1%}' for part in row['parts'])}  {row['busy']:.0%} busy", flush=True)
    return row


@contextmanager
def _running(world: ComputeWorld, case: Case) -> Iterator[list[list[Load]]]:
    word = divided(case.fair) if case.is_divided else MEASURED
    jobs = [[world.job(word, user=user) for _ in range(count)] for user, count in enumerate(case.jobs)]
    words = (f"cost_ns={case.cost_ns}", f"sync={case.sync}", "seconds=100000")
    with ExitStack() as stack:

        def start(job: ComputeJob) -> Load:
            return stack.enter_context(job.load(*words))

        first = [start(job) for job in jobs[0] for _ in range(case.processes)]
        yield [first, *([start(job) for job in own] for own in jobs[1:])]


def _parts(world: ComputeWorld, case: Case, users: Sequence[Sequence[Load]], seconds: float) -> dict[str, Any]:
    every = [load for own in users for load in own]
    enough_ns = int(seconds * _SECOND)
    until_used(world, every, sum(map(partial(_had_ns, world), users)) + int(_WARM_PART * enough_ns))
    before, lost_ns, began_ns = [_had_ns(world, own) for own in users], world.lost_ns(), time.monotonic_ns()
    until_used(world, every, sum(before) + enough_ns)
    passed_ns = time.monotonic_ns() - began_ns
    got = [_had_ns(world, own) - was for own, was in zip(users, before, strict=True)]
    parts = [round(each / sum(got), 4) for each in got]
    return {
        "case": case.name,
        "jobs": case.jobs,
        "processes": case.processes,
        "cost_ms": case.cost_ns / _MILLISECOND,
        "is_divided": case.is_divided,
        "slices": case.key,
        "has_bar": case.has_bar,
        "parts": parts,
        "busy": round(sum(got) / passed_ns, 4),
        "switching": round((world.lost_ns() - lost_ns) / passed_ns, 4),
        "worst_points": round(max(abs(100 * (part - case.fair)) for part in parts), 2),
    }


def _had_ns(world: ComputeWorld, loads: Sequence[Load]) -> int:
    return sum(world.got_ns([load.process.pid for load in loads]).values())


def killed(seconds: float) -> dict[str, Any]:
    """Kill two thirds of a user's processes in the middle of their work; the rest must go on as two users."""
    case = Case("1 job and 12, of which 8 are killed", (1, 12))
    with a_compute_world() as world, _running(world, case) as users:
        _parts(world, case, users, seconds / 2)
        for load in users[1][4:]:
            load.process.kill()
            load.process.wait()
        row = _parts(world, case, [users[0], users[1][:4]], seconds)
    print(f"{case.name:<36} {' '.join(f'{part:6.1%}' for part in row['parts'])}", flush=True)
    return row


def idle_neighbour(seconds: float) -> dict[str, float]:
    """Run one user's jobs while another user's job holds a context and does nothing."""
    with a_compute_world() as world, ExitStack() as stack:
        jobs, idle = [world.job(divided(0.5), user=0) for _ in range(3)], world.job(divided(0.5), user=1)
        stack.enter_context(idle.load("cost_ns=1000", "sync=1", "pause_us=1000000", "seconds=100000"))
        loads = [stack.enter_context(job.load("cost_ns=5000000", "sync=4", "seconds=100000")) for job in jobs]
        until_used(world, loads)
        before, lost_ns, began_ns = _had_ns(world, loads), world.lost_ns(), time.monotonic_ns()
        until_used(world, loads, before + int(seconds * _SECOND))
        passed_ns = time.monotonic_ns() - began_ns
        got = (_had_ns(world, loads) - before + world.lost_ns() - lost_ns) / passed_ns
    row = {"got": round(got, 4)}
    print(f"beside an idle user: {row}", flush=True)
    return row


def step(rounds: int) -> dict[str, float]:
    """Compare a lone user's steps beside an idle job of another user, with the division and without, in turns."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(rounds):
        for is_divided in (True, False):
            with a_compute_world() as world, ExitStack() as stack:
                word = divided(0.5) if is_divided else MEASURED
                job, idle = world.job(word, user=0), world.job(word, user=1)
                idle.run("print(cu.code('cuInit', 0))")
                words = (f"cost_ns={_STEP_NS}", "sync=8", f"count={_STEPS}", "seconds=600")
                found[is_divided].append(stack.enter_context(job.load(*words)).finish()["p50_ns"])
    medians = {is_divided: statistics.median(each) for is_divided, each in found.items()}
    row = {
        "divided_ns": medians[True],
        "not_divided_ns": medians[False],
        "ratio": round(medians[True] / medians[False], 4),
    }
    print(f"a lone user's step: {row}", flush=True)
    return row


if __name__ == "__main__":
    sys.exit(main())
