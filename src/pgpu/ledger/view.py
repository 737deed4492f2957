"""What one transaction sees: every question it asks is answered from the same moment.

The queue may be ten thousand jobs long, so those that wait are read without what they would run.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from pgpu.errors import JobNotFoundError
from pgpu.ledger.entry import Entry
from pgpu.ledger.rows import SELECT, entry_of, request_of
from pgpu.model import Request
from pgpu.scheduling import Quota

LIVE = "state IN ('waiting', 'starting', 'running') OR (granted_at IS NOT NULL AND released_at IS NULL)"

_WAITING = """
SELECT id, memory_bytes, gpu_count, compute_share, priority, is_estimated, retries_out_of_memory, owner_uid, created_at,
    wait_deadline, signature, json_array_length(place, '$.after') AS predecessors
FROM jobs WHERE state = 'waiting' AND gpu_model IS ? ORDER BY sequence
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What admission needs to know of one waiting job."""

    job_id: str
    request: Request
    owner_uid: int
    created_at_seconds: float
    """Seconds since the epoch."""

    wait_deadline_seconds: float | None
    """As of an entry."""

    signature: str
    has_predecessors: bool
    """Whether it names jobs that must end before it."""


class View:
    """Reads of one transaction; made by `Ledger.view`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def live(self) -> list[Entry]:
        """Return every job that is not final or whose memory is not free yet, oldest first."""
        return self._entries(f"WHERE {LIVE} ORDER BY sequence", ())

    def holding(self) -> list[Entry]:
        """Return every job whose slices count, oldest first."""
        where = "WHERE jobs.id IN (SELECT job_id FROM leases WHERE released_at IS NULL) ORDER BY sequence"
        return self._entries(where, ())

    def waiting(self, gpu_model: str | None) -> list[Waiting]:
        """Return the jobs that wait for GPUs of one model, oldest first."""
        return [_waiting_of(row) for row in self._connection.execute(_WAITING, (gpu_model,))]

    def quotas(self) -> dict[int, Quota]:
        """Return what each user may hold, by UID; who is missing has no quota."""
        rows = self._connection.execute("SELECT uid, memory_bytes, jobs, weight FROM quotas")
        return {row["uid"]: Quota(row["memory_bytes"], row["jobs"], row["weight"]) for row in rows}

    def entry(self, job_id: str) -> Entry:
        """Return one job.

        Raises:
            JobNotFoundError: It is not there.
        """
        found = self._entries("WHERE id = ?", (job_id,))
        if not found:
            raise JobNotFoundError(f"no job {job_id}")
        return found[0]

    def _entries(self, clause: str, arguments: Sequence[str | int]) -> list[Entry]:
        return [entry_of(row) for row in self._connection.execute(f"{SELECT} {clause}", arguments)]


def _waiting_of(row: sqlite3.Row) -> Waiting:
    return Waiting(
        row["id"],
        request_of(row),
        row["owner_uid"],
        row["created_at"],
        row["wait_deadline"],
        row["signature"],
        bool(row["predecessors"]),
    )
