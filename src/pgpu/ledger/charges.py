"""Virtual time of each queue in the ledger: clocks of users, and the leases that are being charged to them.

A lease is charged from the transaction that grants it until the one that releases, parks or suspends it, with its size, its
share of compute, the weight of its user and the GPUs of the machine as they are in between: whatever changes one of them charges
the time before first.
Nothing is written while a lease is held. Time is that of the monotonic clock, which cannot be set, together with the id of the
boot: a lease of an earlier boot, whose end nothing measured, is charged no further, or again from its next write on if it lasts.
"""

import sqlite3
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pgpu.host.process_identity import boot_id
from pgpu.ledger.rows import Entry
from pgpu.scheduling import VirtualTime
from pgpu.structs import Struct

if TYPE_CHECKING:
    from pgpu.scheduling.virtual_clocks import Machine

Moment = tuple[float, str]
"""Seconds of the monotonic clock, and the id of the boot."""


def monotonic_now() -> Moment:
    """Return the present moment."""
    return time.monotonic(), boot_id()


# Each lease that is being charged, with its dominant share of the machine and its seconds since it was last charged.
_CHARGED = """
SELECT leases.job_id, jobs.owner_uid, virtual_times.queue, went_first, ifnull(weight, 1.0),
    (SELECT max(sum(ifnull(resident_bytes, slices.memory_bytes)) * 1.0 / max(1, capacity_bytes),
        count(*) * iif(leases.sharing = 'exclusive', 1.0, ifnull(jobs.compute_share, 0.0)) / max(1, virtual_times.gpu_count))
        FROM slices WHERE slices.job_id = leases.job_id),
    max(0.0, ?1 - charged_since)
FROM leases JOIN jobs ON jobs.id = leases.job_id JOIN virtual_times ON virtual_times.queue = ifnull(jobs.gpu_model, '')
    LEFT JOIN quotas ON quotas.uid = jobs.owner_uid
WHERE released_at IS NULL AND charged_since IS NOT NULL AND charged_boot = ?2
"""


# Whether what a lease is charged by changes: it ends, or its share of compute or its size becomes another one.
_CHANGES = """
SELECT 1 FROM leases JOIN jobs ON id = job_id WHERE job_id = ?1 AND charged_since IS NOT NULL AND (NOT ?2 OR compute_share IS NOT ?3
    OR (SELECT sum(ifnull(resident_bytes, slices.memory_bytes)) FROM slices WHERE slices.job_id = ?1) IS NOT ?4)
"""


class _Charge(Struct, frozen=True):
    job_id: str
    owner_uid: int
    queue: str
    is_late: int
    weight: float
    rate: float | None
    """Dominant share; None for a job without a GPU, which is not charged."""

    seconds: float

    @property
    def machine_seconds(self) -> float:
        return (self.rate or 0.0) * self.seconds


class Charges:
    """Virtual time within one transaction."""

    def __init__(self, connection: sqlite3.Connection, now: Callable[[], Moment] = monotonic_now) -> None:
        self._connection = connection
        self._now = now

    def virtual_time(self, gpu_model: str | None) -> VirtualTime:
        """Return the virtual time of a queue now."""
        queue = gpu_model or ""
        statement = "SELECT floor, late_seconds, other_seconds FROM virtual_times WHERE queue = ?"
        row = self._connection.execute(statement, (queue,)).fetchone()
        if row is None:
            return VirtualTime()
        floor, late, other = row
        statement = "SELECT uid, seconds, is_active FROM clocks WHERE queue = ?"
        rows = [tuple(each) for each in self._connection.execute(statement, (queue,))]
        clocks = {uid: seconds for uid, seconds, _ in rows}
        charged = self._charged("AND virtual_times.queue = ?3", queue)
        for each in charged:
            clocks[each.owner_uid] = clocks.get(each.owner_uid, 0.0) + each.machine_seconds / each.weight
        late_ids = frozenset(each.job_id for each in charged if each.is_late)
        if late is not None:
            late += sum(each.machine_seconds for each in charged if each.is_late)
            other += sum(each.machine_seconds for each in charged if not each.is_late)
        return VirtualTime(
            clocks, floor, frozenset(uid for uid, _, is_active in rows if is_active), late, other, late_ids
        )

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
            self.charge("AND virtual_times.queue = ?3", queue)
        values = (queue, after.floor, after.late_seconds, after.other_seconds, *same)
        self._connection.execute("INSERT OR REPLACE INTO virtual_times VALUES (?, ?, ?, ?, ?, ?)", values)
        self._connection.executemany(
            "INSERT INTO clocks VALUES (?1, ?2, ?3, ?4)"
            " ON CONFLICT DO UPDATE SET seconds = seconds + ?3, is_active = ?4",
            [
                (queue, uid, clock - before.clocks.get(uid, 0.0), int(uid in after.active))
                for uid, clock in after.clocks.items()
                if clock != before.clocks.get(uid) or (uid in after.active) != (uid in before.active)
            ],
        )

    def begin_or_end(self, entry: Entry) -> tuple[float | None, str | None]:
        """Charge a lease that ends, or changes its size or share, for the time before; return since when it is charged.

        Args:
            entry: As it is about to be written.

        Returns:
            Moment from which the lease is charged if it was not before; None if it is not charged any more.
        """
        job, lease = entry.job, entry.job.lease
        is_charged = entry.is_counted and job.suspended_by is None
        size_bytes = sum(part.device_bytes for part in lease.slices) if lease is not None else 0
        found = self._connection.execute(_CHANGES, (job.id, int(is_charged), job.request.compute_share, size_bytes))
        if found.fetchone() is not None:
            self.charge("AND leases.job_id = ?3", job.id)
        return self._now() if is_charged else (None, None)

    def charge(self, condition: str, value: str | int) -> None:
        """Charge leases for the time until now.

        Args:
            condition: Of the leases, in SQL; `value` is its parameter 3.
            value: The parameter.
        """
        charged = self._charged(condition, value)
        self._connection.executemany(
            "INSERT INTO clocks VALUES (?1, ?2, ?3, 0) ON CONFLICT DO UPDATE SET seconds = seconds + ?3",
            [(each.queue, each.owner_uid, each.machine_seconds / each.weight) for each in charged],
        )
        # Without late jobs both are NULL, and stay it.
        self._connection.executemany(
            "UPDATE virtual_times SET late_seconds = late_seconds + ?2, other_seconds = other_seconds + ?3 WHERE queue = ?1",
            [
                (each.queue, each.machine_seconds * each.is_late, each.machine_seconds * (1 - each.is_late))
                for each in charged
            ],
        )
        self._connection.executemany(
            "UPDATE leases SET charged_since = charged_since + ? WHERE job_id = ?",
            [(each.seconds, each.job_id) for each in charged],
        )

    def _charged(self, condition: str, value: str | int) -> list[_Charge]:
        rows = self._connection.execute(f"{_CHARGED} {condition}", (*self._now(), value))
        return [_Charge(*row) for row in rows]
