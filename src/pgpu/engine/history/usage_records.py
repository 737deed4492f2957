"""Values about jobs' runs that cross between engine and clients; a module of its own, since clients do not load the engine."""

from pgpu.advising.memory_demand import Estimate
from pgpu.errors import RequestError
from pgpu.model import Contest, Demand, Profile, Run, Sensitivity
from pgpu.structs import Struct, replace


class Findings(Struct, frozen=True):
    """Results of several runs of a program, such as beside antagonists."""

    sensitivity: Sensitivity
    contests: tuple[Contest, ...] = ()
    demands: tuple[Demand, ...] = ()
    """Replace those of the profile for the same resources."""

    def merge_into(self, profile: Profile) -> Profile:
        """Return a profile completed by these results."""
        measured = {demand.resource for demand in self.demands}
        kept = tuple(demand for demand in profile.demands if demand.resource not in measured)
        return replace(profile, sensitivity=self.sensitivity, contests=self.contests, demands=(*kept, *self.demands))


class Profiled(Struct, frozen=True):
    """What is kept of one traced job."""

    job_id: str
    profile: Profile
    packed_log: str
    """Its trace log, compressed with zlib and encoded in base64; see `unpack_log`."""


class UserShare(Struct, frozen=True):
    """What one user holds of the machine, and when it is this user's turn."""

    uid: int
    """-1 for a user that the caller may not see."""

    weight: float
    held_share: float
    """The sum of its running jobs' shares of all memory or all GPU time, whichever is larger of each, 0 to 1."""

    waiting: int
    """Number of waiting jobs with a GPU."""

    behind_seconds: float | None
    """How much more machine time, by weight, it has had than the user that is next; None if no job of it waits for other jobs."""


class CallHistory(Struct, frozen=True):
    """The runs of one call of a program by one user on one model of GPU."""

    signature: str
    gpu_name: str
    owner_uid: int
    runs: tuple[Run, ...]
    """Oldest first."""

    estimate: Estimate
    """Of `--memory auto` for its next run."""


class Waste(Struct, frozen=True):
    """One job's slice, and how much of it was used."""

    job_id: str
    owner_uid: int
    signature: str
    gpu_name: str
    reserved_bytes: int
    """Per GPU."""

    peak_bytes: int
    should_ask_bytes: int | None
    """A fitting size; None where the peak does not show the need."""

    is_greedy: bool
    """Whether it allocated all the memory in sight, so that its peak does not show its need."""

    was_too_small: bool
    """Whether it failed at its own limit."""

    duration_seconds: float | None
    """None while it runs."""

    @property
    def factor(self) -> float | None:
        """Reserved memory divided by used memory; None if it used none."""
        return self.reserved_bytes / self.peak_bytes if self.peak_bytes else None


def unpack_log(packed_log: str) -> bytes:
    """Return a decoded log, cut off at the largest size that a log has: the input may come from a client.

    Raises:
        RequestError: It is no such log.
    """
    import base64  # noqa: PLC0415 - most processes read no log
    import zlib  # noqa: PLC0415 - likewise

    from pgpu.enforcement import trace  # noqa: PLC0415 - likewise

    try:
        return zlib.decompressobj().decompress(base64.b64decode(packed_log), trace.LOG_BYTES)
    except (ValueError, zlib.error) as exc:
        raise RequestError(f"the log of the job is garbled: {exc}") from exc
