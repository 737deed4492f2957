"""Whom an orchestrator gave slices of this node, until it frees them: they outlive the jobs that stand for them.

A reboot ends every job, and the orchestrator believes that what it once prepared is there. It refuses to know whether it is.
"""

import json
import sqlite3
from dataclasses import asdict, dataclass
from typing import Any

from pgpu.model import Claim, SharingWish, Slice


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One claim, and the job that stands for it now."""

    claim: Claim
    job_id: str

    is_freed: bool
    """Whether it only waits for the memory to be free."""


class HeldClaims:
    """Claims by uid, within one transaction; what writes is for decisions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, uid: str) -> ClaimRecord | None:
        """Return one claim; None where it is not held."""
        row = self._connection.execute("SELECT * FROM held_claims WHERE uid = ?", (uid,)).fetchone()
        return None if row is None else _record(row)

    def all(self) -> list[ClaimRecord]:
        """Return every claim, the oldest first."""
        return [_record(row) for row in self._connection.execute("SELECT * FROM held_claims ORDER BY held_at, uid")]

    def put(self, claim: Claim, job_id: str, now_seconds: float) -> None:
        """Keep a claim, or say which job stands for it from now on."""
        self._connection.execute(
            "INSERT INTO held_claims (uid, claim, job_id, held_at) VALUES (?1, ?2, ?3, ?4)"
            " ON CONFLICT (uid) DO UPDATE SET claim = ?2, job_id = ?3",
            (claim.uid, json.dumps(asdict(claim)), job_id, now_seconds),
        )

    def free(self, uid: str, now_seconds: float) -> None:
        """Note that it is to go once its memory is free."""
        self._connection.execute("UPDATE held_claims SET freed_at = ? WHERE uid = ?", (now_seconds, uid))

    def forget(self, uid: str) -> None:
        """Forget it; does nothing where it is gone."""
        self._connection.execute("DELETE FROM held_claims WHERE uid = ?", (uid,))


def _record(row: sqlite3.Row) -> ClaimRecord:
    fields: dict[str, Any] = json.loads(row["claim"])
    slices = tuple(Slice(**part) for part in fields.pop("slices"))
    claim = Claim(**{**fields, "slices": slices, "sharing": SharingWish(fields["sharing"])})
    return ClaimRecord(claim, row["job_id"], row["freed_at"] is not None)
