"""Read transaction: all queries see the same snapshot.

The queue may be ten thousand jobs long, so waiting jobs are read without their specs, and rows that did not change since the
last view are not converted again.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from pgpu.errors import JobNotFoundError
from pgpu.ledger.charges import HOUR_SECONDS, Charges, bounds_of, monotonic_now
from pgpu.ledger.history import History, Profiles
from pgpu.ledger.rows import SELECT, Entry, Moment, entry_of
from pgpu.ledger.small_tables import HeldClaims
from pgpu.model import Batch, GpuHours, JobState, Objective, OnTimeLimit, Period, Place, Request, SharingWish
from pgpu.scheduling import OverdueReservation, Precedence, Quota
from pgpu.structs import Struct
from pgpu.units import is_text

ALL_GPUS = "*"

# Cached rows of jobs that no longer wait are dropped only when they are this many more than the waiting ones.
_MOST_FORGOTTEN = 1000

NOT_FINAL = "state IN ('waiting', 'starting', 'running')"
LIVE = f"{NOT_FINAL} OR (granted_at IS NOT NULL AND released_at IS NULL)"

_WANTS = """
SELECT id, memory_bytes, gpu_count, compute_share, priority, is_estimated, retries_out_of_memory, basis,
    is_strict, sharing, oversubscribes, preempts, measures, objective, time_limit, on_time_limit, gpu_models, owner_uid
"""

_WAITING = f"""{_WANTS}, max(ifnull(eligible_at, created_at), ifnull(begin_at, 0)), wait_deadline, signature, json_array_length(place, '$.after'), NULL,
    batch
FROM jobs WHERE state = 'waiting' AND gpu_model IS ? ORDER BY sequence
"""

# Parked jobs that wait for their lease again, on its GPU.
RETURNING = "state = 'running' AND parked_at IS NOT NULL AND wanted_at IS NOT NULL AND stop_grace IS NULL"

# The table `claims` holds the reservations of overdue jobs; claims of Kubernetes are in `held_claims`.
_RESERVATION = f"""
SELECT job_id, gpu_uuids, chosen_at, promised_at, kept_until, unable_since FROM claims JOIN jobs ON jobs.id = claims.job_id
WHERE jobs.gpu_model IS ? AND (state = 'waiting' OR {RETURNING}) ORDER BY chosen_at LIMIT 1
"""  # noqa: S608 - words of our own

_RETURNING = f"""{_WANTS}, wanted_at, NULL, signature, 0, (SELECT gpu_uuid FROM slices WHERE slices.job_id = jobs.id),
    NULL
FROM jobs WHERE {RETURNING} AND gpu_model IS ? ORDER BY sequence
"""  # noqa: S608 - words of our own


# A loose index scan: one look-up for each model, instead of one row for each waiting job. NULL stands for real GPUs.
_QUEUES = f"""
WITH RECURSIVE models (gpu_model) AS (
    SELECT * FROM (SELECT gpu_model FROM jobs INDEXED BY queue
        WHERE state = 'waiting' AND gpu_model IS NOT NULL ORDER BY gpu_model LIMIT 1)
    UNION ALL
    SELECT (SELECT gpu_model FROM jobs INDEXED BY queue
        WHERE state = 'waiting' AND gpu_model > models.gpu_model ORDER BY gpu_model LIMIT 1)
    FROM models WHERE models.gpu_model IS NOT NULL
)
SELECT gpu_model FROM models WHERE gpu_model IS NOT NULL
UNION SELECT NULL WHERE EXISTS (SELECT 1 FROM jobs INDEXED BY queue WHERE state = 'waiting' AND gpu_model IS NULL)
UNION SELECT gpu_model FROM jobs WHERE {RETURNING}
"""  # noqa: S608 - words of our own

# Slices on a GPU, with their jobs and owners.
_HELD = """
FROM leases JOIN jobs ON jobs.id = leases.job_id JOIN slices ON slices.job_id = leases.job_id
WHERE released_at IS NULL AND parked_at IS NULL
"""

_ON_GPUS_OF_SEVERAL_USERS = f"""
WITH held AS MATERIALIZED (SELECT jobs.id, gpu_uuid, owner_uid {_HELD})
SELECT id FROM held WHERE gpu_uuid IN (SELECT gpu_uuid FROM held GROUP BY gpu_uuid HAVING min(owner_uid) < max(owner_uid))
"""  # noqa: S608 - words of our own

_BESIDE_OTHER_USERS = f"""
WITH held AS MATERIALIZED (SELECT jobs.id, gpu_uuid, owner_uid {_HELD}
    AND jobs.id != :job AND gpu_uuid IN (SELECT value FROM json_each(:gpus)))
SELECT DISTINCT id FROM held WHERE gpu_uuid NOT IN (SELECT gpu_uuid FROM held WHERE owner_uid = :owner)
"""  # noqa: S608 - words of our own

_WAYS = """
SELECT id, json_extract(spec, '$.runtime') AS runtime, json_extract(spec, '$.user') AS user FROM jobs
WHERE id IN (SELECT value FROM json_each(?))
"""

# Jobs that may have to wait for other jobs; must be identical to the condition of the index `conditional`.
CONDITIONAL = """state = 'waiting' AND (json_array_length(place, '$.after') > 0
    OR json_extract(place, '$.array_most_at_once') IS NOT NULL)"""

# Likewise of the index `delayed`: jobs with a begin, or held by a user.
DELAYED = "state = 'waiting' AND (begin_at IS NOT NULL OR held_by IS NOT NULL)"

_PEER = """
SELECT sequence, id, name, state, exit_code, reason, owner_uid, begin_at, held_by, json_extract(place, '$.after') AS after,
    json_extract(place, '$.array_id') AS array_id, json_extract(place, '$.array_index') AS array_index,
    json_extract(place, '$.array_most_at_once') AS array_most_at_once
FROM jobs
"""

_ARRAY = """
SELECT array_id, is_exact, count(*) OVER () AS count FROM (
    SELECT json_extract(place, '$.array_id') AS array_id, max(sequence) AS newest,
        max(json_extract(place, '$.array_id') = :word
            OR ifnull(name = :word || '-' || json_extract(place, '$.array_index'), 0)) AS is_exact
    FROM jobs
    WHERE json_extract(place, '$.array_id') IS NOT NULL AND owner_uid = ifnull(:owner, owner_uid)
        AND (name = :word || '-' || json_extract(place, '$.array_index')
            OR substr(json_extract(place, '$.array_id'), 1, length(:word)) = :word)
    GROUP BY array_id
) ORDER BY is_exact DESC, newest DESC LIMIT 1
"""

_GRANTED_OF_ARRAYS = """
SELECT json_extract(place, '$.array_id') AS array_id, count(*) AS count FROM jobs
WHERE state IN ('starting', 'running') AND json_extract(place, '$.array_id') IS NOT NULL GROUP BY array_id
"""

# What one user's waiting jobs take: rows, and once for all that share them long parts of specs and environments.
_WAITING_BYTES = """
WITH own AS MATERIALIZED (
    SELECT length(spec) + length(place) + length(signature) + ifnull(length(gpu_models), 0) AS bytes, long_spec, environment_id
    FROM jobs WHERE state = 'waiting' AND owner_uid = ?
)
SELECT (SELECT ifnull(sum(bytes), 0) FROM own)
    + (SELECT ifnull(sum(bytes), 0) FROM long_specs WHERE id IN (SELECT long_spec FROM own))
    + (SELECT ifnull(sum(length(words)), 0) FROM environments WHERE id IN (SELECT environment_id FROM own))
"""

# By all that other users see of a waiting job.
_ALIKE_WAITING = """
SELECT min(sequence), count(*) FROM jobs WHERE state = 'waiting' AND owner_uid != ?
GROUP BY memory_bytes, gpu_count, compute_share, gpu_model, json_extract(spec, '$.runtime')
"""

_ESTIMATED_CALLS = """
SELECT signature, gpu_count, oversubscribes OR sharing IN ('mps', 'auto') AS is_fixed FROM jobs
WHERE state = 'waiting' AND gpu_model IS ?1 AND basis IS NOT NULL AND attempt = 1 AND owner_uid = ?2
    AND (signature = ?3 OR signature >= ?3 || ' ' AND signature < ?3 || '!')
GROUP BY signature, gpu_count, is_fixed ORDER BY min(sequence) LIMIT ?4
"""


class Waiting(Struct, frozen=True):
    """A waiting job, with what admission needs."""

    job_id: str
    request: Request
    owner_uid: int
    eligible_at_seconds: float
    """When it arrived, its begin, or when its last dependency ended, it was released, or its retry began; seconds since the epoch."""

    wait_deadline_seconds: float | None
    """As in an entry."""

    signature: str
    has_predecessors: bool
    """Whether it depends on other jobs."""

    gpu_uuid: str | None = None
    """The only GPU it can use: that of a parked job."""

    batch: Batch | None = None
    """As in a place; None for a parked job."""


class JobPeer(Struct, frozen=True):
    """A job, with what its dependents need."""

    job_id: str
    name: str | None
    state: JobState
    exit_code: int | None
    reason: str | None
    place: Place
    owner_uid: int = 0
    begin_at_seconds: float | None = None
    held_by_uid: int | None = None
    """As in a job, both."""


class LedgerView:
    """Reads of one transaction; created by `Ledger.view`."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        seen: "dict[tuple[Any, ...], Waiting] | None" = None,
        now: Callable[[], Moment] = monotonic_now,
    ) -> None:
        """Read over one connection.

        Args:
            connection: In a transaction.
            seen: Cache of waiting jobs by row, shared between views: most of a long queue does not change.
            now: Clock of the charges.
        """
        self._connection = connection
        self._seen = {} if seen is None else seen
        self.charges = Charges(connection, now)
        self.history = History(connection)
        self.held_claims = HeldClaims(connection)
        self.profiles = Profiles(connection)

    def version(self) -> tuple[object, ...]:
        """Return a value that changes with every write to the database, and differs between connections."""
        # data_version changes with commits of other connections alone, total_changes with writes of this one.
        others = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return self._connection, others, self._connection.total_changes

    def fact(self, key: str) -> str | None:
        """Return a fact; see `FactTable.get`."""
        row = self._connection.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
        return None if row is None else str(row["value"])

    def missing(self, job_ids: Collection[str]) -> list[str]:
        """Return those of these ids that no job has."""
        statement = "SELECT value FROM json_each(?) WHERE value NOT IN (SELECT id FROM jobs) ORDER BY value"
        return [row["value"] for row in self._connection.execute(statement, (json.dumps(list(job_ids)),))]

    def existing(self, job_ids: Collection[str], owner_uid: int | None = None) -> set[str]:
        """Return those of these ids that jobs have, of one user or of all."""
        statement = (
            "SELECT id FROM jobs WHERE id IN (SELECT value FROM json_each(?)) AND owner_uid = ifnull(?, owner_uid)"
        )
        return {row["id"] for row in self._connection.execute(statement, (json.dumps(list(job_ids)), owner_uid))}

    def live(self, owner_uid: int | None = None) -> list[Entry]:
        """Return every live job, or those of one user, oldest first."""
        return self.entries_where(
            f"WHERE ({LIVE}) AND owner_uid = ifnull(?, owner_uid) ORDER BY sequence", (owner_uid,)
        )

    def holding(self) -> list[Entry]:
        """Return every job with a lease that is not released, oldest first."""
        found = self._holding("TRUE")
        if len(_held) > 2 * len(found) + _MOST_ENDED:
            _held.clear()
        return found

    def holding_ids(self, gpu_model: str | None) -> list[str]:
        """Return the ids of those of `holding` in the queue of one GPU model."""
        statement = "SELECT id FROM leases JOIN jobs ON id = job_id WHERE released_at IS NULL AND gpu_model IS ?"
        return [row["id"] for row in self._connection.execute(statement, (gpu_model,))]

    def paced(self) -> list[Entry]:
        """Return those of `holding` with a share of compute or a priority, and those on GPUs of several users.

        Only beside these, launches are paced.
        """
        return self._holding(f"compute_share IS NOT NULL OR priority != 0 OR jobs.id IN ({_ON_GPUS_OF_SEVERAL_USERS})")

    def beside_other_users(self, job_id: str, owner_uid: int, gpu_uuids: Sequence[str]) -> list[str]:
        """Return the ids of those of `holding` on these GPUs where no other job of this owner is."""
        words = {"job": job_id, "owner": owner_uid, "gpus": json.dumps(gpu_uuids)}
        return [row["id"] for row in self._connection.execute(_BESIDE_OTHER_USERS, words)]

    def off_their_gpus(self) -> list[Entry]:
        """Return those of `holding` that are suspended or parked, or were asked to leave."""
        return self._holding("suspended_by IS NOT NULL OR parked_at IS NOT NULL OR reclaimed_at IS NOT NULL")

    def _holding(self, condition: str) -> list[Entry]:
        where = f"jobs.id IN (SELECT job_id FROM leases WHERE released_at IS NULL) AND ({condition})"  # noqa: S608 - words of our own
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return [shared_entry(row) for row in cursor.execute(f"{SELECT} WHERE {where} ORDER BY sequence")]

    def waiting(self, gpu_model: str | None) -> list[Waiting]:
        """Return jobs that wait for GPUs of one model, oldest first: parked ones that wait for their lease, then the others."""
        # Plain tuples: they are the keys of the cache, and cost less than `sqlite3.Row`.
        cursor = self._connection.cursor()
        cursor.row_factory = None
        seen = self._seen
        rows = chain(*(cursor.execute(statement, (gpu_model,)).fetchall() for statement in (_RETURNING, _WAITING)))
        found = {row: seen.get(row) or _waiting_of(row) for row in rows}
        if len(seen) > 2 * len(found) + _MOST_FORGOTTEN:
            seen.clear()
        seen.update(found)
        return list(found.values())

    def ways_to_run(self, job_ids: Collection[str]) -> dict[str, tuple[str, str | None]]:
        """Return runtime and container user of each of these jobs."""
        rows = self._connection.execute(_WAYS, (json.dumps(list(job_ids)),)) if job_ids else ()
        return {row["id"]: (row["runtime"], row["user"]) for row in rows}

    def first_waiting(self, gpu_model: str | None) -> str | None:
        """Return the id of the first job of `waiting`; None if no job waits."""
        for waits in (RETURNING, "state = 'waiting'"):
            statement = f"SELECT id FROM jobs WHERE {waits} AND gpu_model IS ? ORDER BY sequence LIMIT 1"  # noqa: S608 - words of our own
            row = self._connection.execute(statement, (gpu_model,)).fetchone()
            if row is not None:
                break
        return None if row is None else str(row["id"])

    def count_waiting(self, owner_uid: int | None = None) -> int:
        """Return how many jobs of a user wait, in all queues; for all users the query is much cheaper."""
        own = "" if owner_uid is None else "AND owner_uid = ?"
        statement = f"SELECT count(*) FROM jobs WHERE state = 'waiting' {own}"  # noqa: S608 - words of our own
        return int(self._connection.execute(statement, () if owner_uid is None else (owner_uid,)).fetchone()[0])

    def alike_waiting(self, uid: int) -> dict[int, int]:
        """Return the other users' waiting jobs, those that ask for the same as one: the oldest's sequence, and how many they are.

        In one statement: of ten thousand jobs each row would be a chance for other threads to take the interpreter.
        """
        found: dict[int, int] = dict(self._connection.execute(_ALIKE_WAITING, (uid,)).fetchall())
        return found

    def size_bytes(self) -> int:
        """Return the size of the ledger, a bound of `waiting_bytes` that takes no time."""
        pragmas = ("page_count", "page_size")
        pages, page_bytes = (self._connection.execute(f"PRAGMA {each}").fetchone()[0] for each in pragmas)
        return int(pages * page_bytes)

    def waiting_bytes(self, owner_uid: int) -> int:
        """Return about how much of the ledger a user's waiting jobs take, in bytes."""
        return int(self._connection.execute(_WAITING_BYTES, (owner_uid,)).fetchone()[0])

    def queues(self) -> set[str | None]:
        """Return the GPU models that jobs wait for."""
        rows = self._connection.execute(_QUEUES)
        return {row["gpu_model"] for row in rows}

    def conditional(self) -> list[JobPeer]:
        """Return waiting jobs that may have to wait for other jobs, for a time or for a release, of all GPU models, oldest first."""
        found = self._peers(f"INDEXED BY conditional WHERE {CONDITIONAL}", ())
        found |= self._peers(f"INDEXED BY delayed WHERE {DELAYED}", ())
        return [found[sequence] for sequence in sorted(found)]

    def peers(self, job_ids: Collection[str]) -> dict[str, JobPeer]:
        """Return those of these jobs that exist, by id."""
        found = self._peers("WHERE id IN (SELECT value FROM json_each(?))", (json.dumps(list(job_ids)),))
        return {found[sequence].job_id: found[sequence] for sequence in sorted(found)}

    def elements(self, word: str, owner_uid: int | None = None) -> list[str]:
        """Return the job ids of the array with this id, or submitted with this name, or with an id that begins with it.

        The newest array if several had the name; empty if several ids begin with it.
        """
        is_word = word and is_text(word)
        row = self._connection.execute(_ARRAY, {"word": word, "owner": owner_uid}).fetchone() if is_word else None
        if row is None or (row["count"] > 1 and not row["is_exact"]):
            return []
        statement = "SELECT id FROM jobs WHERE json_extract(place, '$.array_id') = ? ORDER BY sequence"
        return [each["id"] for each in self._connection.execute(statement, (row["array_id"],))]

    def granted_of_arrays(self) -> dict[str, int]:
        """Return how many jobs of each array are granted now, by id of the array."""
        rows = self._connection.execute(_GRANTED_OF_ARRAYS)
        return {row["array_id"]: row["count"] for row in rows}

    def estimated_calls(
        self, gpu_model: str | None, program: str, owner_uid: int, most: int
    ) -> list[tuple[str, int, bool]]:
        """Return up to `most` waiting calls of a program with a size chosen by pgpu, oldest first.

        Signature, number of GPUs, and whether their slices may not be able to grow.
        """
        rows = self._connection.execute(_ESTIMATED_CALLS, (gpu_model, owner_uid, program, most))
        return [(row["signature"], row["gpu_count"], bool(row["is_fixed"])) for row in rows]

    def quotas(self, gpu_model: str | None = None) -> dict[int, Quota]:
        """Return quotas by UID, with the GPU hours that are used in their periods in a queue; a user that is missing has none."""
        rows = self._connection.execute("SELECT uid, memory_bytes, jobs, weight, gpu_hours, period FROM quotas")
        return {
            uid: Quota(memory_bytes, jobs, weight, self._gpu_hours(gpu_model, uid, most, period))
            for uid, memory_bytes, jobs, weight, most, period in rows
        }

    def _gpu_hours(self, gpu_model: str | None, uid: int, most: float | None, period: str | None) -> GpuHours | None:
        if most is None:
            return None
        begin, end = bounds_of(Period(period or Period.WEEK), time.time())
        used = self.charges.usage(gpu_model, begin, uid).get(uid)
        return GpuHours(most, Period(period or Period.WEEK), used.gpu_seconds / HOUR_SECONDS if used else 0.0, end)

    def precedence(self, gpu_model: str | None) -> Precedence:
        """Return the state that the last round left for the queue of one GPU model, with the clocks as they are now."""
        row = self._connection.execute(_RESERVATION, (gpu_model,)).fetchone()
        kept = None if row is None else OverdueReservation(row[0], tuple(json.loads(row[1])), *tuple(row)[2:])
        return Precedence(kept, self.charges.virtual_time(gpu_model))

    def closed_gpus(self) -> frozenset[str]:
        """Return the UUIDs of GPUs that are closed to new jobs; `ALL_GPUS` stands for every GPU."""
        return frozenset(row["uuid"] for row in self._connection.execute("SELECT uuid FROM closed_gpus"))

    def entry(self, job_id: str) -> Entry:
        """Return one job.

        Raises:
            JobNotFoundError: It does not exist.
        """
        found = self.entries_where("WHERE id = ?", (job_id,))
        if not found:
            raise JobNotFoundError(f"no job {job_id}")
        return found[0]

    def entries_of(self, job_ids: Sequence[str]) -> list[Entry]:
        """Return those of these jobs that exist, in the order given."""
        found = self.entries_where("WHERE jobs.id IN (SELECT value FROM json_each(?))", (json.dumps(list(job_ids)),))
        by_id = {entry.job.id: entry for entry in found}
        return [by_id[job_id] for job_id in job_ids if job_id in by_id]

    def _peers(self, clause: str, arguments: Sequence[str]) -> dict[int, JobPeer]:
        """Return jobs by their order of arrival."""
        found = {}
        for row in self._connection.execute(f"{_PEER} {clause}", arguments):
            sequence, job_id, name, state, exit_code, reason, owner_uid, begin_at, held_by, after, *array = row
            place = Place(_ids(after), *array)
            found[sequence] = JobPeer(
                job_id, name, JobState(state), exit_code, reason, place, owner_uid, begin_at, held_by
            )
        return found

    def entries_where(
        self, clause: str, arguments: Sequence[str | int | None] | Mapping[str, str | int | None]
    ) -> list[Entry]:
        """Return the entries of a clause in SQL."""
        cursor = self._connection.cursor()
        cursor.row_factory = None  # Plain tuples: `entry_of` unpacks them by position.
        return [shared_entry(row) for row in cursor.execute(f"{SELECT} {clause}", arguments)]


_held: dict[str, tuple[tuple[Any, ...], Entry]] = {}
"""Rows of jobs that hold a lease and their entries, by the job's id; of each job the last one."""

_MOST_ENDED = 64
"""So many of jobs that have ended stay in `_held`, or as many as hold a lease."""


def shared_entry(row: Iterable[Any]) -> Entry:
    """Return the entry of a row of `SELECT`; of a job that holds a lease the same object while the row is the same.

    Every thread of an agent reads what is granted whenever a job beside its own comes or goes, and keeps some of it.
    """
    columns = tuple(row)
    known = _held.get(columns[0])
    if known is not None and known[0] == columns:
        return known[1]
    entry = entry_of(columns)
    if entry.is_lease_held:
        _held[entry.job.id] = (columns, entry)
    return entry


@lru_cache(maxsize=1024)
def _batch(text: str | None) -> Batch | None:
    # Cached, since all jobs of a batch have the same text.
    return Batch(**json.loads(text)) if text else None


@lru_cache(maxsize=1024)
def _ids(text: str | None) -> tuple[str, ...]:
    # Cached, since many jobs share one list.
    return tuple(json.loads(text)) if text else ()


def _waiting_of(row: tuple[Any, ...]) -> Waiting:
    # The columns of `_WANTS`, then those of `_WAITING` or `_RETURNING`, in their order.
    job_id, memory_bytes, gpu_count, compute_share, priority, is_estimated, retries, *rest = row
    basis, is_strict, sharing, oversubscribes, preempts, measures, objective, *rest = rest
    time_limit_seconds, on_time_limit, gpu_models, *rest = rest
    owner_uid, eligible_at_seconds, wait_deadline_seconds, signature, predecessors, gpu_uuid, batch = rest
    return Waiting(
        job_id,
        Request(
            memory_bytes,
            gpu_count,
            compute_share,
            priority,
            bool(is_estimated),
            bool(retries),
            basis,
            bool(is_strict),
            SharingWish(sharing),
            bool(oversubscribes),
            bool(preempts),
            bool(measures),
            Objective(objective or Objective.RESPONSE),
            time_limit_seconds,
            OnTimeLimit(on_time_limit or OnTimeLimit.STOP),
            _ids(gpu_models),
        ),
        owner_uid,
        eligible_at_seconds,
        wait_deadline_seconds,
        signature,
        bool(predecessors),
        gpu_uuid,
        _batch(batch),
    )
