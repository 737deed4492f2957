"""Kills random processes under load (`python -m benchmarks.kill_storm`): with a server, without one, and for the GPU's lock.

With a server: server, agents, guards, jobs and clients, of which some jobs are containers if `--image` names their
image. Without one: agents, guards, monitors, jobs and clients, one of seven stopped instead of killed. For the lock: agent or
guard of a running job, while another ledger tries to get its GPU some hundred times a second. After each kill the ledger must agree with the processes, and in the end every
accepted job has run exactly once, to its end, or never, with a recorded reason: an assertion fails otherwise and prints the
seed. The order of kills depends on the seed and on the machine's timing. Writes one JSON file into benchmarks/results.
"""

import argparse
import json
import math
import random
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.soak.server_storm import opened_storm
from tests.system.agent_storm import CAPACITY_GIB, Storm
from tests.system.engine_worlds import world
from tests.system.lock_storm import LockStorm

from pgpu.engine.leases.recovery import LOST
from pgpu.ledger import Entry
from pgpu.model import JobState

_MOST_SEED = 1 << 31
_STORMS = ("server", "agent", "lock")


def main() -> int:
    """Run the storms; print and write the kills and the final states of the jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="in each of the storms")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="fewer kills once these are over; not with a server"
    )
    parser.add_argument("--seed", type=int, help="of a storm that is to be tried again")
    parser.add_argument("--image", help="the test image (pgpu-test:latest), for a share of containers")
    parser.add_argument("--only", choices=_STORMS, nargs="+", default=_STORMS, help="some of the storms alone")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    seed = secrets.randbelow(_MOST_SEED) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    report: dict[str, Any] = {**circumstances(), "seed": seed}
    if "server" in arguments.only:
        report["with_a_server"] = _timed(lambda: _server_storm(seed, arguments.kills, arguments.image))
    if "agent" in arguments.only:
        report["without_a_server"] = _timed(lambda: _agent_storm(seed, arguments.kills, arguments.minutes * 60))
    if "lock" in arguments.only:
        report["lock_of_a_gpu"] = _timed(lambda: _lock_storm(seed, arguments.kills, arguments.minutes * 60))
    path = arguments.output / f"kill-storm-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    return 0


def _timed(rage: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    began = time.monotonic()
    return {**rage(), "seconds": round(time.monotonic() - began)}


def _server_storm(seed: int, kills: int, image: str | None) -> dict[str, Any]:
    with opened_storm(seed, image) as storm:
        storm.rage(kills)
        found = _counted(storm.killed, storm.books.ledger.entries(include_final=True))
        return {**found, "commands_that_were_told_the_truth": storm.truths}


def _agent_storm(seed: int, kills: int, most_seconds: float) -> dict[str, Any]:
    with world((CAPACITY_GIB,)) as machine:
        storm = Storm(machine, random.Random(seed))
        storm.rage(kills, most_seconds)
        return _counted(storm.killed, machine.engine.ledger.entries(include_final=True))


def _lock_storm(seed: int, kills: int, most_seconds: float) -> dict[str, Any]:
    with world((CAPACITY_GIB,)) as machine:
        storm = LockStorm(machine, random.Random(seed))
        storm.rage(kills, most_seconds)
        return {"kills": storm.killed, "other_ledger_was_refused": storm.refused, "other_ledger_was_granted": 0}


def _counted(killed: dict[str, int], entries: Sequence[Entry]) -> dict[str, Any]:
    ended = [entry.job for entry in entries]
    return {
        "kills": dict(sorted(killed.items())),
        "jobs": len(ended),
        "containers": sum(job.spec.runtime == "docker" for job in ended),
        "ran_once_to_their_end": sum(job.exit_code == 0 for job in ended),
        "killed_by_the_storm": sum(job.state is JobState.EXITED and job.exit_code != 0 for job in ended),
        "ended_unseen": sum(job.error == LOST for job in ended),
    }


if __name__ == "__main__":
    raise SystemExit(main())
