"""A command that runs inside a lease, and what became of it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from pgpu.model.lease import Holder, Lease
from pgpu.model.request import Request, SharingMode


@dataclass(frozen=True, slots=True)
class Account:
    """A user as the kernel named who asked, and what a process of that user would inherit.

    A job without one is what the process that starts it is, as in the embedded form.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Supplementary groups."""

    umask: int = 0o022
    limits: tuple[tuple[str, int, int], ...] = ()
    """(Name such as `RLIMIT_NOFILE`, soft, hard); -1 is no limit. Those left out are the server's own."""

    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """All of it: a process inherits nothing of the server's. Left out of every text, since it holds secrets."""


DOCKER_UID = 4_294_967_294
"""Owner of every job of `docker run --runtime=pgpu`. A container engine does not say for whom it creates a container, so all
of them are one owner's, `docker`, with one quota. The kernel gives this number to no user: (uid_t) -2."""

DOCKER_NAME = "docker"
"""How that owner is called."""

KUBERNETES_UID = 4_294_967_293
"""Owner of the slices of all pods: namespaces and their quotas are the cluster's affair. Likewise nobody's number."""

KUBERNETES_NAME = "kubernetes"
"""How that owner is called."""

OWNER_UIDS = {DOCKER_NAME: DOCKER_UID, KUBERNETES_NAME: KUBERNETES_UID}
OWNER_NAMES = {uid: name for name, uid in OWNER_UIDS.items()}


ANONYMOUS = "-"
"""Stands for the id of a job of which its reader may know no more than how much memory it takes."""


SEALED_HOST_MEMORY_BYTES = 4 << 30
"""Of a sealed container that asks for no other amount: torch with a model in it fits, and many fit beside each other."""


class JobState(StrEnum):
    """Where a job is in its life: waiting → starting → running → exited, or cancelled, or failed."""

    WAITING = "waiting"
    """Accepted; its slices do not fit yet."""

    STARTING = "starting"
    """Granted; its runtime is being started."""

    RUNNING = "running"
    EXITED = "exited"
    """Its command ended; the exit code tells how."""

    FAILED = "failed"
    """pgpu could not start it, or lost it; `error` says why."""

    CANCELLED = "cancelled"
    """Its asker gave up before it was granted, or its wait ran out."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens to a job in this state."""
        return self in {JobState.EXITED, JobState.FAILED, JobState.CANCELLED}


@dataclass(frozen=True, slots=True)
class Mount:
    """A host path that a container sees, as `docker run --volume HOST:CONTAINER[:OPTIONS]` names it."""

    source: str
    """Absolute host path, or the name of a Docker volume."""

    target: str
    """Absolute path in the container."""

    options: str = ""
    """Docker's own options, such as `ro` or `rw,z`; empty for the engine's default."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What to run and how; the same words as `docker run`."""

    command: tuple[str, ...]
    """Argument vector. For a container it may be empty: the image's own command runs then."""

    runtime: Literal["process", "docker", "oci", "claim"]
    """`oci`: a container that somebody else created, by `docker run --runtime=pgpu`; `claim`: containers of a cluster, which has
    no command here. Never asked for by a client."""

    image: str | None = None
    """Only for `docker`."""

    environment: tuple[tuple[str, str], ...] = ()
    """Added to the asker's environment (process) or to the image's (docker)."""

    volumes: tuple[Mount, ...] = ()
    """Only for `docker`."""

    working_directory: str | None = None
    user: str | None = None
    """Only for `docker`: `USER[:GROUP]`, names or numbers; None is the image's own."""

    name: str | None = None
    """Unique among jobs that are not final; also the container's name."""

    wants_tty: bool = False
    wants_stdin: bool = False
    """Whether standard input is forwarded; else it is empty."""

    remove: bool = True
    """Only for `docker`: whether the container is removed once it ended."""

    wait_for_memory_seconds: float = 0.0
    """How long an allocation inside the slice that the device cannot back right now waits before it fails."""

    is_traced: bool = False
    """Whether what it does on the GPU is written down, and a profile made of it."""

    carve_out_percent: int | None = None
    """Only of a traced job: shared memory that every kernel of it prefers, 0 to 100 % of what L1 and it share."""

    is_sealed: bool = False
    """Only for `docker`: no network, a root file system that is only read, no capability, and nothing that gives one."""

    network: str | None = None
    """Only for a sealed container: the engine's network that it has all the same, such as `bridge`."""

    host_memory_bytes: int | None = None
    """Only for a sealed container: what it may hold of the machine's own memory; None is `SEALED_HOST_MEMORY_BYTES`."""

    provisions: tuple[Mount, ...] = ()
    """Only for `docker`: what pgpu itself puts into the container, from places that no user can change; never a client's words."""

    serves: str | None = None
    """Name of the function whose calls it answers; only such a job may offer its lease while it is idle."""

    parks: bool = False
    """Whether it goes on without its lease when that is taken: it is told by SIGTSTP, and by SIGCONT when it has one again."""


@dataclass(frozen=True, slots=True)
class Place:
    """How a job stands to other jobs of the same asker."""

    after: tuple[str, ...] = ()
    """Ids of jobs that must end with exit code 0 before it may start; it is cancelled if one does not."""

    array_id: str | None = None
    """Id of the array it is part of, which is no job's; None outside of arrays."""

    array_index: int | None = None
    """Its number in the array, which it finds in `PGPU_ARRAY_INDEX`."""

    array_most_at_once: int | None = None
    """How many jobs of its array may be granted at a time; None for as many as fit."""


@dataclass(frozen=True, slots=True)
class Job:
    """One job as the ledger knows it."""

    id: str
    """12 hexadecimal digits, or `ANONYMOUS`."""

    spec: JobSpec
    request: Request
    state: JobState
    created_at_seconds: float
    """Seconds since the epoch, like every `_at_seconds`."""

    started_at_seconds: float | None = None
    finished_at_seconds: float | None = None
    exit_code: int | None = None
    """0–255, 128 + signal number for a signal; None until it ended, or where nobody could see it end."""

    reason: str | None = None
    """Why it waits, is not started yet or was cancelled by pgpu itself, in one line; None otherwise."""

    error: str | None = None
    """What went wrong in pgpu itself, in one line; None unless it failed."""

    wait_timed_out: bool = False
    """Whether it was cancelled because the time its asker gave it in the queue ran out."""

    peak_bytes: int | None = None
    """Most that any one of its slices held; None until it ended, or where nobody could measure it."""

    warning: str | None = None
    """What was seen of it, such as more memory held than its slice, or why it was not tried again; in one line."""

    lease: Lease | None = None
    """What it holds or held; None until granted."""

    holder: Holder | None = None
    """The process or container; None until started."""

    owner_uid: int = 0
    """Who submitted it."""

    place: Place = Place()
    """What it waits for besides memory."""

    signature: str = ""
    """What makes two runs the same program, so that one's history tells the other's size; see `scheduling.demand`."""

    attempt: int = 1
    """Counts from 1; more where it hit its own limit and asked to be tried again."""

    expected_start_seconds: float | None = None
    """When it will probably be granted, in seconds since the epoch; None unless it waits and that can be told."""

    suspended_by: str | None = None
    """Id of the job for which it does not run now, though it has started; None of any other."""

    resumed_at_seconds: float | None = None
    """When it went on last after it was suspended; None if it never was."""

    offered_value: float | None = None
    """What it saves to keep it, while it is idle and its lease may be taken for a job that waits; 0 or more, in any unit that
    all functions of the machine share. None while it claims its lease."""

    reclaimed_at_seconds: float | None = None
    """When its lease was taken, so that it ends; None of any other."""

    parked_at_seconds: float | None = None
    """Since when it lives without its lease, which counts for nothing meanwhile; None of any other."""

    wanted_at_seconds: float | None = None
    """Since when it waits for its lease again; None unless it is parked, or about to be, and claimed it."""

    gpu_model: str | None = None
    """The simulated model and count it was asked for (`RTX 3090x4`); None on real GPUs."""

    @property
    def is_offered(self) -> bool:
        """Whether it is idle and does without its lease if somebody needs it."""
        return self.offered_value is not None and self.reclaimed_at_seconds is None and not self.state.is_final

    @property
    def is_aside(self) -> bool:
        """Whether it lives without its lease, or is on its way there."""
        is_leaving = self.can_park and self.reclaimed_at_seconds is not None
        return not self.state.is_final and (self.parked_at_seconds is not None or is_leaving)

    @property
    def can_park(self) -> bool:
        """Whether it can live without its lease, which is of one GPU then, in turns: it cannot leave MPS and come back."""
        lease = self.lease
        is_alone = lease is not None and len(lease.slices) == 1 and lease.sharing is SharingMode.TIME_SLICE
        return self.spec.parks and is_alone

    @property
    def is_anonymous(self) -> bool:
        """Whether it is another user's, of which nothing else is told."""
        return self.id == ANONYMOUS

    @property
    def is_simulated(self) -> bool:
        """Whether its kernels compute nothing; never of a job without a GPU."""
        return self.gpu_model is not None and not self.request.is_without_gpu


MOST_ELEMENTS = 10_000
"""Jobs of one request, the elements of its arrays counted: what one queue is built for."""


@dataclass(frozen=True, slots=True)
class Array:
    """So many jobs from one submission."""

    indices: tuple[int, ...]
    """Distinct numbers from 0 on; each becomes one job, which finds its own in `PGPU_ARRAY_INDEX`."""

    most_at_once: int | None = None
    """How many of them may be granted at a time, at least 1; None for as many as fit."""


@dataclass(frozen=True, slots=True)
class Submission:
    """One job or array as it is asked for."""

    spec: JobSpec
    """Of an array's elements each gets its index behind the name: `train-7`."""

    request: Request
    after: tuple[str, ...] = ()
    """Ids or names of jobs, or ids of arrays, that must end with exit code 0 first. A name among the submissions that are
    handed in with this one means that one."""

    array: Array | None = None
    wait_timeout_seconds: float | None = None
    """After this long in the queue it is cancelled; 0 unless it can start now, None never."""

    signature: str = ""
    """Which program it is, as `Job.signature`; found by the engine, whatever is asked."""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the ledger's bulletin."""

    sequence: int
    """Counts up; who was away asks for what came after the last one that they saw."""

    at_seconds: float
    """Seconds since the epoch."""

    kind: str
    """`job`: one came or its state changed; `resized`, `share`, `warned`: likewise its slices, its compute share, its warning;
    others as their makers say."""

    job_id: str | None = None
    owner_uid: int | None = None
    """Whom it concerns; None for administrators alone."""

    state: str | None = None
    """The job's, where it is about one."""

    message: str | None = None
    """In one line, where there is more to say."""
