"""A job: the command and its runtime, the account it runs under, its state, and how jobs are submitted and reported."""

from enum import StrEnum
from typing import Literal

from pgpu.model.lease import Holder, Lease, OnTimeLimit, ProcessHolder, Request, SharingMode
from pgpu.structs import Struct, replace


class Account(Struct, frozen=True):
    """The user a job runs as, from the kernel's credentials of the client, and what a process of that user would inherit.

    A job without an account runs as the process that starts it, as with the embedded engine.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Supplementary groups."""

    umask: int = 0o022
    limits: tuple[tuple[str, int, int], ...] = ()
    """(Name such as `RLIMIT_NOFILE`, soft, hard); -1 is no limit. Missing limits are those of the server."""

    environment: tuple[tuple[str, str], ...] = ()
    """The whole environment: nothing is inherited from the server. Not in `repr`, since it may hold secrets."""

    starter: ProcessHolder | None = None
    """The process that offers to start the job's monitor, so that the job is its descendant; None for jobs of the agent."""

    def __repr__(self) -> str:
        return f"Account(uid={self.uid}, gid={self.gid})"


# Owner of every job of `docker run --runtime=pgpu`. A container engine does not pass on its caller, so all such containers have
# one owner, `docker`, with one quota. No user has this number: it is (uid_t) -2.
DOCKER_UID = 4_294_967_294

DOCKER_NAME = "docker"

# Owner of the slices of all pods; Kubernetes itself has namespaces and quotas. No user's number either.
KUBERNETES_UID = 4_294_967_293

KUBERNETES_NAME = "kubernetes"

OWNER_UIDS = {DOCKER_NAME: DOCKER_UID, KUBERNETES_NAME: KUBERNETES_UID}
OWNER_NAMES = {uid: name for name, uid in OWNER_UIDS.items()}


# Id of another user's job, of which only the memory is disclosed.
ANONYMOUS = "-"


TIMED_OUT = 124
"""Exit code of a job that its time limit stopped. Source: timeout(1)."""

# Default for a sealed container: enough for torch with a model, and many such containers fit on one machine.
SEALED_HOST_MEMORY_BYTES = 4 << 30


class JobState(StrEnum):
    """Life cycle of a job: waiting → starting → running → exited, or cancelled, or failed."""

    WAITING = "waiting"
    """Accepted; its slices do not fit yet."""

    STARTING = "starting"
    """Granted; its runtime is being started."""

    RUNNING = "running"
    EXITED = "exited"
    """Its command ended; see its exit code."""

    FAILED = "failed"
    """pgpu could not start it, or lost it; see `error`."""

    CANCELLED = "cancelled"
    """It was cancelled before it was granted, or its wait ran out."""

    @property
    def is_final(self) -> bool:
        """Whether this is a final state."""
        return self in {JobState.EXITED, JobState.FAILED, JobState.CANCELLED}


class Mount(Struct, frozen=True):
    """A host path in a container, as in `docker run --volume HOST:CONTAINER[:OPTIONS]`."""

    source: str
    """Absolute host path, or the name of a Docker volume."""

    target: str
    """Absolute path in the container."""

    options: str = ""
    """Docker's own options, such as `ro` or `rw,z`; empty for the engine's default."""


ABRIDGED_CHARACTERS = 512

END_SHELL = (
    "/bin/sh",
    "-c",
    (
        'cd -- "$1" 2>/dev/null || cd /; '
        '[ ! -x /usr/bin/timeout ] || exec /usr/bin/timeout -k 5 60 /bin/sh -c "$2"; '
        '! command -v timeout >/dev/null || exec timeout -k 5 60 /bin/sh -c "$2"; exec /bin/sh -c "$2"'
    ),
)
"""Runs a job's `notify` command, `$2`, in the job's working directory, `$1`; `$0` is `notify of JOB`.

It runs in `/` where that directory is gone, and without a limit of time where there is no `timeout`.
"""


class JobSpec(Struct, frozen=True):
    """What to run and how; the same terms as `docker run`."""

    command: tuple[str, ...]
    """Argument vector. For a container it may be empty: the image's own command runs then."""

    runtime: Literal["process", "docker", "oci", "claim"]
    """`oci`: a container created by `docker run --runtime=pgpu`; `claim`: containers of a cluster, without a command. Clients cannot
    request these two."""

    image: str | None = None
    """Only for `docker`."""

    environment: tuple[tuple[str, str], ...] = ()
    """Added to the client's environment (process) or to the image's (docker)."""

    volumes: tuple[Mount, ...] = ()
    """Only for `docker`."""

    working_directory: str | None = None
    user: str | None = None
    """Only for `docker`: `USER[:GROUP]`, names or numbers; None for the image's default."""

    name: str | None = None
    """Unique among jobs that are not final; also the container's name."""

    wants_tty: bool = False
    wants_stdin: bool = False
    """Whether standard input is forwarded; otherwise it is empty."""

    remove: bool = True
    """Only for `docker`: whether the container is removed once it ended."""

    wait_for_memory_seconds: float = 0.0
    """How long an allocation inside the slice that the device cannot back now waits before it fails."""

    is_traced: bool = False
    """Whether its GPU use is logged and a profile is made of it."""

    carve_out_percent: int | None = None
    """Only for a traced job: shared memory preferred by all its kernels, 0 to 100 % of the memory shared with L1."""

    is_sealed: bool = False
    """Only for `docker`: no network, a read-only root file system, no capabilities and no way to gain them."""

    network: str | None = None
    """Only for a sealed container: network of the engine that it may still use, such as `bridge`."""

    host_memory_bytes: int | None = None
    """Only for a sealed container: limit of its host memory; None for `SEALED_HOST_MEMORY_BYTES`."""

    provisions: tuple[Mount, ...] = ()
    """Only for `docker`: mounts added by pgpu itself, from paths that no user can change; never taken from a client."""

    serves: str | None = None
    """Name of the function whose calls it serves; only such a job may mark its lease as evictable while it is idle."""

    parks: bool = False
    """Whether it continues without its lease when that is taken: it gets SIGTSTP then, and SIGCONT when it has a lease again."""

    notify: str | None = None
    """Command of a shell that runs on the host as the job's owner once it has ended; see `ledger.end_commands`."""

    is_abridged: bool = False
    """Whether environment, volumes and the rest of a long command are left out: a list, and each decision on the queue, reads no
    more than `ABRIDGED_CHARACTERS` of a command. No runtime starts such a job."""

    @property
    def notifies(self) -> str | None:
        """Id of the ended job whose `notify` command it runs; None for any other job."""
        prefix, _, job_id = (self.command[3] if self.command[:3] == END_SHELL else "").partition(" of ")
        return job_id if prefix == "notify" else None

    def abridged(self) -> "JobSpec":
        """Return it without environment and volumes, and with the beginning of its command."""
        words: list[str] = []
        left = ABRIDGED_CHARACTERS
        for word in self.command:
            words.append(word if len(word) <= left else f"{word[:left]}…")
            left -= len(word)
            if left <= 0:
                break
        return replace(self, command=tuple(words), environment=(), volumes=(), is_abridged=True)

    @property
    def has_program(self) -> bool:
        """Whether something runs; the job of a claim consists of its slices alone."""
        return bool(self.command) or self.image is not None


class Batch(Struct, frozen=True):
    """Jobs of one submission that request the same for the same program."""

    id: str
    """Id of its first job."""

    size: int
    """Number of its jobs, 2 or more; those that have ended included."""


class Place(Struct, frozen=True):
    """Dependencies of a job, and its place in an array and in a batch."""

    after: tuple[str, ...] = ()
    """Ids of jobs that must end with exit code 0 before it may start; it is cancelled if one does not."""

    array_id: str | None = None
    """Id of its array, distinct from all job ids; None outside of arrays."""

    array_index: int | None = None
    """Its number in the array, which is in its variable `PGPU_ARRAY_INDEX`."""

    array_most_at_once: int | None = None
    """Most jobs of its array that may be granted at a time; None for no limit."""

    batch: Batch | None = None
    """None for a job that no other one of its submission equals."""

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """Environment that the job gets when it is started; empty outside of arrays."""
        if self.array_id is None:
            return ()
        return ("PGPU_ARRAY_ID", self.array_id), ("PGPU_ARRAY_INDEX", str(self.array_index))


class Job(Struct, frozen=True):
    """One job as stored in the ledger."""

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
    """0–255, 128 + signal number for a signal; None until it ended, or if its end was not observed."""

    reason: str | None = None
    """Why it waits, is not started yet or was cancelled by pgpu, in one line; None otherwise."""

    error: str | None = None
    """Failure inside pgpu, in one line; None unless it failed."""

    wait_timed_out: bool = False
    """Whether it was cancelled because its time limit in the queue ran out."""

    peak_bytes: int | None = None
    """Most that any one of its slices held; None until it ended, or if it could not be measured."""

    warning: str | None = None
    """Such as more memory held than its slice, or why it was not retried; in one line."""

    lease: Lease | None = None
    """What it holds or held; None until granted."""

    holder: Holder | None = None
    """The process or container; None until started."""

    owner_uid: int = 0
    """UID of the user that submitted it."""

    place: Place = Place()
    """What it waits for besides memory."""

    signature: str = ""
    """Identifies program and arguments, to find earlier runs of the same program; see `advising.memory_demand`."""

    attempt: int = 1
    """Counts from 1; increases when it hit its own limit and is retried."""

    expected_start_seconds: float | None = None
    """Predicted time of its grant, in seconds since the epoch; None unless it waits and a prediction is possible."""

    suspended_by: str | None = None
    """Id of the job for which it is suspended; None if it is not suspended."""

    resumed_at_seconds: float | None = None
    """When it was last resumed; None if it was never suspended."""

    offered_value: float | None = None
    """Cost of losing its lease while it is idle and evictable; 0 or more, in a unit common to all functions of the machine. None
    while it needs its lease."""

    reclaimed_at_seconds: float | None = None
    """When its lease was taken for another job; None otherwise."""

    parked_at_seconds: float | None = None
    """Since when it is parked: it runs without its lease, whose slices do not count. None otherwise."""

    wanted_at_seconds: float | None = None
    """Since when it waits for a lease again; None unless it is parked, or about to be, and needs one. Of a job that is parked since it
    could not grow: when it was granted its last one, so that its place in the queue is an old one."""

    gpu_model: str | None = None
    """Simulated model and count (`RTX 3090x4`); None on real GPUs."""

    expected_gpu_uuids: tuple[str, ...] = ()
    """The GPUs of that predicted grant."""

    begin_at_seconds: float | None = None
    """It does not start before this time; None for no such time."""

    held_by_uid: int | None = None
    """UID of the user that holds it: it does not start before it is released. None if it is not held."""

    hit_time_limit: bool = False
    """Whether it has run for its time limit."""

    def ended(self, exit_code: int, at_seconds: float) -> "Job":
        """Return the job with the end of its command; one that its time limit stopped has the exit code 124."""
        was_stopped = self.hit_time_limit and self.request.on_time_limit is OnTimeLimit.STOP
        code = TIMED_OUT if was_stopped else exit_code
        return replace(self, state=JobState.EXITED, exit_code=code, finished_at_seconds=at_seconds)

    @property
    def is_offered(self) -> bool:
        """Whether it is idle and its lease may be taken for another job."""
        return self.offered_value is not None and self.reclaimed_at_seconds is None and not self.state.is_final

    @property
    def is_aside(self) -> bool:
        """Whether it is parked, or about to be."""
        is_leaving = self.wanted_at_seconds is not None or (self.can_park and self.reclaimed_at_seconds is not None)
        return not self.state.is_final and (self.parked_at_seconds is not None or is_leaving)

    @property
    def can_park(self) -> bool:
        """Whether it parks on request: on one GPU in time slices only, since a client cannot leave MPS and return."""
        lease = self.lease
        is_alone = lease is not None and len(lease.slices) == 1 and lease.sharing is SharingMode.TIME_SLICE
        return self.spec.parks and is_alone

    @property
    def is_anonymous(self) -> bool:
        """Whether it is another user's job, of which only the memory is disclosed."""
        return self.id == ANONYMOUS

    @property
    def is_simulated(self) -> bool:
        """Whether its kernels compute nothing; False for a job without a GPU."""
        return self.gpu_model is not None and not self.request.is_without_gpu


# Most jobs of one request, elements of arrays included: the size that the queue is designed for.
MOST_ELEMENTS = 10_000


class Array(Struct, frozen=True):
    """Several jobs from one submission."""

    indices: tuple[int, ...]
    """Distinct numbers from 0 on, one job for each, in its variable `PGPU_ARRAY_INDEX`."""

    most_at_once: int | None = None
    """Most of them that may be granted at a time, at least 1; None for no limit."""


class Submission(Struct, frozen=True):
    """Request for one job or array of jobs."""

    spec: JobSpec
    """Each element of an array gets its index behind the name: `train-7`."""

    request: Request
    after: tuple[str, ...] = ()
    """Ids or names of jobs, or ids of arrays, that must end with exit code 0 first. A name refers to a submission of the same
    request if there is one."""

    array: Array | None = None
    wait_timeout_seconds: float | None = None
    """Time limit in the queue; 0 to start now or never, None for no limit."""

    signature: str = ""
    """As `Job.signature`; set by the engine, never by a client."""

    begin_at_seconds: float | None = None
    """As `Job.begin_at_seconds`; a limit of its wait counts from then on."""

    is_held: bool = False
    """Whether it is held from its submission on, by its user."""


class Event(Struct, frozen=True):
    """One entry of the ledger's event log."""

    sequence: int
    """Increases with each event; a reader continues behind the last one it has read."""

    at_seconds: float
    """Seconds since the epoch."""

    kind: str
    """`job`: a job was added or changed its state; `resized`, `share`, `warned`: its slices, compute share or warning changed; other
    kinds are defined where they are written."""

    job_id: str | None = None
    owner_uid: int | None = None
    """UID of the user it concerns; None for administrators only."""

    state: str | None = None
    """State of the job, if it is about one."""

    message: str | None = None
    """Details in one line, if any."""
