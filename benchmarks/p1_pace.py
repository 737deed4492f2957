"""A job whose length follows P1's table: `python p1_pace.py DIRECTORY`, run by `benchmarks.p1_pairs`.

It is slowed down by the number of jobs that run beside it and not by this machine's cores: each registers in DIRECTORY, and
twenty times a second the work done grows by the time that passed over the length of P1's jobs at that number, which `law.json`
holds. The start of the program is work as well: P1 has one time for each job, which is taken to be that of its process. Each step
launches a kernel, so that the GPU is as busy as the law assumes: one job needs a thirteenth of it.
"""

import json
import os
import sys
import time
from pathlib import Path

STEP_SECONDS = 0.05
KERNEL_SECONDS = STEP_SECONDS / 13


def main() -> None:
    """Work until the whole job is done."""
    start_ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    before = start_ticks / os.sysconf("SC_CLK_TCK")  # in the clock of time.CLOCK_BOOTTIME
    directory = Path(sys.argv[1])
    seconds_by_jobs: list[float] = json.loads((directory / "law.json").read_text("utf-8"))
    own = directory / f"{os.getpid()}.job"
    own.touch()
    # The longest part of the start, after the job is counted among those that run.
    from pgpu.workloads.workload_run import GRANULE_BYTES, WorkloadRun, wait_seconds  # noqa: PLC0415

    try:
        this = WorkloadRun("pace")
        scratch = this.memory.take(GRANULE_BYTES)
        done = 0.0
        while done < 1.0:
            this.kernels.spin(KERNEL_SECONDS, scratch)
            this.device.synchronize()
            wait_seconds(STEP_SECONDS)
            now = time.clock_gettime(time.CLOCK_BOOTTIME)
            beside = sum(name.endswith(".job") for name in os.listdir(directory))  # noqa: PTH208 - names alone
            done += (now - before) / seconds_by_jobs[min(beside, len(seconds_by_jobs) - 1)]
            before = now
        this.finish()
    finally:
        own.unlink()


if __name__ == "__main__":
    main()
