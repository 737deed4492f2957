"""What ended runs showed, by program, GPU model and user: the memory of the queue.

It outlives the jobs themselves, which are forgotten sooner. It refuses to estimate: `scheduling.demand` does.
"""

import sqlite3
from collections.abc import Collection, Sequence

from pgpu.model import Run

MOST_RUNS_OF_A_PROGRAM = 500
"""So many of the newest are looked at."""

_COLUMNS = (
    "signature, gpu_name, job_id, owner_uid, slice_bytes, peak_bytes, context_bytes, refusals, duration_seconds,"
    " ended_at, exit_code"
)
_PUT = f"INSERT INTO runs ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - words of our own
_OF_PROGRAM = f"""
SELECT {_COLUMNS} FROM runs
WHERE (signature = ?1 OR signature >= ?1 || ' ' AND signature < ?1 || '!') AND owner_uid = ?2 AND gpu_name = ?3
ORDER BY sequence DESC LIMIT ?4
"""  # noqa: S608 - words of our own
_ALL = f"SELECT {_COLUMNS} FROM runs WHERE ?1 IS NULL OR owner_uid = ?1 ORDER BY sequence DESC LIMIT ?2"  # noqa: S608 - likewise
_DURATIONS = """
SELECT duration_seconds FROM runs WHERE signature = ? AND exit_code = 0 ORDER BY sequence DESC LIMIT ?
"""


class History:
    """Reads and, in a decision, writes of one transaction; made by `View.history`."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, run: Run) -> None:
        """Remember one run; only in a decision."""
        self._connection.execute(
            _PUT,
            (
                run.signature,
                run.gpu_name,
                run.job_id,
                run.owner_uid,
                run.slice_bytes,
                run.peak_bytes,
                run.context_bytes,
                run.refusals,
                run.duration_seconds,
                run.ended_at_seconds,
                run.exit_code,
            ),
        )

    def forget_all_but(self, most_kept: int) -> None:
        """Remove the oldest runs beyond so many."""
        self._connection.execute(
            "DELETE FROM runs WHERE sequence <= (SELECT max(sequence) FROM runs) - ?", (most_kept,)
        )

    def of_program(self, program: str, gpu_name: str, owner_uid: int) -> list[Run]:
        """Return the newest runs of every call of one program, oldest first.

        Args:
            program: First word of its signatures.
            gpu_name: Product name of the GPUs that they ran on.
            owner_uid: Whose runs; another user's tell nothing.
        """
        arguments = (program, owner_uid, gpu_name, MOST_RUNS_OF_A_PROGRAM)
        return [_run_of(row) for row in self._connection.execute(_OF_PROGRAM, arguments)][::-1]

    def runs(self, owner_uid: int | None, most: int) -> list[Run]:
        """Return the newest runs of one user, or of all, oldest first."""
        return [_run_of(row) for row in self._connection.execute(_ALL, (owner_uid, most))][::-1]

    def need_of_call(self, signature: str, owner_uid: int) -> list[int]:
        """Return the peaks of a call's runs on any GPU, in bytes, take-all ones left out."""
        rows = self._connection.execute(
            "SELECT peak_bytes FROM runs WHERE signature = ? AND owner_uid = ? AND peak_bytes < 0.9 * slice_bytes",
            (signature, owner_uid),
        )
        return [row[0] for row in rows]

    def newest(self) -> int:
        """Return the newest run's number; 0 if there is none."""
        return int(self._connection.execute("SELECT coalesce(max(sequence), 0) FROM runs").fetchone()[0])

    def since(self, number: int) -> tuple[int, set[str]]:
        """Return the newest run's number, and which calls ran after the run of `number`."""
        newest = self.newest()
        if newest == number:
            return newest, set()
        rows = self._connection.execute("SELECT DISTINCT signature FROM runs WHERE sequence > ?", (number,))
        return newest, {row[0] for row in rows}

    def durations(self, signatures: Collection[str], most_runs: int) -> dict[str, Sequence[float]]:
        """Return how long the newest runs of each call lasted that ended well, in seconds; without those that have none."""
        found = {
            signature: [row[0] for row in self._connection.execute(_DURATIONS, (signature, most_runs))]
            for signature in signatures
        }
        return {signature: seconds for signature, seconds in found.items() if seconds}


def _run_of(row: sqlite3.Row) -> Run:
    return Run(
        signature=row["signature"],
        gpu_name=row["gpu_name"],
        job_id=row["job_id"],
        owner_uid=row["owner_uid"],
        slice_bytes=row["slice_bytes"],
        peak_bytes=row["peak_bytes"],
        context_bytes=row["context_bytes"],
        refusals=row["refusals"],
        duration_seconds=row["duration_seconds"],
        ended_at_seconds=row["ended_at"],
        exit_code=row["exit_code"],
    )
