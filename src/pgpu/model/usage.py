"""What users have used of the GPUs, and how much they may use in a period."""

from enum import StrEnum

from pgpu.structs import Struct


class UserUsage(Struct, frozen=True):
    """What one user has used of the GPUs in some time."""

    uid: int
    runs: int = 0
    """That ended, each try of a job counted."""

    gpu_seconds: float = 0.0
    """Of each GPU the larger of the parts of its memory and of its time that were granted, times the time in which the job ran."""

    byte_seconds: float = 0.0
    """Granted memory of all GPUs, times that time."""

    used_byte_seconds: float = 0.0
    """The same of the peaks of ended runs; of others their granted memory."""


class Period(StrEnum):
    """What a quota of GPU hours is for."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


class GpuHours(Struct, frozen=True):
    """A quota of GPU hours, and what is used of it."""

    most: float
    """Of one period; see `UserUsage.gpu_seconds`."""

    period: Period = Period.WEEK
    used: float = 0.0
    renewed_at_seconds: float = 0.0
    """Begin of the next period, in seconds since the epoch."""

    def is_spent(self, now_seconds: float) -> bool:
        """Whether nothing of it is left."""
        return self.used >= self.most and now_seconds < self.renewed_at_seconds
