"""Writes to a ledger without end, and says what was acknowledged: `ledger_storm.py LEDGER`. To be killed."""

import sys
from pathlib import Path

from pgpu.ledger import Entry, Ledger
from pgpu.model import Job, JobSpec, JobState, Lease, Request, Slice
from pgpu.structs import replace

ledger = Ledger(Path(sys.argv[1]))
prefix = sys.argv[2]
number = 0
while True:
    job_id = f"{prefix}-{number}"
    job = Job(job_id, JobSpec(("true",), "process"), Request(1), JobState.WAITING, 0.0)
    lease = Lease(job_id, (Slice("GPU-0", 5), Slice("GPU-1", 5)), 1.0)
    with ledger.decision() as decision:
        entry = decision.add(Entry(job), (("A", "x" * 5000),))
        decision.put(replace(entry, job=replace(job, state=JobState.RUNNING, lease=lease)))
    sys.stdout.write(f"{job_id}\n")
    sys.stdout.flush()
    number += 1
