"""One writer's turn: what it reads stays true until what it writes is durable.

It refuses to decide: the engine brings new values, this writes them.
"""

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pgpu.errors import RequestError
from pgpu.ledger.rows import Entry, columns_of_arrival, columns_of_life
from pgpu.ledger.view import LIVE, View, Waiting
from pgpu.model import Gpu, Lease
from pgpu.scheduling import Admission, Quota

Environment = Sequence[tuple[str, str]]

_OF_JOB = """
SELECT coalesce(words, environment) AS words FROM jobs LEFT JOIN environments ON environments.id = environment_id
WHERE jobs.id = ?
"""
"""A pgpu of an older version that still runs writes a job's environment beside it."""


class Environments:
    """Writes of one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._last: tuple[Environment, int | None] = ((), None)

    def keep(self, environment: Environment) -> int | None:
        """Store one, unless it is there, and return its number; None for an empty one."""
        if environment is not self._last[0]:
            self._last = (environment, self._kept(environment) if environment else None)
        return self._last[1]

    def _kept(self, environment: Environment) -> int:
        words = json.dumps(list(environment))
        self._connection.execute("INSERT INTO environments (words) VALUES (?) ON CONFLICT DO NOTHING", (words,))
        row = self._connection.execute("SELECT id FROM environments WHERE words = ?", (words,)).fetchone()
        return int(row[0])


def environment_of(connection: sqlite3.Connection, job_id: str) -> tuple[tuple[str, str], ...]:
    """Return what a job was asked for with; empty once it is final."""
    row = connection.execute(_OF_JOB, (job_id,)).fetchone()
    if row is None or row["words"] is None:
        return ()
    return tuple((name, value) for name, value in json.loads(row["words"]))


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


_FORGET = f"""
DELETE FROM jobs WHERE sequence IN (
    SELECT sequence FROM (
        SELECT sequence, row_number() OVER (PARTITION BY owner_uid ORDER BY sequence DESC) AS place_from_newest
        FROM jobs LEFT JOIN leases ON leases.job_id = jobs.id
        WHERE NOT ({LIVE}) AND id NOT IN (
            SELECT json_each.value FROM jobs AS waiting, json_each(waiting.place, '$.after')
            WHERE waiting.state = 'waiting'
        )
    ) WHERE place_from_newest > ?
) RETURNING id
"""  # noqa: S608 - words of our own


class Decision(View):
    """Reads and writes of one transaction; made by `Ledger.decision`."""

    def __init__(self, connection: sqlite3.Connection, seen: "dict[tuple[Any, ...], Waiting] | None" = None) -> None:
        """Read and write over one connection; arguments as of `View`."""
        super().__init__(connection, seen)
        self._environments = Environments(connection)

    def add(self, entry: Entry, environment: Environment, inherited: str | None = None) -> Entry:
        """Put a new job at the end of the queue.

        Args:
            entry: A job without a lease.
            environment: What its asker's environment was; kept until the job is final.
            inherited: What else a supervisor inherits of its asker, as the engine writes it.

        Returns:
            The entry with its place in the queue.

        Raises:
            RequestError: A job that is not final has its name.
        """
        columns = columns_of_arrival(entry, self._environments.keep(environment), inherited) | columns_of_life(entry)
        names, marks = ", ".join(columns), ", ".join("?" * len(columns))
        statement = f"INSERT INTO jobs ({names}) VALUES ({marks})"  # noqa: S608 - column names of our own
        try:
            cursor = self._connection.execute(statement, list(columns.values()))
        except sqlite3.IntegrityError as exc:
            raise self._name_taken(entry) from exc
        return replace(entry, sequence=cursor.lastrowid or 0)

    def put(self, entry: Entry) -> None:
        """Write what may change of a job that is there."""
        columns = columns_of_life(entry)
        assignments = ", ".join(f"{name} = ?" for name in columns)
        statement = f"UPDATE jobs SET {assignments} WHERE id = ?"  # noqa: S608 - column names of our own
        self._connection.execute(statement, [*columns.values(), entry.job.id])
        if entry.job.lease is not None:
            self._put_lease(entry.job.lease, entry.lease_released_at_seconds)

    def put_reasons(self, reasons: Mapping[str, str]) -> None:
        """Write why jobs wait, by id; nothing else of them changes."""
        self._connection.executemany(
            "UPDATE jobs SET reason = ?2 WHERE id = ?1 AND state = 'waiting'", list(reasons.items())
        )

    def let_go(self, job_ids: Collection[str], now_seconds: float) -> None:
        """Write of waiting jobs that nothing but memory and their turn keeps them any more: their wait counts from now on."""
        self._connection.executemany(
            "UPDATE jobs SET reason = NULL, eligible_at = ?2 WHERE id = ?1 AND state = 'waiting'",
            [(job_id, now_seconds) for job_id in job_ids],
        )

    def forget_oldest(self, most_kept: int) -> list[str]:
        """Remove each user's oldest jobs to which nothing can happen any more, beyond so many, and return their ids.

        How a job ended that others wait for is kept.
        """
        rows = self._connection.execute(_FORGET, (most_kept,))
        return [row["id"] for row in rows.fetchall()]

    def put_estimates(self, gpu_model: str | None, estimates: Mapping[tuple[str, int, int], tuple[int, str]]) -> None:
        """Change what waiting jobs reserve whose size pgpu chose, those on a second try left alone.

        Args:
            gpu_model: Of the jobs.
            estimates: By signature, UID and number of GPUs: bytes, and what they rest on.
        """
        self._connection.executemany(
            "UPDATE jobs SET memory_bytes = ?1, basis = ?2 WHERE state = 'waiting' AND gpu_model IS ?3 AND basis IS NOT NULL"
            " AND attempt = 1 AND signature = ?4 AND owner_uid = ?5 AND gpu_count = ?6 AND (memory_bytes, basis) IS NOT (?1, ?2)",
            [(size, basis, gpu_model, *call) for call, (size, basis) in estimates.items()],
        )

    def begin_again(self, job_id: str, now_seconds: float, wait_deadline_seconds: float | None) -> None:
        """Forget a lease as if it had never been granted; its memory must be free.

        Args:
            job_id: Its job, which waits again.
            now_seconds: From when on its wait counts, in seconds since the epoch.
            wait_deadline_seconds: Until when, in seconds since the epoch; None for as long as it takes.
        """
        self._connection.execute("DELETE FROM leases WHERE job_id = ?", (job_id,))
        statement = "UPDATE jobs SET wait_deadline = ?, eligible_at = ? WHERE id = ?"
        self._connection.execute(statement, (wait_deadline_seconds, now_seconds, job_id))

    def put_precedence(self, gpu_model: str | None, admission: Admission) -> None:
        """Write what a round tells the next; its grants must have been put."""
        write_precedence(self._connection, gpu_model, admission)

    def put_quota(self, uid: int, quota: Quota | None) -> None:
        """Write what one user may hold; None for as much as there is."""
        if quota is None:
            self._connection.execute("DELETE FROM quotas WHERE uid = ?", (uid,))
        else:
            values = (uid, quota.memory_bytes, quota.jobs, quota.weight)
            self._connection.execute("INSERT OR REPLACE INTO quotas VALUES (?, ?, ?, ?)", values)

    def close_gpu(self, uuid: str, now_seconds: float) -> None:
        """Let nothing new start on a GPU, or on `ALL_GPUS`."""
        self._connection.execute("INSERT OR IGNORE INTO closed_gpus VALUES (?, ?)", (uuid, now_seconds))

    def open_gpu(self, uuid: str) -> None:
        """Let jobs start there again; does nothing if they may."""
        self._connection.execute("DELETE FROM closed_gpus WHERE uuid = ?", (uuid,))

    def see(self, gpus: Sequence[Gpu], now_seconds: float) -> None:
        """Keep what was found of each GPU, for the day when it is gone."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO gpus VALUES (?, ?, ?, ?, ?, ?)",
            [(g.uuid, g.name, g.memory_bytes, g.driver_version, int(g.is_simulated), now_seconds) for g in gpus],
        )

    def _put_lease(self, lease: Lease, released_at_seconds: float | None) -> None:
        self._connection.execute(
            "INSERT INTO leases (job_id, granted_at, released_at, enforcer, is_advisory, sharing)"
            " VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (job_id) DO UPDATE"
            " SET granted_at = ?2, released_at = ?3, enforcer = ?4, is_advisory = ?5, sharing = ?6",
            (
                lease.job_id,
                lease.granted_at_seconds,
                released_at_seconds,
                lease.enforcer,
                int(lease.is_advisory),
                lease.sharing.value,
            ),
        )
        self._connection.executemany(
            "INSERT OR REPLACE INTO slices (job_id, position, gpu_uuid, memory_bytes, compute_share, resident_bytes)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            [
                (lease.job_id, place, part.gpu_uuid, part.memory_bytes, part.compute_share, part.resident_bytes)
                for place, part in enumerate(lease.slices)
            ],
        )

    def _name_taken(self, entry: Entry) -> RequestError:
        name = entry.job.spec.name
        row = self._connection.execute(
            "SELECT id FROM jobs WHERE name = ? AND owner_uid = ? AND state IN ('waiting', 'starting', 'running')",
            (name, entry.job.owner_uid),
        ).fetchone()
        holder = f"job {row[0]}" if row else "another job"
        return RequestError(f"the name {name!r} is taken by {holder}", hint="choose another --name, or stop that job")
