"""Headroom that yields: when slices may use the margin that is kept of a GPU for memory outside of every slice.

What displays and drivers hold is measured; the margin above it covers what is not known. Slices whose size was declared and whose
limit binds need none of it, so they may use it while the memory outside was stable: `OutsiderPeak` is the record of that, from
reading to reading. A slice of a size that pgpu predicted never uses it, and no other slice of its GPU does while it is there.

`KEPT_BYTES` are never granted. Outside memory that grows by no more than this takes nothing that was promised.
"""

from pgpu.model import Job, Lease, Request, SharingMode
from pgpu.scheduling.capacity import GpuRoom, mode_of
from pgpu.structs import Struct, replace
from pgpu.units import MIB

# Kept of each GPU above the measured peak, and growth that counts as stable. Covers errors of the measurement: contexts, kernels
# and granules that a driver counts otherwise than a meter.
KEPT_BYTES = 64 * MIB

# Growth counts once two readings this far apart have it: one alone may meet a job between its allocation and its charge.
CONFIRMED_SECONDS = 0.5


class OutsiderPeak(Struct, frozen=True):
    """What the readings of one GPU show of the memory outside of its slices. Seconds are of one monotonic clock."""

    began_seconds: float
    """Of the present period, in which it did not grow."""

    base_bytes: int
    """Peak of the period before; the first reading where there is none."""

    peak_bytes: int
    """Of this period."""

    is_settled: bool = False
    """Whether a whole period has passed without growth."""

    exceeded_seconds: float | None = None
    """First of the readings in a row that were above the base by more than `KEPT_BYTES`; None if the last one was not."""

    def with_reading(self, used_bytes: int, now_seconds: float, stable_seconds: float) -> "OutsiderPeak":
        """Return the record after one more reading.

        Growth starts a new record. Without growth a new period begins after `stable_seconds`, so a peak counts for at least one
        period and at most two. Where no process read the GPU for a while, the readings before and after decide.

        Args:
            used_bytes: Memory outside of every slice.
            now_seconds: Of the reading.
            stable_seconds: Length of a period.
        """
        if now_seconds < self.began_seconds:
            return first_reading(used_bytes, now_seconds)
        if used_bytes > self.base_bytes + KEPT_BYTES:
            if self.exceeded_seconds is None:
                return replace(self, exceeded_seconds=now_seconds)
            is_confirmed = now_seconds - self.exceeded_seconds >= CONFIRMED_SECONDS
            return first_reading(used_bytes, now_seconds) if is_confirmed else self
        peak_bytes = max(self.peak_bytes, used_bytes)
        if now_seconds - self.began_seconds >= stable_seconds:
            return OutsiderPeak(now_seconds, peak_bytes, used_bytes, is_settled=True)
        return replace(self, peak_bytes=peak_bytes, exceeded_seconds=None)

    @property
    def stable_bytes(self) -> int | None:
        """The most that was outside during the last period; None while it is not known to be stable."""
        is_stable = self.is_settled and self.exceeded_seconds is None
        return max(self.base_bytes, self.peak_bytes) if is_stable else None


def first_reading(used_bytes: int, now_seconds: float) -> OutsiderPeak:
    """Return the record of one reading."""
    return OutsiderPeak(now_seconds, used_bytes, used_bytes)


def has_declared_size(request: Request) -> bool:
    """Whether the slices of a request may use headroom, as far as the request decides.

    The user named the size and pgpu has not changed it. The job shares its GPU in time slices, since an MPS server holds memory
    outside of slices, and neither moves its memory to the host nor makes others do so, which needs room of its own.
    """
    is_named = not request.is_estimated and request.basis is None
    is_moved = request.oversubscribes or request.preempts or request.measures
    return is_named and not is_moved and mode_of(request.sharing) is SharingMode.TIME_SLICE


def may_use_headroom(job: Job, lease: Lease) -> bool:
    """Whether a granted job may use headroom, and others beside it.

    Not if its limit is advisory, nor if it parks or is suspended, since it lends its place then. Slices of claims have no part in
    it: the amounts that a cluster knows are those without headroom, whatever else runs.
    """
    is_moved = job.spec.parks or job.suspended_by is not None or job.is_aside
    is_bound = not lease.is_advisory and lease.sharing is SharingMode.TIME_SLICE
    return is_bound and not is_moved and job.spec.runtime != "claim" and has_declared_size(job.request)


def yielded_bytes(room: GpuRoom, stable_bytes: int | None) -> int:
    """Return how much of a GPU's headroom declared slices may use now.

    Args:
        room: With slices of declared sizes only.
        stable_bytes: As of `OutsiderPeak`.
    """
    if stable_bytes is None or room.gpu.is_instance:
        return 0
    most_bytes = room.gpu.memory_bytes - max(stable_bytes, room.outsiders_bytes) - KEPT_BYTES
    return max(0, min(room.headroom_bytes, most_bytes - room.capacity_bytes))
