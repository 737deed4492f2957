"""What a job costs beside its own work (`python -m benchmarks.job_cost`, as root, cgroup v1 `cpuacct` or cgroup v2).

CPU: one control group holds the commands, the agent (warm), its guard, the monitors and the jobs. Arrays of `true` are run to
their end, a short and a long one in turns; the difference of their medians over the difference of their lengths is one job. The
wall time of the long one gives jobs per second. GNU parallel and task-spooler run the same in the same way, if they are installed
(Debian: `parallel`, `task-spooler`). Memory: the private bytes of all processes of pgpu, without the jobs, beside a few and beside
many sleeping jobs. Writes one JSON file into benchmarks/results.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from benchmarks.simulated_machine import SimulatedMachine
from benchmarks.start_latency import until

MODEL = "RTX 3090x4"

SHORT, LONG = 20, 220
FEW, MANY = 10, 210
ROUNDS = 3
TARGETS = {"cpu_ms": 10.0, "jobs_per_second": 100.0, "private_mib": 0.2}
"""From the project's plan: of one job that does nothing, end to end on two cores, and of one that sleeps."""

_MIB = 1 << 20


def main() -> int:
    """Measure, print, write; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    report: dict[str, Any] = {**circumstances(), "driver": f"simulated {MODEL}", "rounds": arguments.rounds}
    with ControlGroup.made() as group, Machine.running(MODEL) as machine:
        ways: dict[str, Callable[[int], None]] = {"pgpu": machine.run_array, **peers(machine.directory)}
        report["ways"] = {name: cost(group, way, arguments.rounds) for name, way in ways.items()}
        report["private_mib"] = machine.private_mib_of_a_job()
        until(lambda: not machine.processes())  # the agent ends some seconds after the last job
    own = report["ways"]["pgpu"]
    missed = {
        "cpu_ms": own["cpu_ms"] > TARGETS["cpu_ms"],
        "jobs_per_second": own["jobs_per_second"] < TARGETS["jobs_per_second"],
        "private_mib": report["private_mib"] > TARGETS["private_mib"],
    }
    report |= {"targets": TARGETS, "missed": sorted(name for name, is_missed in missed.items() if is_missed)}
    path = arguments.output / f"job-cost-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    return 1 if report["missed"] else 0


class ControlGroup:
    """A control group whose processor time is read; this process and all that it starts are in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    @contextmanager
    def made(cls) -> "Iterator[ControlGroup]":
        """Enter a new group; left at the end."""
        root = Path("/sys/fs/cgroup/cpuacct")
        root = root if root.is_dir() else Path("/sys/fs/cgroup")
        directory = root / f"pgpu-job-cost-{os.getpid()}"
        directory.mkdir()
        try:
            (directory / "cgroup.procs").write_text(str(os.getpid()))
            yield cls(directory)
        finally:
            (root / "cgroup.procs").write_text(str(os.getpid()))
            until(lambda: not (directory / "cgroup.procs").read_text())
            directory.rmdir()

    def seconds(self) -> float:
        """Return the processor time of the group so far."""
        with contextlib.suppress(FileNotFoundError):
            return int((self._directory / "cpuacct.usage").read_text()) / 1e9
        fields = dict(line.split() for line in (self._directory / "cpu.stat").read_text().splitlines())
        return int(fields["usage_usec"]) / 1e6


def cost(group: ControlGroup, run: Callable[[int], None], rounds: int) -> dict[str, Any]:
    """Run both lengths in turns and return what one job costs."""
    run(1)  # warm
    seen: dict[int, list[tuple[float, float]]] = {SHORT: [], LONG: []}
    for _ in range(rounds):
        for count, times in seen.items():
            before, began = group.seconds(), time.monotonic()
            run(count)
            times.append((group.seconds() - before, time.monotonic() - began))
    cpu = {count: statistics.median(each[0] for each in times) for count, times in seen.items()}
    wall = statistics.median(each[1] for each in seen[LONG])
    return {
        "cpu_ms": round((cpu[LONG] - cpu[SHORT]) / (LONG - SHORT) * 1e3, 2),
        "jobs_per_second": round(LONG / wall, 1),
        "seen": {str(count): [[round(value, 3) for value in each] for each in times] for count, times in seen.items()},
    }


class Machine(SimulatedMachine):
    """One on which arrays of jobs are run."""

    def run_array(self, count: int) -> None:
        """Run so many jobs that do nothing, and wait for the last one."""
        array = self.output("submit", "--name", "cost", "--array", f"0-{count - 1}", "--memory", "1GiB", "--", "true")
        self.output("wait", array.strip())

    def private_mib_of_a_job(self) -> float:
        """Return the slope of the private memory of pgpu's processes over sleeping jobs."""
        amounts = []
        for count in (FEW, MANY):
            words = ("--array", f"0-{count - 1}", "--memory", "400MiB", "--", "sleep", "3600")
            array = self.output("submit", "--name", f"sleep-{count}", *words).strip()
            until(lambda: self.output("ps").count("running") == count)  # noqa: B023 - at once
            amounts.append(sum(map(private_bytes, self.processes())))
            self.output("stop", "--time", "0s", array)
        return round((amounts[1] - amounts[0]) / (MANY - FEW) / _MIB, 3)

    def processes(self) -> list[int]:
        """Return the processes of pgpu on this machine: agent, guard and monitors, not the jobs."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (path / "cmdline").read_bytes().split(b"\0")
                is_monitor = words[0].endswith(b"/pgpu-monitor") and words[1:2] == [b"run"] and self._is_logging(path)
                if (
                    is_monitor
                    or bytes(self.directory / "state") in words
                    or bytes(self.directory / "state/spool") in words
                ):
                    found.append(int(path.name))
        return found

    def _is_logging(self, process: Path) -> bool:
        """Whether a monitor's standard error is a file of this machine."""
        return str((process / "fd/2").readlink()).startswith(str(self.directory))


def private_bytes(pid: int) -> int:
    """Return the private memory that a process has written to; 0 if it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines():
            name, _, amount = line.partition(":")
            if name == "Private_Dirty":
                return int(amount.split()[0]) * 1024
    return 0


def peers(directory: Path) -> dict[str, Callable[[int], None]]:
    """Return the peers that are installed."""
    found: dict[str, Callable[[int], None]] = {}
    if shutil.which("parallel"):
        found["GNU parallel"] = lambda count: _run(["parallel", "--will-cite", "true", ":::", *map(str, range(count))])
    if shutil.which("tsp"):
        environment = {**os.environ, "TS_SOCKET": str(directory / "tsp"), "TMPDIR": str(directory)}

        def spool(count: int) -> None:
            _run(["tsp", "-S", "2"], environment)
            for _ in range(count):
                _run(["tsp", "true"], environment)
            _run(["tsp", "-w"], environment)
            _run(["tsp", "-K"], environment)  # its server would stay

        found["task-spooler"] = spool
    return found


def _run(words: Sequence[str], environment: dict[str, str] | None = None) -> None:
    subprocess.run(words, env=environment, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
