"""Bodies of requests and answers between a client and a service, beside the values of `pgpu.model`; values only.

`wire` encodes them as JSON. The names of the classes are the names of the schemas in `GET /openapi.json`, so renaming one
changes the interface that generated clients see.
"""

from typing import Literal

from pgpu.enforcement import SliceUse
from pgpu.engine.watch.gpu_time import GpuTime
from pgpu.model import (
    Gpu,
    GpuHours,
    GpuSensors,
    Job,
    Outsider,
    Period,
    Profile,
    SharingMode,
    Submission,
    UserUsage,
    VersionState,
)
from pgpu.structs import Struct

END_HEADER = "Pgpu-Log-Offset"
"""Header of an answer with the last lines of a log: the offset at which they end, from which a client can follow."""

MOST_WAITED = 100
"""Jobs whose ends are waited for in one request."""


class Ask(Struct, frozen=True):
    """A submission of jobs, all or none."""

    submissions: tuple[Submission, ...]
    key: str | None = None
    """Idempotency key of the client's choice, up to 64 letters and digits: a repeated request with the same key returns the
    jobs of the first one. None turns this off."""

    environment: tuple[tuple[str, str], ...] = ()
    """The client's environment, to which `spec.environment` is added."""

    inherited: str | None = None
    """The client's umask and resource limits as `pgpu.engine.submitter` writes them; None for the defaults."""

    simulate: str | None = None
    """The simulated GPUs that it is for, such as `RTX 3090x4`; None for the server's own GPUs."""


class Cancel(Struct, frozen=True):
    """Several jobs or arrays to end."""

    jobs: tuple[str, ...]
    grace_seconds: float
    """Between SIGTERM and SIGKILL for those that run."""


class JobNames(Struct, frozen=True):
    """Several jobs or arrays."""

    jobs: tuple[str, ...]


class Wait(Struct, frozen=True):
    """Jobs whose ends are waited for."""

    jobs: tuple[str, ...]
    """Ids, at most `MOST_WAITED`."""

    timeout_seconds: float
    """0 to 60."""


class Stop(Struct, frozen=True):
    """How to end a job."""

    grace_seconds: float
    """Between SIGTERM and SIGKILL."""


class Signal(Struct, frozen=True):
    """A signal for a job's main process."""

    number: int


class LeaseOffer(Struct, frozen=True):
    """Marks the lease of an idle job as evictable."""

    value: float
    """What it saves to keep the lease, 0 or more, in a unit common to all evictable leases."""


class Window(Struct, frozen=True):
    """The size of a terminal, in characters."""

    columns: int
    rows: int


class Together(Struct, frozen=True):
    """Jobs that might share a GPU."""

    jobs: tuple[Profile | str, ...]
    """Each a profile, or the id or name of a job, or a signature or the beginning of one."""

    gpu_model: str | None = None
    """As users write products; None for that of the profiles, else of the first GPU."""

    tolerance: float | None = None
    """How many times longer than alone the slowest may take, 1 or more."""


class UserQuota(Struct, frozen=True):
    """What one user may hold at a time, and use in a period; None for no limit."""

    uid: int
    memory_bytes: int | None = None
    jobs: int | None = None
    weight: float = 1.0
    """Of the user's share where several users wait; above 0."""

    gpu_hours: float | None = None
    """Of each period. Once they are spent no job with a GPU starts; running ones go on."""

    period: Period = Period.WEEK

    used_gpu_hours: float = 0.0
    """Of this period; only in answers."""


QuotaLimit = Literal["memory_bytes", "jobs", "gpu_hours"]


class QuotaChange(Struct, frozen=True):
    """What changes of one user's quota; None leaves a value as it is."""

    uid: int
    memory_bytes: int | None = None
    jobs: int | None = None
    weight: float | None = None
    gpu_hours: float | None = None
    period: Period | None = None
    """As of a quota, all; at first without a limit, of weight 1, with hours of a week."""

    lifted: tuple[QuotaLimit, ...] = ()
    """Limits that are taken away."""


class UsageReport(Struct, frozen=True):
    """What one user has used, and the user's quota of GPU hours."""

    usage: UserUsage
    quota: GpuHours | None = None


class TokenReport(Struct, frozen=True):
    """A token without its secret part."""

    id: str
    uid: int
    created_at_seconds: float
    expires_at_seconds: float | None = None
    """None for a token without an end."""


class NewToken(Struct, frozen=True):
    """A new token in full; only the digest of its secret part is stored."""

    id: str
    uid: int
    text: str
    """The value of `PGPU_TOKEN` for its holder."""

    expires_at_seconds: float | None = None
    """None for a token without an end, and of a server of a release that makes no others."""


class Rollout(Struct, frozen=True):
    """Traffic for a version."""

    version: int
    percent: int = 100
    """1 to 100; the rest goes to the version that had most of it before."""


class NewFunctionToken(Struct, frozen=True):
    """A new token for one function in full; only its digest is stored."""

    id: str
    text: str
    """For the header `Authorization: Bearer TEXT`."""

    expires_at_seconds: float | None = None
    """As of `NewToken`."""


class SecretReport(Struct, frozen=True):
    """A secret, without its value."""

    name: str
    set_at_seconds: float
    """When its value was set, since the epoch."""

    used_by: tuple[str, ...] = ()
    """`NAME@NUMBER` of each version that gets it."""


class ReplicaAsk(Struct, frozen=True):
    """One more replica for the gateway, or the packages for one."""

    function: str
    version: int


class Judgement(Struct, frozen=True):
    """Whether a version can be served."""

    version: int
    state: VersionState
    reason: str | None = None
    """Why it failed, in one line."""

    created_at_seconds: float | None = None
    """Of the version that was tried, since name and number may belong to a newer one by now; None skips the comparison."""


class Shown(Struct, frozen=True):
    """A token from a call to the gateway."""

    token: str


class Bearer(Struct, frozen=True):
    """What a token permits; all fields are empty if it is unknown or revoked."""

    function: str | None = None
    """The one function that it may call: its identity, see `Function.identity`."""

    uid: int | None = None
    """The user of a server's own token, which may call the functions of this user."""

    is_admin: bool = False
    """Whether that user administers, and may call every function."""


class GpuReport(Struct, frozen=True):
    """One GPU as `pgpu gpus` shows it."""

    gpu: Gpu
    used_bytes: int
    """In use by all processes, in bytes."""

    granted_bytes: int
    """Sum of the slices granted on it."""

    capacity_bytes: int
    """What slices may sum to now: memory less headroom less the use of outsiders."""

    enforcer: str
    does_not_cover: str
    utilisation_percent: int | None
    jobs: tuple[str, ...]
    """Ids of the jobs that hold a slice of it."""

    outsiders: tuple[Outsider, ...] = ()
    """Processes that compute on it outside of every lease."""

    granted_compute: float = 0.0
    """Sum of the shares of its time that are granted, 0 to 1."""

    sharing: SharingMode | None = None
    """How the jobs on it share it; None while there is none."""

    sensors: GpuSensors = GpuSensors()


class JobReport(Struct, frozen=True):
    """One job and what it holds now."""

    job: Job
    use: tuple[SliceUse, ...]
    """One for each slice; empty unless it runs."""

    time: tuple[GpuTime, ...] = ()
    """One for each slice; empty until it uses a GPU, and after its end."""

    gpus: tuple[str, ...] = ()
    """Index of each slice's GPU as nvidia-smi prints it, such as `0` or `0:2`; empty where no agent of the queue lives."""

    run_seconds: float = 0.0
    """How long it has run, without time in which it was suspended or parked."""

    count: int = 1
    """How many jobs it stands for: those of other users that wait and ask for the same are one."""


class QueueReport(Struct, frozen=True):
    """One waiting job as `pgpu queue` shows it."""

    position: int | None
    """From 1 on, in the order of admission; None for a job that waits for other jobs, its begin or a release first."""

    job: Job
    """With its current reason, and its expected start where that is known."""

    rule: str = ""
    """The rule that decides: memory, compute, sharing, turn, plan, wave, busy, quota, quota turn, family, crowd, dependency, begin,
    held or fits."""

    is_start_known: bool = False
    """Whether the start is known: it rests on earlier runs alone, and on no assumed duration."""

    doubt: str = ""
    """Why it is not: far, after, held, no end, overdue or unmeasured; empty where it is, and from an older server."""

    place_rule: str = ""
    """Why it stands behind the job before it: first, reserved, late, priority, plan, shares or size; empty for one that is
    held or needs no GPU, and from an older server."""

    place_seconds: float | None = None
    """With `shares`: how much more machine time, by weight, its user has had than the user of the job before it."""

    doubted: str | None = None
    """Id of the job whose end before it is assumed, if that is why and the caller sees this job."""

    not_before_seconds: float | None = None
    """Of an unknown start: even if every job of unknown end ended now, it would not start before. Seconds since the epoch."""

    by_seconds: float | None = None
    """Likewise, of the only job that waits: even if no job of unknown length ever ended, it would have started by then."""
