"""For whom GPUs are kept, and who went first: what one round of admission tells the next, whichever process makes it."""

import json
import sqlite3

from pgpu.scheduling import Admission, OverdueReservation, Precedence, ServedJob
from pgpu.scheduling.precedence import COUNTED_RUNS, LONGEST_SECONDS

_CLAIM = """
SELECT job_id, gpu_uuids, chosen_at, promised_at, kept_until, unable_since FROM claims JOIN jobs ON jobs.id = claims.job_id
WHERE jobs.gpu_model IS ? AND jobs.state = 'waiting' ORDER BY chosen_at LIMIT 1
"""

_SERVED = """
SELECT owner_uid, (SELECT sum(memory_bytes) FROM slices WHERE slices.job_id = leases.job_id), granted_at, released_at
FROM leases JOIN jobs ON jobs.id = leases.job_id
WHERE went_first = 1 AND granted_at > (julianday('now') - 2440587.5) * 86400 - ?2 AND jobs.gpu_model IS ?1
ORDER BY granted_at
"""


def read_precedence(connection: sqlite3.Connection, gpu_model: str | None) -> Precedence:
    """Return what the last round left for the queue of one kind of GPUs."""
    row = connection.execute(_CLAIM, (gpu_model,)).fetchone()
    kept = None if row is None else OverdueReservation(row[0], tuple(json.loads(row[1])), *tuple(row)[2:])
    served = connection.execute(_SERVED, (gpu_model, COUNTED_RUNS * LONGEST_SECONDS))
    return Precedence(kept, tuple(ServedJob(*row) for row in served if row[1] is not None))


def write_precedence(connection: sqlite3.Connection, gpu_model: str | None, admission: Admission) -> None:
    """Write what a round leaves: for which one of the queue GPUs are kept now, and which of those granted went first."""
    of_the_queue = "DELETE FROM claims WHERE (SELECT gpu_model FROM jobs WHERE id = job_id) IS ?"
    connection.execute(of_the_queue, (gpu_model,))
    kept = admission.reservation
    if kept is not None:
        times = (kept.since_seconds, kept.start_seconds, kept.until_seconds, kept.unable_since_seconds)
        values = (kept.job_id, json.dumps(kept.gpu_uuids), *times)
        connection.execute("INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?)", values)
    first = [(grant.job_id,) for grant in admission.grants if grant.went_first]
    connection.executemany("UPDATE leases SET went_first = 1 WHERE job_id = ?", first)
