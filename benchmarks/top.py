"""What `pgpu top` costs (`python -m benchmarks.top`): first frame, bytes to the terminal, processor time and memory.

Thirty jobs on four simulated GPUs change their memory and launch kernels all the time. `pgpu top` runs on a terminal of its own. The
first frame counts from the start of the process until its last line is there; bytes, processor time and memory are those of the
seconds after it. Start time is also counted in processor time, which other work on the machine hardly changes. The one-shot form into
a pipe is measured beside it. Writes one JSON file into benchmarks/results.
"""

import argparse
import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from benchmarks.simulated_machine import SimulatedMachine
from benchmarks.start_latency import until

MODEL = "RTX 3090x4"
JOBS = 30
STARTS = 7
SIZES = ((80, 24), (120, 40), (160, 45))
MOST_FIRST_FRAME_SECONDS = 0.6
MOST_BYTES_PER_SECOND = 6_000
"""At 80×24. The first is for an idle machine."""

_TICKS = os.sysconf("SC_CLK_TCK")
_JOB = """
import random, threading
from pgpu.workloads.cuda_driver import Device
from pgpu.workloads.kernels import Kernels
device = Device()
kernels, scratch, held = Kernels(device), device.allocate(1 << 20), []
while True:
    if len(held) < 8 and random.random() < 0.6:
        held.append(device.allocate(150 << 20))
    elif held:
        device.free(held.pop())
    for _ in range(random.randrange(4)):
        kernels.spin(0.02, scratch)
    device.synchronize()
    threading.Event().wait(random.uniform(0.5, 1.5))
"""


class Terminal:
    """`pgpu top` on a terminal that only counts."""

    def __init__(self, machine: SimulatedMachine, columns: int, lines: int) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {**machine.environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        began_seconds = time.monotonic()
        self._process = subprocess.Popen(
            machine.command(["top"]), env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        self.count = 0
        text = b""
        while b"quit" not in text:
            text += self._read()
        self.first_frame_seconds = time.monotonic() - began_seconds
        self.first_frame_cpu_seconds = self.cpu_seconds()

    def _read(self) -> bytes:
        piece = os.read(self._master, 65536) if select.select([self._master], [], [], 0.05)[0] else b""
        self.count += len(piece)
        return piece

    def cpu_seconds(self) -> float:
        """Return the processor time until now."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def watch(self, seconds: float) -> dict[str, float]:
        """Return what the view costs while it is left alone."""
        self._settle(2.0)
        count, cpu_seconds, began_seconds = self.count, self.cpu_seconds(), time.monotonic()
        self._settle(seconds)
        took_seconds = time.monotonic() - began_seconds
        status = Path(f"/proc/{self._process.pid}/status").read_text("utf-8")
        return {
            "bytes_per_second": round((self.count - count) / took_seconds),
            "cpu_percent": round(100 * (self.cpu_seconds() - cpu_seconds) / took_seconds, 1),
            "resident_mib": round(int(status.partition("VmRSS:")[2].split()[0]) / 1024, 1),
        }

    def _settle(self, seconds: float) -> None:
        until_seconds = time.monotonic() + seconds
        while time.monotonic() < until_seconds:
            self._read()

    def close(self) -> None:
        """Quit it."""
        os.write(self._master, b"q")
        with suppress(OSError):  # Linux reports EIO once the last user of the other side is gone
            while self._process.poll() is None:
                self._read()
        self._process.wait()
        os.close(self._master)


def main() -> int:
    """Measure, print, write; 1 where a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each size of terminal")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    report: dict[str, Any] = {**circumstances(), "driver": f"simulated {MODEL}", "jobs": JOBS}
    with SimulatedMachine.running(MODEL) as machine:
        words = ("submit", "--array", f"0-{JOBS - 1}", "--memory", "2GiB", "--compute", "10%", "--name", "busy")
        array = machine.output(*words, "--", sys.executable, "-c", _JOB).split()[0]
        try:
            until(lambda: machine.output("ps", "-q", "--filter", "state=running").count("\n") == JOBS)
            report |= _measure(machine, arguments.seconds)
        finally:
            machine.output("cancel", "--time", "0s", array)
    narrow = report["sizes"]["80x24"]["bytes_per_second"]
    report["targets"] = {"first_frame_seconds": MOST_FIRST_FRAME_SECONDS, "bytes_per_second": MOST_BYTES_PER_SECOND}
    report["load_average_after"] = round(os.getloadavg()[0], 2)
    path = arguments.output / f"top-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    is_missed = narrow > MOST_BYTES_PER_SECOND or report["first_frame_seconds"]["least"] > MOST_FIRST_FRAME_SECONDS
    return 1 if is_missed else 0


def _measure(machine: SimulatedMachine, seconds: float) -> dict[str, Any]:
    starts, once = [], []
    for _ in range(STARTS):
        terminal = Terminal(machine, *SIZES[0])
        terminal.close()
        starts.append(terminal)
        began_seconds = time.monotonic()
        machine.output("top")
        once.append(time.monotonic() - began_seconds)
    sizes = {}
    for columns, lines in SIZES:
        terminal = Terminal(machine, columns, lines)
        sizes[f"{columns}x{lines}"] = terminal.watch(seconds)
        terminal.close()
    frames = [each.first_frame_seconds for each in starts]
    return {
        "first_frame_seconds": {"median": round(statistics.median(frames), 3), "least": round(min(frames), 3)},
        "first_frame_cpu_seconds": round(statistics.median(each.first_frame_cpu_seconds for each in starts), 3),
        "once_into_a_pipe_seconds": round(statistics.median(once), 3),
        "sizes": sizes,
    }


if __name__ == "__main__":
    raise SystemExit(main())
