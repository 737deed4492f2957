"""Kubernetes claims that hold slices of this node, until they are freed. They outlive their jobs.

A reboot ends every job, but the orchestrator assumes that prepared claims still exist, so they are granted again.
"""

import json
import sqlite3
from dataclasses import asdict, dataclass
from typing import Any

from pgpu.model import Claim, SharingWish, Slice


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One claim and its current job."""

    claim: Claim
    job_id: str

    is_freed: bool
    """Whether it is freed and only waits until its memory is free."""


class HeldClaims:
    """Claims by uid, within one transaction; methods that write are for decisions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, uid: str) -> ClaimRecord | None:
        """Return one claim; None if it is not held."""
        row = self._connection.execute("SELECT * FROM held_claims WHERE uid = ?", (uid,)).fetchone()
        return None if row is None else _record(row)

    def all(self) -> list[ClaimRecord]:
        """Return every claim, the oldest first."""
        return [_record(row) for row in self._connection.execute("SELECT * FROM held_claims ORDER BY held_at, uid")]

    def put(self, claim: Claim, job_id: str, now_seconds: float) -> None:
        """Store a claim, or replace its job."""
        self._connection.execute(
            "INSERT INTO held_claims (uid, claim, job_id, held_at) VALUES (?1, ?2, ?3, ?4)"
            " ON CONFLICT (uid) DO UPDATE SET claim = ?2, job_id = ?3",
            (claim.uid, json.dumps(asdict(claim)), job_id, now_seconds),
        )

    def free(self, uid: str, now_seconds: float) -> None:
        """Mark it as freed; it is deleted once its memory is free."""
        self._connection.execute("UPDATE held_claims SET freed_at = ? WHERE uid = ?", (now_seconds, uid))

    def forget(self, uid: str) -> None:
        """Delete it; does nothing if it does not exist."""
        self._connection.execute("DELETE FROM held_claims WHERE uid = ?", (uid,))


def _record(row: sqlite3.Row) -> ClaimRecord:
    fields: dict[str, Any] = json.loads(row["claim"])
    slices = tuple(Slice(**part) for part in fields.pop("slices"))
    claim = Claim(**{**fields, "slices": slices, "sharing": SharingWish(fields["sharing"])})
    return ClaimRecord(claim, row["job_id"], row["freed_at"] is not None)
