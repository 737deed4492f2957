"""What the engine is told and tells of jobs' runs: values that cross to clients, which must not load the engine for them."""

import base64
import zlib
from dataclasses import dataclass, replace

from pgpu.enforcement import trace
from pgpu.errors import RequestError
from pgpu.model import Contest, Demand, Profile, Run, Sensitivity
from pgpu.scheduling.demand import Estimate


@dataclass(frozen=True, slots=True)
class Findings:
    """What several runs of a program beside each other told, which none of them tells alone."""

    sensitivity: Sensitivity
    contests: tuple[Contest, ...] = ()
    demands: tuple[Demand, ...] = ()
    """Of resources that were told better than its profile did, which they replace."""

    def added_to(self, profile: Profile) -> Profile:
        """Return a profile with all of this."""
        told = {demand.resource for demand in self.demands}
        kept = tuple(demand for demand in profile.demands if demand.resource not in told)
        return replace(profile, sensitivity=self.sensitivity, contests=self.contests, demands=(*kept, *self.demands))


@dataclass(frozen=True, slots=True)
class ProfiledJob:
    """What is kept of one traced job."""

    job_id: str
    profile: Profile
    packed_log: str
    """What it wrote down, as `unpacked` takes it: zlib's, in base64."""


@dataclass(frozen=True, slots=True)
class CallHistory:
    """What is known of one call of a program on one model of GPU, by one user."""

    signature: str
    gpu_name: str
    owner_uid: int
    runs: tuple[Run, ...]
    """Oldest first."""

    estimate: Estimate
    """What `--memory auto` would reserve for it now."""


@dataclass(frozen=True, slots=True)
class Waste:
    """One job's slice, and what it used of it."""

    job_id: str
    owner_uid: int
    signature: str
    gpu_name: str
    reserved_bytes: int
    """Per GPU."""

    peak_bytes: int
    should_ask_bytes: int | None
    """What it should have asked; None where its peak does not tell."""

    is_greedy: bool
    """Whether it took what it saw, so that nobody can tell what it needed."""

    was_too_small: bool
    """Whether it failed at its own limit."""

    duration_seconds: float | None
    """None while it runs."""

    @property
    def factor(self) -> float | None:
        """How many times what it used was reserved; None if it used nothing."""
        return self.reserved_bytes / self.peak_bytes if self.peak_bytes else None


def unpack_log(packed_log: str) -> bytes:
    """Return a log as `trace.read` takes it, however large it says to be.

    Raises:
        RequestError: It is none.
    """
    try:
        return zlib.decompressobj().decompress(base64.b64decode(packed_log), trace.LOG_BYTES)
    except (ValueError, zlib.error) as exc:
        raise RequestError(f"the log of the job is garbled: {exc}") from exc
