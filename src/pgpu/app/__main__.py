"""`python -m pgpu.app … supervise JOB` and `… keep MODEL LOCK`: what supervisors and keepers are started as.

Not for users: whatever goes wrong ends in the job's record or in a log of the state directory.
"""

import argparse

from pgpu.app.composition import supervise
from pgpu.app.settings import load_settings


def main() -> None:
    """Be a job's supervisor, or the keeper of a queue."""
    parser = argparse.ArgumentParser(prog="python -m pgpu.app", description=__doc__)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--runtime-dir")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("supervise").add_argument("job_id")
    keeping = verbs.add_parser("keep")
    keeping.add_argument("gpu_model", help="empty for real GPUs")
    keeping.add_argument("lock", type=int, help="descriptor that holds the keeper's lock; -1 for none")
    words = parser.parse_args()
    settings = load_settings({"state_dir": words.state_dir, "runtime_dir": words.runtime_dir})
    if words.verb == "supervise":
        supervise(settings, words.job_id)
    else:
        from pgpu.app.keeping import keep

        keep(settings, words.gpu_model or None, words.lock)


if __name__ == "__main__":
    main()
