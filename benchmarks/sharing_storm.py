"""Kills random processes while every way of sharing GPUs goes on at once (`python -m benchmarks.sharing_storm`).

After each kill the ledger must agree with the processes, and every other process must go on or report its loss. In the end a
job of each kind runs at once and no process is left. An assertion fails otherwise and prints the seed; the order of kills
depends on the seed and on the machine's timing. `--seconds` bounds the duration. Writes one JSON file into benchmarks/results. `--control` leaves a recovery step
out (tests/soak/sharing_control) and fails unless that is noticed.
"""

import argparse
import json
import secrets
import shutil
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.shim_overhead import RESULTS, circumstances
from tests.soak import sharing_storm
from tests.soak.sharing_kinds import KINDS
from tests.soak.sharing_storm import opened_sharing_storm

CONTROL = Path(sharing_storm.__file__).parent / "sharing_control"

_MOST_SEED = 1 << 31


def main() -> int:
    """Run the storm; print and write the kills and the final states of the jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0, help="kill for so long at most (300)")
    parser.add_argument("--seed", type=int, help="of a storm that is to be tried again")
    parser.add_argument("--image", help="the test image (pgpu-test:latest), for a share of containers")
    parser.add_argument("--control", action="store_true", help="see that a recovery step left out is noticed")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    arguments = parser.parse_args()
    seed = secrets.randbelow(_MOST_SEED) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    kinds = {name: kind for name, kind in KINDS.items() if kind.image is None}
    if arguments.image and shutil.which("docker"):
        kinds["container"] = replace(KINDS["container"], image=arguments.image)
    if arguments.control:
        return 0 if _notices_what_is_left_out(seed) else 1
    began = time.monotonic()
    with opened_sharing_storm(seed, kinds) as storm:
        storm.rage(arguments.kills, arguments.seconds)
        report = {
            **circumstances(),
            "seed": seed,
            "kills": dict(sorted(storm.killed.items())),
            "kills_in_all": storm.killed.total(),
            "jobs_asked": dict(sorted(storm.asked.items())),
            "ends": dict(sorted(storm.books.ends.items())),
            "seconds": round(time.monotonic() - began),
        }
    path = arguments.output / f"sharing-storm-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    print(json.dumps(report, indent=2))
    if storm.killed.total() < arguments.kills:
        print(f"{storm.killed.total()} of {arguments.kills} kills in {arguments.seconds:.0f} s: give it more --seconds")
        return 1
    return 0


def _notices_what_is_left_out(seed: int) -> bool:
    """Only a report on a job that has ended, and is not killed later, counts as noticed."""
    kinds = {name: KINDS[name] for name in ("low", "urgent")}
    with opened_sharing_storm(seed, kinds, {"PYTHONPATH": str(CONTROL)}) as storm:
        away = storm.rage_until_away()
        print(f"away, and not to come back: {', '.join(sorted(away))}", flush=True)
        try:
            storm.calm()
        except AssertionError as exc:
            said = str(exc).splitlines()[0]
            print(f"noticed: {said}")
            return any(job_id in said for job_id in away | storm.away())
    print("a recovery step was left out, and nothing noticed it")
    return False


if __name__ == "__main__":
    raise SystemExit(main())
