"""What users have had of the machine: the clocks of each queue, how long jobs have run, and the hours of use.

A lease is charged from the transaction that grants it until the one that releases, parks or suspends it, with its size, its
share of compute, the weight of its user and the GPUs of the machine as they are in between: whatever changes one of them charges
the time before first. A charge moves the clock of the user, and adds to the amounts of the lease: for how long its job has run,
the parts of GPUs and the memory that it held, times that time. The end of the lease adds its amounts to the hours in which it was
held, in `queue_hours`, which outlive the job.

Nothing is written while a lease is held. Time is that of the monotonic clock, which cannot be set, together with the id of the
boot: a lease of an earlier boot, whose end nothing measured, is charged no further, or again from its next write on if it lasts.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pgpu.host.process_identity import boot_id
from pgpu.ledger.rows import Entry, Moment
from pgpu.model import Period, UserUsage
from pgpu.scheduling import VirtualTime
from pgpu.structs import Struct

if TYPE_CHECKING:
    from pgpu.scheduling.virtual_clocks import Machine

HOUR_SECONDS = 3600
KEPT_HOURS = 400 * 24
"""Older hours are deleted: a year can be compared with the one before it in part."""


def monotonic_now() -> Moment:
    """Return the present moment."""
    return time.monotonic(), boot_id()


_CLOCKS = "SELECT uid, seconds FROM clocks WHERE queue = ?"
_CONTENDERS = "SELECT uid, priority, is_active, floor FROM contenders WHERE queue = ?"
_ADD = "INSERT INTO clocks VALUES (?1, ?2, ?3) ON CONFLICT DO UPDATE SET seconds = seconds + ?3"

# Of a slice: its memory, which is all of a MIG instance, and its share of compute.
_SIZE = "iif(part < 1.0, gpus.memory_bytes, ifnull(resident_bytes, slices.memory_bytes))"
_SHARE = "iif(leases.sharing = 'exclusive', 1.0, ifnull(slices.compute_share, 0.0))"
# A parked job is granted its lease again.
_BEGAN = "min(granted_at, ifnull(started_at, granted_at))"
# Each lease that is not released, with its rates and its seconds since it was last charged. A GPU of unknown size counts as a whole.
_HELD = f"""
SELECT leases.job_id, owner_uid, ifnull(gpu_model, ''), went_first, ifnull(weight, 1.0), state = 'running', {_BEGAN},
    max(total({_SIZE}) / max(1, capacity_bytes), total({_SHARE}) / max(1, virtual_times.gpu_count)),
    total(iif(gpu_uuid IS NULL, 0.0, ifnull(min(1.0, max({_SHARE}, 1.0 * {_SIZE} / gpus.memory_bytes)), 1.0) * ifnull(part, 1.0))),
    total({_SIZE}), iif(charged_boot = ?2, max(0.0, ?1 - charged_since), 0.0), leases.gpu_seconds, leases.byte_seconds
FROM leases JOIN jobs ON jobs.id = leases.job_id LEFT JOIN virtual_times ON virtual_times.queue = ifnull(gpu_model, '')
    LEFT JOIN quotas ON quotas.uid = owner_uid LEFT JOIN slices ON slices.job_id = leases.job_id LEFT JOIN gpus ON uuid = gpu_uuid
WHERE released_at IS NULL AND {{}} GROUP BY leases.job_id
"""  # noqa: S608 - words of our own

_ADD_TO_LEASE = """
UPDATE leases SET charged_since = charged_since + ?2, ran = ifnull(ran, 0.0) + ?3, gpu_seconds = gpu_seconds + ?4,
    byte_seconds = byte_seconds + ?5 WHERE job_id = ?1
"""
_ENDED = f"""
SELECT ifnull(gpu_model, ''), owner_uid, gpu_count, {_BEGAN}, started_at IS NOT NULL, peak_bytes, ifnull(leases.ran, 0.0),
    leases.gpu_seconds, leases.byte_seconds FROM leases JOIN jobs ON id = job_id WHERE job_id = ? AND leases.gpu_seconds IS NOT NULL
"""  # noqa: S608 - words of our own
_BOOK = """
INSERT INTO queue_hours VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET runs = runs + excluded.runs, gpu_seconds = gpu_seconds + excluded.gpu_seconds,
    byte_seconds = byte_seconds + excluded.byte_seconds, used_byte_seconds = used_byte_seconds + excluded.used_byte_seconds
"""
_HOURS = """
SELECT uid, sum(runs), sum(gpu_seconds), sum(byte_seconds), sum(used_byte_seconds) FROM queue_hours
WHERE queue = ?1 AND {} AND hour >= ?3 GROUP BY uid
"""


class _Held(Struct, frozen=True):
    job_id: str
    owner_uid: int
    queue: str
    is_late: int
    weight: float
    is_running: int
    began_at_seconds: float
    rate: float | None
    """Dominant share of the machine; None before the first round of its queue."""

    gpus: float
    """Of each GPU the larger of its parts of the memory and of the time, in GPUs."""

    size_bytes: int
    seconds: float
    """Since it was last charged; 0 while it is parked or suspended."""

    gpu_seconds: float
    byte_seconds: float
    """As last charged, both."""

    @property
    def machine_seconds(self) -> float:
        return (self.rate or 0.0) * self.seconds


class Charges:
    """The amounts of leases and users within one transaction; methods that write are for decisions."""

    def __init__(self, connection: sqlite3.Connection, now: Callable[[], Moment] = monotonic_now) -> None:
        self._connection = connection
        self._now = now

    def virtual_time(self, gpu_model: str | None) -> VirtualTime:
        """Return the virtual time of a queue now."""
        queue = gpu_model or ""
        statement = "SELECT late_seconds, other_seconds FROM virtual_times WHERE queue = ?"
        row = self._connection.execute(statement, (queue,)).fetchone()
        if row is None:
            return VirtualTime()
        late, other = row
        clocks = {row[0]: row[1] for row in self._connection.execute(_CLOCKS, (queue,))}
        contenders = [tuple(row) for row in self._connection.execute(_CONTENDERS, (queue,))]
        held = self._held("gpu_model IS ?3", gpu_model)
        for each in held:
            clocks[each.owner_uid] = clocks.get(each.owner_uid, 0.0) + each.machine_seconds / each.weight
        late_ids = frozenset(each.job_id for each in held if each.is_late)
        if late is not None:
            late += sum(each.machine_seconds for each in held if each.is_late)
            other += sum(each.machine_seconds for each in held if not each.is_late)
        floors = {priority: floor for _, priority, _, floor in contenders}
        is_active = {(uid, priority): bool(is_active) for uid, priority, is_active, _ in contenders}
        return VirtualTime(clocks, floors, is_active, late, other, late_ids)

    def put_virtual_time(
        self, gpu_model: str | None, before: VirtualTime, after: VirtualTime, machine: "Machine"
    ) -> None:
        """Write the virtual time that a round left; its grants must have been written before.

        Args:
            gpu_model: Of the queue.
            before: What the round started from; nothing was written since.
            after: What it returned.
            machine: What shares of its leases are relative to; without a GPU nothing was granted, and nothing is written.
        """
        if not machine.gpu_count:
            return
        queue = gpu_model or ""
        statement = "SELECT capacity_bytes, gpu_count FROM virtual_times WHERE queue = ?"
        same = (machine.capacity_bytes, machine.gpu_count)
        is_same = tuple(self._connection.execute(statement, (queue,)).fetchone() or same) == same
        # The clocks of late and other jobs count all leases from the moment at which there are late jobs.
        if after.late_seconds is not None or not is_same:
            self.charge("gpu_model IS ?3", gpu_model)
        values = (queue, after.late_seconds, after.other_seconds, *same)
        self._connection.execute("INSERT OR REPLACE INTO virtual_times VALUES (?, ?, ?, ?, ?)", values)
        self._connection.execute("DELETE FROM contenders WHERE queue = ?", (queue,))
        self._connection.executemany(
            "INSERT INTO contenders VALUES (?, ?, ?, ?, ?)",
            [
                (queue, uid, priority, int(is_active), after.floors[priority])
                for (uid, priority), is_active in after.contenders.items()
            ],
        )
        self._connection.executemany(
            _ADD,
            [
                (queue, uid, clock - before.clocks.get(uid, 0.0))
                for uid, clock in after.clocks.items()
                if clock != before.clocks.get(uid, 0.0)
            ],
        )

    def charged_from(self, entry: Entry) -> tuple[float | None, str | None]:
        """Return the moment from which the lease of an entry that is about to be written is charged; None if it is not."""
        is_charged = entry.is_counted and entry.job.suspended_by is None
        return self._now() if is_charged else (None, None)

    def charge(self, condition: str, value: str | int | None) -> None:
        """Charge leases for the time until now.

        Args:
            condition: Of the leases, in SQL; `value` is its parameter 3.
            value: The parameter.
        """
        held = [each for each in self._held(condition, value) if each.seconds]
        self._connection.executemany(
            _ADD, [(each.queue, each.owner_uid, each.machine_seconds / each.weight) for each in held]
        )
        # Without late jobs both are NULL, and stay it.
        self._connection.executemany(
            "UPDATE virtual_times SET late_seconds = late_seconds + ?2, other_seconds = other_seconds + ?3 WHERE queue = ?1",
            [
                (each.queue, each.machine_seconds * each.is_late, each.machine_seconds * (1 - each.is_late))
                for each in held
            ],
        )
        self._connection.executemany(
            _ADD_TO_LEASE,
            [
                (
                    each.job_id,
                    each.seconds,
                    each.seconds * each.is_running,
                    each.seconds * each.gpus,
                    each.seconds * each.size_bytes,
                )
                for each in held
            ],
        )

    def book(self, job_id: str, ended_at_seconds: float) -> None:
        """Add the amounts of a lease that is over to the hours in which it was held; does nothing if they are there.

        Args:
            job_id: Its job; `charge` was called before.
            ended_at_seconds: Seconds since the epoch.
        """
        row = self._connection.execute(_ENDED, (job_id,)).fetchone()
        if row is None:
            return
        queue, uid, gpu_count, began_at, is_run, peak_bytes, ran_seconds, gpu_seconds, byte_seconds = row
        # Without a measured peak nothing counts as unused.
        used = byte_seconds if peak_bytes is None else min(byte_seconds, peak_bytes * gpu_count * ran_seconds)
        parts = list(_hours(began_at, ended_at_seconds))
        last_hour = parts[-1][0]
        self._connection.executemany(
            _BOOK,
            [
                (queue, uid, hour, is_run * (hour == last_hour), gpu_seconds * part, byte_seconds * part, used * part)
                for hour, part in parts
            ],
        )
        old = (queue, uid, last_hour - KEPT_HOURS)
        self._connection.execute("DELETE FROM queue_hours WHERE queue = ? AND uid = ? AND hour < ?", old)
        self._connection.execute(
            "UPDATE leases SET gpu_seconds = NULL, byte_seconds = NULL WHERE job_id = ?", (job_id,)
        )

    def usage(self, gpu_model: str | None, since_seconds: float, uid: int | None = None) -> dict[int, UserUsage]:
        """Return what users have used of a queue's GPUs since a time, in whole hours; of leases that last, the part until now.

        Args:
            gpu_model: Of the queue.
            since_seconds: Seconds since the epoch.
            uid: Only this user; None for all.
        """
        # Of one user the key serves, which each round reads for users with a quota of GPU hours.
        statement = _HOURS.format("TRUE" if uid is None else "uid = ?2")
        rows = self._connection.execute(statement, (gpu_model or "", uid, int(since_seconds // HOUR_SECONDS)))
        found = {row[0]: UserUsage(*row) for row in rows}
        now_seconds = time.time()
        for each in self._held("gpu_model IS ?3", gpu_model):
            if uid not in {None, each.owner_uid}:
                continue
            held_seconds = now_seconds - each.began_at_seconds
            part = min(1.0, max(0.0, now_seconds - since_seconds) / held_seconds) if held_seconds > 0 else 1.0
            byte_seconds = (each.byte_seconds + each.size_bytes * each.seconds) * part
            before = found.get(each.owner_uid, UserUsage(each.owner_uid))
            found[each.owner_uid] = UserUsage(
                each.owner_uid,
                before.runs,
                before.gpu_seconds + (each.gpu_seconds + each.gpus * each.seconds) * part,
                before.byte_seconds + byte_seconds,
                # The peak of a job that runs may still grow: none of its memory counts as unused.
                before.used_byte_seconds + byte_seconds,
            )
        return found

    def _held(self, condition: str, value: str | int | None) -> list[_Held]:
        return [_Held(*row) for row in self._connection.execute(_HELD.format(condition), (*self._now(), value))]


def _hours(began_seconds: float, ended_seconds: float) -> Iterator[tuple[int, float]]:
    """Yield each hour since the epoch that a lease touches, with the part of it in it; the parts sum to 1."""
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
