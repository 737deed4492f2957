"""Write transaction of one decision: no other writer can change what it reads before it commits.

The engine decides; this module writes the new values. The environment of a client is stored once for all jobs that were
submitted with it, and dropped by a trigger with the last such job that is not final, since it may hold secrets. The long parts
of a spec are stored once for all elements of an array, and dropped with the last of them.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pgpu.errors import RequestError
from pgpu.ledger.charges import monotonic_now
from pgpu.ledger.end_commands import end_command, notifies
from pgpu.ledger.rows import Entry, LongParts, Moment, element_columns, immutable_columns, mutable_columns
from pgpu.ledger.view import CONDITIONAL, LIVE, LedgerView, Waiting
from pgpu.model import Gpu, Job, JobSpec, JobState, Lease
from pgpu.scheduling import Admission, Quota, VirtualTime
from pgpu.structs import replace

if TYPE_CHECKING:
    from pgpu.scheduling.virtual_clocks import Machine

Environment = Sequence[tuple[str, str]]

# A running older pgpu still writes the environment into the job's own column.
INHERITANCE_OF_JOB = """
SELECT coalesce(words, environment) AS words, inherited FROM jobs LEFT JOIN environments ON environments.id = environment_id
WHERE jobs.id = ?
"""


@lru_cache(maxsize=16)
def read_environment(words: str) -> tuple[tuple[str, str], ...]:
    """Return the environment in the answer to `INHERITANCE_OF_JOB`."""
    # Cached, since the jobs of an array have one text.
    return tuple((name, value) for name, value in json.loads(words))


_ENDED = "state IN ('exited', 'failed', 'cancelled')"
_HAS_TOO_MANY_ENDED = f"SELECT 1 FROM jobs WHERE {_ENDED} GROUP BY owner_uid HAVING count(*) > ? LIMIT 1"  # noqa: S608 - words of our own

# Ranks each user's final jobs, the newest first. Live jobs, and jobs that a waiting one depends on, are not ranked, so they stay.
_FORGET = f"""
DELETE FROM jobs WHERE sequence IN (
    SELECT sequence FROM (
        SELECT sequence, row_number() OVER (PARTITION BY owner_uid ORDER BY sequence DESC) AS place_from_newest
        FROM jobs LEFT JOIN leases ON leases.job_id = jobs.id
        WHERE {_ENDED} AND NOT ({LIVE}) AND id NOT IN (
            SELECT json_each.value FROM jobs INDEXED BY conditional, json_each(place, '$.after') WHERE {CONDITIONAL}
        )
    ) WHERE place_from_newest > ? ORDER BY sequence LIMIT ?
) RETURNING id
"""  # noqa: S608 - words of our own

MOST_FORGOTTEN = 500
"""Jobs that are deleted in one transaction: others wait for its end."""

MOST_LONG_BYTES = 16 << 20
"""Long parts of specs that are kept of a user's ended jobs; the oldest are dropped, and their jobs show abridged commands."""

# Adds up the long parts of each user's ended jobs, the newest first, each once for all jobs that have it.
_LET_GO = f"""
WITH ended AS (
    SELECT owner_uid, long_spec, max(sequence) AS newest FROM jobs
    WHERE long_spec IS NOT NULL AND {_ENDED} GROUP BY owner_uid, long_spec
), kept AS (
    SELECT long_spec, sum(bytes) OVER (PARTITION BY owner_uid ORDER BY newest DESC) AS with_newer
    FROM ended JOIN long_specs ON id = long_spec
)
UPDATE jobs SET long_spec = NULL WHERE {_ENDED}
    AND long_spec IN (SELECT long_spec FROM kept WHERE with_newer > ?)
"""  # noqa: S608 - words of our own


@lru_cache(maxsize=1)
def _insertion(names: tuple[str, ...]) -> str:
    # Cached, since an array may have ten thousand jobs.
    return f"INSERT INTO jobs ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"  # noqa: S608 - columns of our own


_OWN = ("id", "name", "spec", "place")
"""Columns in which the elements of an array differ."""


@lru_cache(maxsize=1)
def _insertion_of_elements(common: tuple[str, ...]) -> str:
    # The values of the common columns, then a JSON list of those of the others.
    own = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(len(_OWN)))
    marks = ", ".join("?" * len(common))
    return f"INSERT INTO jobs ({', '.join((*common, *_OWN))}) SELECT {marks}, {own} FROM json_each(?)"  # noqa: S608 - likewise


def _alike(entries: Sequence[Entry]) -> Iterator[tuple[Entry, list[Entry]]]:
    """Yield entries that follow each other and differ in id, name and place alone: the first, and the others."""
    others: list[Entry] = []
    first: Entry | None = None
    for entry in entries:
        is_alike = first is not None and first.job.place.batch == entry.job.place.batch
        if first is not None and is_alike and first == _element_of(entry, first, 0):
            others.append(entry)
            continue
        if first is not None:
            yield first, others
        first, others = entry, []
    if first is not None:
        yield first, others


def _element_of(like: Entry, entry: Entry, further: int) -> Entry:
    """Return an entry with its own id, name and place, and all else of another one; its place in the queue is so much further."""
    spec = like.job.spec if entry.job.spec.name is None else replace(like.job.spec, name=entry.job.spec.name)
    job = replace(like.job, id=entry.job.id, spec=spec, place=entry.job.place)
    return replace(like, job=job, sequence=like.sequence + further)


class Decision(LedgerView):
    """Reads and writes of one transaction; created by `Ledger.decision`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        seen: "dict[tuple[Any, ...], Waiting] | None" = None,
        now: Callable[[], Moment] = monotonic_now,
    ) -> None:
        """Read and write over one connection; arguments as for `LedgerView`."""
        super().__init__(connection, seen, now)
        self._environment: tuple[Environment, int | None] = ((), None)
        self._long_parts: tuple[LongParts | None, int | None] = (None, None)

    def add(self, entry: Entry, environment: Environment, inherited: str | None = None) -> Entry:
        """Add a new job at the end of the queue.

        Args:
            entry: A job without a lease.
            environment: Environment of the client; kept until the job is final.
            inherited: What else the job inherits from the client, serialised by the engine.

        Returns:
            The entry as it is stored: with its sequence number, and with an abridged spec if that is long.

        Raises:
            RequestError: The name is in use by a job that is not final.
        """
        # An array's elements share one environment object: it is serialised and looked up once.
        if environment is not self._environment[0]:
            self._environment = (environment, self._put_environment(environment) if environment else None)
        long_spec = self._put_long_parts(entry.job.spec)
        if long_spec is not None:
            entry = replace(entry, job=replace(entry.job, spec=entry.job.spec.abridged()))
        columns = immutable_columns(entry, self._environment[1], inherited, long_spec) | mutable_columns(entry)
        try:
            cursor = self._connection.execute(_insertion(tuple(columns)), list(columns.values()))
        except sqlite3.IntegrityError as exc:  # The unique index on owner and name of unfinished jobs; ids are random.
            raise self._name_error(entry) from exc
        return replace(entry, sequence=cursor.lastrowid or 0)

    def add_all(self, entries: Sequence[Entry], environment: Environment, inherited: str | None = None) -> list[Entry]:
        """Add new jobs at the end of the queue; arguments, result and errors as of `add`.

        Elements of an array are copied from its first one in one statement: with one for each, a thread would lose the interpreter
        ten thousand times in a transaction for which all other writers wait.
        """
        added: list[Entry] = []
        for first, alike in _alike(entries):
            stored = self.add(first, environment, inherited)
            others = [_element_of(stored, entry, number) for number, entry in enumerate(alike, 1)]
            added += [stored, *others]
            if not others:
                continue
            columns = immutable_columns(stored, self._environment[1], inherited, self._long_parts[1])
            columns = {name: value for name, value in (columns | mutable_columns(stored)).items() if name not in _OWN}
            rows = json.dumps([(each.job.id, each.job.spec.name, *element_columns(each)) for each in others])
            try:
                self._connection.execute(_insertion_of_elements(tuple(columns)), [*columns.values(), rows])
            except sqlite3.IntegrityError as exc:
                raise self._name_error(*others) from exc
        return added

    def put(self, entry: Entry) -> None:
        """Write the mutable columns of an existing job; with its end, the job that runs its `--notify` command."""
        if notifies(entry) and not self.entry(entry.job.id).job.state.is_final:
            self._add_end_command(entry.job)
        job = entry.job
        if job.lease is not None:
            self.charges.charge("leases.job_id = ?3", job.id)  # by what it held until now
        columns = mutable_columns(entry)
        assignments = ", ".join(f"{name} = ?" for name in columns)
        statement = f"UPDATE jobs SET {assignments} WHERE id = ?"  # noqa: S608 - column names of our own
        self._connection.execute(statement, [*columns.values(), entry.job.id])
        if job.lease is not None:
            self._put_lease(job.lease, entry.lease_released_at_seconds, self.charges.charged_from(entry))
            if entry.lease_released_at_seconds is not None:
                self.charges.book(job.id, entry.lease_released_at_seconds)

    def cancel_waiting(self, job_ids: Collection[str], now_seconds: float) -> set[str]:
        """Cancel those of these jobs that wait, for their user, and return their ids."""
        notifying = self._connection.execute(
            "SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND state = 'waiting'"
            " AND json_extract(spec, '$.notify') IS NOT NULL",
            (json.dumps(list(job_ids)),),
        )
        for entry in self.entries_of([row["id"] for row in notifying.fetchall()]):
            job = replace(entry.job, state=JobState.CANCELLED, finished_at_seconds=now_seconds, reason=None)
            self._add_end_command(job)
        # The columns of `cancel_entry`; one statement, since an array may have ten thousand jobs.
        rows = self._connection.execute(
            "UPDATE jobs SET state = 'cancelled', finished_at = ?, reason = NULL, warning = NULL,"
            " wait_timed_out = 0"
            " WHERE id IN (SELECT value FROM json_each(?)) AND state = 'waiting' RETURNING id",
            (now_seconds, json.dumps(list(job_ids))),
        )
        return {row["id"] for row in rows.fetchall()}

    def hold(self, job_ids: Collection[str], uid: int, *, takes_over: bool) -> None:
        """Hold those of these jobs that wait, for a user; `takes_over` replaces the hold of another one."""
        self._connection.execute(
            "UPDATE jobs SET held_by = ? WHERE id IN (SELECT value FROM json_each(?)) AND state = 'waiting'"
            " AND (held_by IS NULL OR ?)",
            (uid, json.dumps(list(job_ids)), takes_over),
        )

    def release_held(self, job_ids: Collection[str], now_seconds: float) -> None:
        """Release those of these jobs that are held; their wait, and its limit, count from now on or from their begin."""
        self._connection.execute(
            "UPDATE jobs SET held_by = NULL, reason = NULL, eligible_at = ?1, wait_deadline = max(?1, ifnull(begin_at, ?1))"
            " + max(0.0, wait_deadline - max(ifnull(eligible_at, created_at), ifnull(begin_at, 0.0)))"
            " WHERE id IN (SELECT value FROM json_each(?2)) AND state = 'waiting' AND held_by IS NOT NULL",
            (now_seconds, json.dumps(list(job_ids))),
        )

    def put_reasons(self, reasons: Mapping[str, str]) -> None:
        """Write the reasons of waiting jobs, by id."""
        self._connection.executemany(
            "UPDATE jobs SET reason = ?2 WHERE id = ?1 AND state = 'waiting'", list(reasons.items())
        )

    def mark_eligible(self, job_ids: Collection[str], now_seconds: float) -> None:
        """Mark waiting jobs as eligible: only memory and the order of the queue delay them, and their wait counts from now on."""
        self._connection.executemany(
            "UPDATE jobs SET reason = NULL, eligible_at = ?2 WHERE id = ?1 AND state = 'waiting'",
            [(job_id, now_seconds) for job_id in job_ids],
        )

    def forget_oldest(self, most_kept: int) -> list[str]:
        """Delete each user's oldest final jobs beyond `most_kept`, `MOST_FORGOTTEN` at a time, and return their ids.

        A job that a waiting job depends on is kept. Long parts of specs go beyond `MOST_LONG_BYTES`.
        """
        if self._connection.execute("SELECT 1 FROM long_specs LIMIT 1").fetchone() is not None:
            self._connection.execute(_LET_GO, (MOST_LONG_BYTES,))
        # Counted first: `_FORGET` reads the dependencies of all waiting jobs.
        if self._connection.execute(_HAS_TOO_MANY_ENDED, (most_kept,)).fetchone() is None:
            return []
        rows = self._connection.execute(_FORGET, (most_kept, MOST_FORGOTTEN))
        return [row["id"] for row in rows.fetchall()]

    def put_estimates(
        self, gpu_model: str | None, estimates: Mapping[tuple[str, int, int, bool], tuple[int, str]]
    ) -> None:
        """Update the estimates of waiting jobs with a size chosen by pgpu, except retries.

        Args:
            gpu_model: Of the jobs.
            estimates: By signature, UID, number of GPUs and whether slices may not be able to grow: bytes, and their basis.
        """
        self._connection.executemany(
            "UPDATE jobs SET memory_bytes = ?1, basis = ?2 WHERE state = 'waiting' AND gpu_model IS ?3 AND basis IS NOT NULL"
            " AND attempt = 1 AND signature = ?4 AND owner_uid = ?5 AND gpu_count = ?6"
            " AND (oversubscribes OR sharing IN ('mps', 'auto')) = ?7 AND (memory_bytes, basis) IS NOT (?1, ?2)",
            [(size, basis, gpu_model, *call) for call, (size, basis) in estimates.items()],
        )

    def requeue(self, job_id: str, since_seconds: float | None, wait_deadline_seconds: float | None) -> None:
        """Delete a lease as if it had never been granted; its memory must be free.

        Args:
            job_id: Its job, which waits again.
            since_seconds: Start of its wait, in seconds since the epoch; None for that of its wait before.
            wait_deadline_seconds: End of its wait, in seconds since the epoch; None for no limit.
        """
        self.charges.charge("leases.job_id = ?3", job_id)
        self.charges.book(job_id, time.time())
        self._connection.execute("DELETE FROM leases WHERE job_id = ?", (job_id,))
        statement = "UPDATE jobs SET wait_deadline = ?, eligible_at = ifnull(?, eligible_at) WHERE id = ?"
        self._connection.execute(statement, (wait_deadline_seconds, since_seconds, job_id))

    def put_precedence(
        self, gpu_model: str | None, admission: Admission, before: VirtualTime, machine: "Machine"
    ) -> None:
        """Write the state of the order for the next round; its grants must have been written before.

        Args:
            gpu_model: Of the queue.
            admission: Outcome of the round.
            before: Virtual time that the round started from.
            machine: What its shares are relative to.
        """
        # Deleted in any case: without a reservation in this round, that of the round before must not stay.
        of_the_queue = "DELETE FROM claims WHERE (SELECT gpu_model FROM jobs WHERE id = job_id) IS ?"
        self._connection.execute(of_the_queue, (gpu_model,))
        kept = admission.reservation
        if kept is not None:
            times = (kept.since_seconds, kept.start_seconds, kept.until_seconds, kept.unable_since_seconds)
            values = (kept.job_id, json.dumps(kept.gpu_uuids), *times)
            self._connection.execute("INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?)", values)
        late = [(grant.job_id,) for grant in admission.grants if grant.is_late]
        self._connection.executemany("UPDATE leases SET went_first = 1 WHERE job_id = ?", late)
        self.charges.put_virtual_time(gpu_model, before, admission.time, machine)

    def put_quota(self, uid: int, quota: Quota | None) -> None:
        """Write the quota of one user; None removes it."""
        self.charges.charge("owner_uid = ?3", uid)  # by the weight before
        if quota is None:
            self._connection.execute("DELETE FROM quotas WHERE uid = ?", (uid,))
        else:
            hours = quota.gpu_hours
            most, period = (None, None) if hours is None else (hours.most, hours.period.value)
            self._connection.execute(
                "INSERT OR REPLACE INTO quotas (uid, memory_bytes, jobs, weight, gpu_hours, period) VALUES (?, ?, ?, ?, ?, ?)",
                (uid, quota.memory_bytes, quota.jobs, quota.weight, most, period),
            )

    def close_gpu(self, uuid: str, now_seconds: float) -> None:
        """Close a GPU, or `ALL_GPUS`, to new jobs; the time of the first call stays."""
        self._connection.execute("INSERT OR IGNORE INTO closed_gpus VALUES (?, ?)", (uuid, now_seconds))

    def open_gpu(self, uuid: str) -> None:
        """Open a GPU to new jobs; does nothing if it is open."""
        self._connection.execute("DELETE FROM closed_gpus WHERE uuid = ?", (uuid,))

    def put_gpus(self, gpus: Sequence[Gpu], now_seconds: float) -> None:
        """Store the properties of each GPU, for when it is gone."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO gpus (uuid, name, memory_bytes, driver_version, is_simulated, seen_at, part)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (g.uuid, g.name, g.memory_bytes, g.driver_version, int(g.is_simulated), now_seconds, g.part)
                for g in gpus
            ],
        )

    def _add_end_command(self, ended: Job) -> None:
        # Before the job is final: then its environment would be gone. The client that offered to start the monitor of
        # the ended job offers nothing for this one.
        command = self.add(end_command(ended), ())
        self._connection.execute(
            "UPDATE jobs SET (environment_id, environment, inherited) ="
            " (SELECT environment_id, environment, json_remove(inherited, '$.starter') FROM jobs WHERE id = ?)"
            " WHERE id = ?",
            (ended.id, command.job.id),
        )

    def _put_environment(self, environment: Environment) -> int:
        # ON CONFLICT changes nothing and returns no id, so the id is read afterwards; the transaction excludes other writers.
        words = json.dumps(list(environment))
        self._connection.execute("INSERT INTO environments (words) VALUES (?) ON CONFLICT DO NOTHING", (words,))
        row = self._connection.execute("SELECT id FROM environments WHERE words = ?", (words,)).fetchone()
        return int(row[0])

    def _put_long_parts(self, spec: JobSpec) -> int | None:
        # The elements of an array share these tuples. A container of the engine, or a claim, is found by its environment.
        parts, (last, _) = LongParts.of(spec), self._long_parts
        is_same = last is not None and all(
            ours is theirs
            for ours, theirs in (
                (parts.command, last.command),
                (parts.environment, last.environment),
                (parts.volumes, last.volumes),
            )
        )
        if not is_same:
            text = parts.text() if spec.runtime in {"process", "docker"} else None
            statement = "INSERT INTO long_specs (parts, bytes) VALUES (?1, length(?1))"
            key = None if text is None else self._connection.execute(statement, (text,)).lastrowid
            self._long_parts = parts, key
        return self._long_parts[1]

    def _put_lease(
        self, lease: Lease, released_at_seconds: float | None, charged_from: tuple[float | None, str | None]
    ) -> None:
        # An upsert, since REPLACE would delete the row first: its slices with it (ON DELETE CASCADE), and its amounts.
        self._connection.execute(
            "INSERT INTO leases (job_id, granted_at, released_at, enforcer, is_advisory, sharing, charged_since, charged_boot,"
            " gpu_seconds, byte_seconds) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 0.0, 0.0) ON CONFLICT (job_id) DO UPDATE"
            " SET granted_at = ?2, released_at = ?3, enforcer = ?4, is_advisory = ?5, sharing = ?6,"
            " charged_since = ?7, charged_boot = ?8",
            (
                lease.job_id,
                lease.granted_at_seconds,
                released_at_seconds,
                lease.enforcer,
                int(lease.is_advisory),
                lease.sharing.value,
                *charged_from,
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

    def _name_error(self, *entries: Entry) -> RequestError:
        names = [entry.job.spec.name for entry in entries]
        row = self._connection.execute(
            "SELECT id, name FROM jobs WHERE name IN (SELECT value FROM json_each(?)) AND owner_uid = ?"
            " AND state IN ('waiting', 'starting', 'running')",
            (json.dumps(names), entries[0].job.owner_uid),
        ).fetchone()
        holder, name = (f"job {row[0]}", row[1]) if row else ("another job", names[0])
        return RequestError(f"the name {name!r} is taken by {holder}", hint="choose another --name, or stop that job")
