"""Kills keepers, zygotes, supervisors and clients at random under load (`python -m benchmarks.kill_storm`).

After each kill the ledger must add up, and in the end every job that was accepted has run once, from beginning to end, or
never and says so: an assertion fails otherwise. Jobs are real processes, on a machine whose GPU is a number in a file.
Writes one JSON file into benchmarks/results.
"""

import argparse
import json
import random
import time
from pathlib import Path

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.system.engine_worlds import world
from tests.system.keeper_storm import CAPACITY_GIB, Storm

from pgpu.model import JobState


def main() -> int:
    """Let a storm rage, print and write who was killed and what became of the jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    began = time.monotonic()
    with world((CAPACITY_GIB,)) as machine:
        storm = Storm(machine, random.Random(arguments.seed))
        storm.rage(arguments.kills)
        states = [entry.job.state for entry in machine.engine.ledger.entries(include_final=True)]
    report = {
        **circumstances(),
        "seed": arguments.seed,
        "kills": storm.killed,
        "jobs": len(states),
        "ran_once_to_their_end": states.count(JobState.EXITED),
        "ended_unseen": states.count(JobState.FAILED),
        "seconds": round(time.monotonic() - began),
    }
    path = arguments.output / f"kill-storm-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
