"""Processor time of commands beside thousands of waiting jobs (`python -m benchmarks.queue_commands`).

One job holds a simulated GPU and an array waits. Each command is a process of its own; its user and system time comes from
`wait4`, and the median of several calls counts (an array is submitted and cancelled once). The same commands beside an empty
queue tell what of it is the start of a process. Also the agent's time for the whole measurement. Output goes into a pipe.
Writes one JSON file into benchmarks/results.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from benchmarks.simulated_machine import SimulatedMachine
from benchmarks.start_latency import MODEL, until

CALLS = 5
TARGETS_SECONDS = {"queue": 0.3, "ps": 0.3, "submit": 0.15, "cancel": 1.0}
"""From the project's plan: processor time with 5,000 jobs waiting."""

READS = {"queue": ["queue"], "ps": ["ps"], "queue_json": ["queue", "--json"]}
SUBMIT = ["submit", "--memory", "10GiB", "--", "true"]


def main() -> int:
    """Measure, print, write; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    report: dict[str, Any] = {**circumstances(), "driver": f"simulated {MODEL}", "jobs": arguments.jobs}
    with Machine.running(MODEL) as machine:
        holder = machine.output("submit", "--memory", "20GiB", "--", "sleep", "3600").strip()
        until(lambda: "running" in machine.output("ps"))
        report["empty_seconds"] = machine.reads()
        report["seconds"] = machine.beside(arguments.jobs)
        report["agent_seconds"] = machine.agent_seconds()
        machine.output("cancel", "--time", "0s", holder)
    missed = {name: report["seconds"][name] for name, most in TARGETS_SECONDS.items() if report["seconds"][name] > most}
    report |= {"targets_seconds": TARGETS_SECONDS, "missed": missed}
    path = arguments.output / f"queue-commands-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    return 1 if missed else 0


class Machine(SimulatedMachine):
    """One of which commands are timed."""

    def reads(self) -> dict[str, float]:
        """Return the median processor time of each command that reads, in s."""
        return {name: self._median(words) for name, words in READS.items()}

    def beside(self, count: int) -> dict[str, float]:
        """Return the processor time of each command beside so many waiting jobs, in s."""
        array = self.output("submit", "--name", "many", "--array", f"0-{count - 1}", "--memory", "10GiB", "--", "true")
        found = {**self.reads(), "submit": self._median(SUBMIT)}
        return {**found, "cancel": self._seconds(["cancel", array.strip()])}

    def agent_seconds(self) -> float:
        """Return the processor time of the agent, in s."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                # User and system time are fields 14 and 15; the name, field 2, may hold spaces.
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if b"agent" in words and any(word.startswith(bytes(self.directory)) for word in words):
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _median(self, words: Sequence[str]) -> float:
        return round(statistics.median(self._seconds(words) for _ in range(CALLS)), 3)

    def _seconds(self, words: Sequence[str]) -> float:
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(self.command(words), env=self.environment, stdout=output, stderr=output)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                output.seek(0)
                raise RuntimeError(f"{' '.join(words)}: {output.read().decode()}")
        return round(used.ru_utime + used.ru_stime, 3)


if __name__ == "__main__":
    raise SystemExit(main())
