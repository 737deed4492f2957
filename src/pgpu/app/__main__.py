"""`python -m pgpu.app … supervise JOB`: what a job's supervisor is started as.

Not for users: whatever goes wrong ends in the job's record or in its supervisor's log.
"""

import argparse

from pgpu.app.settings import load_settings
from pgpu.app.wiring import supervise


def main() -> None:
    """Be a job's supervisor."""
    parser = argparse.ArgumentParser(prog="python -m pgpu.app", description=__doc__)
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--runtime-dir")
    parser.add_argument("verb", choices=["supervise"])
    parser.add_argument("job_id")
    words = parser.parse_args()
    supervise(load_settings({"state_dir": words.state_dir, "runtime_dir": words.runtime_dir}), words.job_id)


if __name__ == "__main__":
    main()
