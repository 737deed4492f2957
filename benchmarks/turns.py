"""Two jobs that each work on three quarters of a GPU, together: with turns, without, and one after the other.

`python -m benchmarks.turns [--short]`, on a simulated GTX 980 Ti that pages: the model of paging is docs/simulated-gpu.md's,
so figures show the gain of turns under that model, not on any real card. Nothing is extrapolated: without turns the
same jobs do fewer iterations, since as many would take hours, and are compared with as many one after the other. Writes
one JSON file and prints a table; 1 where turns miss their target.
"""

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
MODEL = "GTX 980 Ti paging"
JOB_MIB = 5760 * 3 // 4
"""Three quarters of what programs can use of it: 1.5 times half."""

TARGET = 0.75
"""Of the speed of running the two one after the other."""

SECONDS_TO_START = 6
"""From being submitted to being at work, on a busy machine."""

MOST_SECONDS = 240
"""Of any two jobs: a job that is not done by then is ended, and nothing is reported."""

PGPU = (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())")


@dataclass(frozen=True)
class Size:
    """How often each of the two jobs goes over its memory."""

    iterations: int
    thrashing_iterations: int
    """Without turns each takes a quarter of a second instead of milliseconds."""


LONG, SHORT = Size(16_000, 100), Size(2_000, 30)


@dataclass(frozen=True)
class Run:
    """One workload, by its own clock; seconds since the epoch."""

    began_at_seconds: float
    seconds: float
    iterations: int
    error: str | None

    @property
    def ended_at_seconds(self) -> float:
        """When it was done."""
        return self.began_at_seconds + self.seconds


class Machine:
    """One simulated GPU with a ledger of its own."""

    def __init__(self, root: Path, *, turns: str) -> None:
        self._root = root
        words = {
            "PGPU_STATE_DIR": str(root / "state"),
            "PGPU_RUNTIME_DIR": str(root / "run"),
            "PGPU_HEADROOM": "0",
            "PGPU_TURNS": turns,
        }
        self._environment = {**os.environ, **words}

    def start(self, memory_mib: int, work: Sequence[str]) -> subprocess.Popen[str]:
        """Start one job."""
        program = (sys.executable, "-m", "pgpu.workloads", "hotspot3d", "--layers", "64")
        size = ("--memory", f"{memory_mib - 32}MiB", *work)
        asked = ("run", "--memory", f"{memory_mib}MiB", "--oversubscribe", "--")
        command = [*PGPU, "--simulate", MODEL, *asked, *program, *size]
        return subprocess.Popen(command, env=self._environment, stdout=subprocess.PIPE, text=True)

    def run(self, iterations: int, count: int) -> list[Run]:
        """Run so many jobs at a time."""
        words = ("--iterations", str(iterations), "--start-at", f"{time.time() + SECONDS_TO_START:.3f}")
        processes = [self.start(JOB_MIB, words) for _ in range(count)]
        try:
            return [_report(process) for process in processes]
        finally:
            for process in processes:
                process.terminate()


@dataclass(frozen=True)
class Comparison:
    """The same two jobs at once, and one after the other."""

    iterations: int
    """Of each job."""

    alone: list[Run]
    together: list[Run]

    @property
    def serial_seconds(self) -> float:
        """One after the other."""
        return sum(run.seconds for run in self.alone)

    @property
    def together_seconds(self) -> float:
        """From the first one's beginning to the last one's end."""
        return max(run.ended_at_seconds for run in self.together) - min(run.began_at_seconds for run in self.together)

    @property
    def speed(self) -> float:
        """Of both at once, one after the other being 1."""
        return self.serial_seconds / self.together_seconds

    def document(self) -> dict[str, object]:
        """Return it for the JSON file."""
        seconds = {"one after the other": self.serial_seconds, "together": self.together_seconds}
        return {**asdict(self), "seconds": seconds, "speed": self.speed}


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="jobs of seconds instead of a minute")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    size = SHORT if arguments.short else LONG
    found = {"on": compare("on", size.iterations), "off": compare("off", size.thrashing_iterations)}
    print("turns  iterations  one after the other  together   speed")
    for turns, each in found.items():
        print(
            f"{turns:5}  {each.iterations:10}  {each.serial_seconds:17.1f} s  {each.together_seconds:6.1f} s  {each.speed:5.2f} ×"
        )
    result = {
        "model": MODEL,
        "job_mib": JOB_MIB,
        "turns": {turns: each.document() for turns, each in found.items()},
        "target_speed_with_turns": TARGET,
        "machine": {"processor": platform.machine(), "cores": os.cpu_count()},
    }
    _write(arguments.output, result)
    if found["on"].speed >= TARGET:
        return 0
    print(
        f"missed: with turns {found['on'].speed:.2f} × the speed of one after the other, of {TARGET}", file=sys.stderr
    )
    return 1


def compare(turns: str, iterations: int) -> Comparison:
    """Run one job twice, then two at once.

    Args:
        turns: The setting, `on` or `off`; a job that is alone does not notice.
        iterations: Of each job.
    """
    with machine(turns) as made:
        alone = [made.run(iterations, 1)[0] for _ in range(2)]
        return Comparison(iterations, alone, made.run(iterations, 2))


@contextlib.contextmanager
def machine(turns: str) -> Iterator[Machine]:
    """Make a machine on a tmpfs, and remove it."""
    root = Path(tempfile.mkdtemp(prefix="pgpu-turns-", dir="/dev/shm"))
    try:
        yield Machine(root, turns=turns)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _report(process: subprocess.Popen[str]) -> Run:
    output, _ = process.communicate(timeout=MOST_SECONDS)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode != 0 or not lines:
        raise SystemExit(f"a job ended with {process.returncode}: {output}")
    told = json.loads(lines[-1])
    return Run(told["began_at_seconds"], told["seconds"], told["iterations"], told["error"])


def _write(folder: Path, result: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"turns-{dt.datetime.now(dt.UTC).date()}.json"
    path.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(path)


if __name__ == "__main__":
    sys.exit(main())
