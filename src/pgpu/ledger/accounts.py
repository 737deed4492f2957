"""Accounting: how long each job has run, and what its slices took of the GPUs meanwhile.

The row of a job has the amounts of its present try: `ran`, `gpu_seconds` and `byte_seconds`. Every write of a running job first
adds the time since the last write, with the slices that it had until then; so a resize, a suspension or a stay without its lease
counts from its transaction on. `runs_since` is CLOCK_MONOTONIC of one boot: a job that was lost with its machine has used nothing
since its last write. The end of a try adds its amounts to the hours of its run in `usage_hours`, which outlives the job.
"""

import sqlite3
import time
from collections.abc import Iterator

from pgpu.host.process_identity import boot_id
from pgpu.ledger.rows import Entry
from pgpu.model import JobState, Period, UserUsage

HOUR_SECONDS = 3600
KEPT_HOURS = 400 * 24
"""Older hours are deleted: a year can be compared with the one before it in part."""

_SINCE = "iif(runs_boot = :boot, max(0.0, :now - runs_since), 0.0)"
# Of each GPU the larger of the parts of its memory and of its time; a whole GPU where its memory is not known.
_GPUS = """
ifnull((SELECT sum(iif(leases.sharing = 'exclusive', 1.0, min(1.0, max(ifnull(compute_share, 0.0),
        ifnull(1.0 * ifnull(resident_bytes, slices.memory_bytes) / gpus.memory_bytes, 1.0)))))
    FROM slices JOIN leases ON leases.job_id = slices.job_id LEFT JOIN gpus ON gpus.uuid = gpu_uuid
    WHERE slices.job_id = jobs.id), 0.0)
"""
_BYTES = "ifnull((SELECT sum(ifnull(resident_bytes, memory_bytes)) FROM slices WHERE job_id = jobs.id), 0)"
_RAN = f"ifnull(ran, 0.0) + {_SINCE}"
_GPU_SECONDS = f"ifnull(gpu_seconds, 0.0) + {_SINCE} * {_GPUS}"
_BYTE_SECONDS = f"ifnull(byte_seconds, 0.0) + {_SINCE} * {_BYTES}"
_ADD_UP = f"""
UPDATE jobs SET ran = {_RAN}, gpu_seconds = {_GPU_SECONDS}, byte_seconds = {_BYTE_SECONDS}, runs_since = NULL
WHERE id = :id AND runs_since IS NOT NULL
"""  # noqa: S608 - words of our own
_TRY = "SELECT owner_uid, gpu_count, started_at, ran, gpu_seconds, byte_seconds FROM jobs WHERE id = ? AND gpu_seconds IS NOT NULL"
_BOOK = """
INSERT INTO usage_hours (uid, hour, runs, gpu_seconds, byte_seconds, used_byte_seconds) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (uid, hour) DO UPDATE SET runs = runs + excluded.runs, gpu_seconds = gpu_seconds + excluded.gpu_seconds,
    byte_seconds = byte_seconds + excluded.byte_seconds, used_byte_seconds = used_byte_seconds + excluded.used_byte_seconds
"""
_HOURS = """
SELECT uid, sum(runs), sum(gpu_seconds), sum(byte_seconds), sum(used_byte_seconds) FROM usage_hours
WHERE {} AND hour >= :hour GROUP BY uid
"""
_RUNNING = f"""
SELECT owner_uid, started_at, {_GPU_SECONDS}, {_BYTE_SECONDS} FROM leases JOIN jobs ON jobs.id = leases.job_id
WHERE released_at IS NULL AND state = 'running' AND started_at IS NOT NULL AND owner_uid = ifnull(:uid, owner_uid)
"""  # noqa: S608 - words of our own


class Accounts:
    """The amounts of jobs and users, in one transaction; methods that write are for decisions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add_up(self, job_id: str) -> None:
        """Add the time since the last write of a job, with the slices that it has now; it does not run on until it is written."""
        words = {"id": job_id, "boot": boot_id(), "now": time.monotonic()}
        self._connection.execute(_ADD_UP, words)

    def book(self, entry: Entry) -> None:
        """Add the amounts of a try that is over to the hours in which it ran; does nothing if they are there.

        A job that waits for its next try has run for no time of it.

        Args:
            entry: Ended or waiting again; `add_up` was called before.
        """
        job = entry.job
        row = self._connection.execute(_TRY, (job.id,)).fetchone()
        if row is None:
            return
        uid, gpu_count, started_at, ran_seconds, gpu_seconds, byte_seconds = row
        ended_at = job.finished_at_seconds or time.time()
        # Without a measured peak nothing counts as unused.
        used = byte_seconds if job.peak_bytes is None else min(byte_seconds, job.peak_bytes * gpu_count * ran_seconds)
        parts = list(_hours(started_at or ended_at, ended_at))
        amounts = [
            (uid, hour, int(hour == parts[-1][0]), gpu_seconds * part, byte_seconds * part, used * part)
            for hour, part in parts
        ]
        self._connection.executemany(_BOOK, amounts)
        self._connection.execute("DELETE FROM usage_hours WHERE uid = ? AND hour < ?", (uid, parts[-1][0] - KEPT_HOURS))
        ran = None if job.state is JobState.WAITING else ran_seconds
        self._connection.execute(
            "UPDATE jobs SET ran = ?, gpu_seconds = NULL, byte_seconds = NULL WHERE id = ?", (ran, job.id)
        )

    def usage(self, since_seconds: float, uid: int | None = None) -> dict[int, UserUsage]:
        """Return what users have used since a time, in whole hours; of jobs that run, the part of their run until now.

        Args:
            since_seconds: Seconds since the epoch.
            uid: Only this user; None for all.
        """
        words = {"uid": uid, "hour": int(since_seconds // HOUR_SECONDS), "boot": boot_id(), "now": time.monotonic()}
        # Of one user the key serves, which each round reads for users with a quota of GPU hours.
        hours = _HOURS.format("TRUE" if uid is None else "uid = :uid")
        found = {row[0]: UserUsage(*row) for row in self._connection.execute(hours, words)}
        now_seconds = time.time()
        for owner_uid, started_at, gpu_seconds, byte_seconds in self._connection.execute(_RUNNING, words):
            ran_seconds = now_seconds - started_at
            part = min(1.0, max(0.0, now_seconds - since_seconds) / ran_seconds) if ran_seconds > 0 else 1.0
            before = found.get(owner_uid, UserUsage(owner_uid))
            found[owner_uid] = UserUsage(
                owner_uid,
                before.runs,
                before.gpu_seconds + gpu_seconds * part,
                before.byte_seconds + byte_seconds * part,
                # The peak of a job that runs may still grow: none of its memory counts as unused.
                before.used_byte_seconds + byte_seconds * part,
            )
        return found


def _hours(began_seconds: float, ended_seconds: float) -> Iterator[tuple[int, float]]:
    """Yield each hour since the epoch that a run touches, with the part of the run in it; the parts sum to 1."""
    began_seconds = min(began_seconds, ended_seconds)
    first = max(int(began_seconds // HOUR_SECONDS), int(ended_seconds // HOUR_SECONDS) - KEPT_HOURS)
    last = int(ended_seconds // HOUR_SECONDS)
    length_seconds = ended_seconds - max(began_seconds, first * HOUR_SECONDS)
    for hour in range(first, last + 1):
        begin, end = max(began_seconds, hour * HOUR_SECONDS), min(ended_seconds, (hour + 1) * HOUR_SECONDS)
        yield hour, (end - begin) / length_seconds if length_seconds > 0 else 1.0


def bounds_of(period: Period, now_seconds: float) -> tuple[float, float]:
    """Return begin and end of the day, the week (from Monday on) or the month of a time, in this machine's time zone."""
    year, month, day, _, _, _, weekday, _, _ = time.localtime(now_seconds)
    first = {Period.DAY: day, Period.WEEK: day - weekday, Period.MONTH: 1}[period]
    after = {Period.DAY: (month, day + 1), Period.WEEK: (month, first + 7), Period.MONTH: (month + 1, 1)}[period]
    begin, end = (time.mktime((year, *each, 0, 0, 0, 0, 0, -1)) for each in ((month, first), after))
    return begin, end
