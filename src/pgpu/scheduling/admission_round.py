"""Input and output of one round of admission: waiting jobs, running jobs, quotas, and the grants and waits decided from them.

Values only. The engine fills them in from the ledger and writes the result back.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import overload

from pgpu.model import Batch, Gpu, GpuHours, Request, SharingMode, Slice
from pgpu.scheduling.capacity import mode_of, usable
from pgpu.scheduling.slice_growth import grows
from pgpu.structs import Struct, field, replace

# Signature and user of a program that was profiled.
ProfiledCall = tuple[str, int]

# Predicts how many times longer each of these programs runs under MPS with the others on a GPU, by its UUID, than alone; at
# least 1. None if the prediction is unknown. The same arguments give the same result all through a round.
PredictSlowdowns = Callable[[str, Sequence[ProfiledCall]], Sequence[float] | None]


# A user with waiting jobs: UID, and the priority of these jobs.
Contender = tuple[int, int]

# Text of the family of a call (`advising.memory_demand`) and user.
Family = tuple[str, int]


def predict_nothing(_gpu_uuid: str, _calls: Sequence[ProfiledCall]) -> None:
    """Predict nothing; for rounds without profiles."""


class Candidate(Struct, frozen=True):
    """One waiting job."""

    job_id: str
    request: Request
    deadline_seconds: float | None = None
    """End of its wait, in seconds since the epoch; None for no limit."""

    owner_uid: int = 0
    eligible_at_seconds: float = 0.0
    """Start of its wait: since then only memory and the order of the queue delay it. Seconds since the epoch."""

    duration_seconds: float | None = None
    """Predicted run time: the median of its history; None without history."""

    takes_free: bool = False
    """Whether its need is unknown. It then gets all that is free on its GPU, and at least its request."""

    gpu_uuid: str | None = None
    """The only GPU it can use; None for any."""

    batch: Batch | None = None
    """Starts in even waves with the other jobs of this batch; None for a job that starts wherever it fits."""

    uses_headroom: bool = False
    """Whether its slices may use headroom that yields: their size is declared, and their limit binds."""

    usual_demand: float | None = None
    """Share of a GPU's time that its program needed in earlier runs, 0 to 1; None without history."""

    profiled: ProfiledCall | None = None
    """Its program, if it runs under MPS and slowdowns beside others may be predicted from a profile; else None."""

    family: Family | None = None
    """Of its call, if pgpu chose its size; else None."""

    most_of_family: int | None = None
    """How many jobs of its family may run at once while few have ended (`slow_start`); None for any number."""

    @property
    def mode(self) -> SharingMode:
        """The sharing mode in which it starts."""
        return mode_of(self.request.sharing)

    @property
    def compute_share(self) -> float:
        """Share of each GPU's time that it takes, 0 to 1; 1 in exclusive mode."""
        return 1.0 if self.mode is SharingMode.EXCLUSIVE else self.request.compute_share or 0.0

    @property
    def contender(self) -> Contender:
        return self.owner_uid, self.request.priority

    @property
    def grows(self) -> bool:
        """Whether its slices may grow while it runs, so that part of its GPU is kept for that."""
        return grows(self.request, self.mode)

    def can_use(self, gpu: Gpu) -> bool:
        """Whether the job can run on a GPU at all, regardless of what is free there."""
        return self.gpu_uuid in {None, gpu.uuid} and usable(gpu, self.request)

    def end_seconds(self, now_seconds: float) -> float:
        """Return when it is expected to end if it starts now; infinity without history."""
        return math.inf if self.duration_seconds is None else now_seconds + self.duration_seconds

    def with_memory(self, memory_bytes: int) -> "Candidate":
        """Return the same job with a request for `memory_bytes` on each of its GPUs."""
        if memory_bytes == self.request.memory_bytes:
            return self
        return replace(self, request=replace(self.request, memory_bytes=memory_bytes))


def by_priority(queue: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    """Yield the jobs of each priority, the highest first, in the order of the queue."""
    classes: dict[int, list[Candidate]] = {}
    for candidate in queue:
        classes.setdefault(candidate.request.priority, []).append(candidate)
    for priority in sorted(classes, reverse=True):
        yield classes[priority]


class Held(Struct, frozen=True):
    """One job with slices that count against their GPUs."""

    job_id: str
    owner_uid: int
    slices: tuple[Slice, ...]
    granted_at_seconds: float
    compute_share: float = 0.0
    """Of each of its GPUs, 0 to 1."""

    duration_seconds: float | None = None
    """Predicted run time; None without history."""

    mode: SharingMode = SharingMode.TIME_SLICE

    batch: Batch | None = None
    """As in a candidate."""

    demand: float | None = None
    """Share of its GPU's time that it needs, 0 to 1, as measured; None if it is not known."""

    uses_headroom: bool = False
    """As in a candidate; only of jobs that were granted in the same round."""

    usual_demand: float | None = None
    """As in a candidate."""

    profiled: ProfiledCall | None = None
    """As in a candidate."""

    family: Family | None = None
    """As in a candidate."""

    grows: bool = False
    """As in a candidate."""


class Quota(Struct, frozen=True):
    """The most that one user may hold at a time, and use in a period."""

    memory_bytes: int | None = None
    """Over all GPUs; None for no limit."""

    jobs: int | None = None
    """Granted jobs; None for no limit."""

    weight: float = 1.0
    """Above 0: a user of weight 2 is entitled to twice the share of one of weight 1."""

    gpu_hours: GpuHours | None = None
    """None for no limit. Once they are spent no job with a GPU starts; running ones go on."""


NO_QUOTA = Quota()


class OrderRules(Struct, frozen=True):
    """Time constants of the order."""

    default_duration_seconds: float = 600.0
    """Assumed for a job without history. Default: a first short run of a model."""

    ageing_seconds: float = 600.0
    """This wait makes up for twice the memory-time, among the jobs of one user. Default: as long as a job without history."""

    credit_seconds: float = 7200.0
    """A user that comes back after a pause goes first for at most this much machine time. Default: two hours, so that earlier
    use counts, and no other user waits for longer than this and one job."""

    patience_seconds: float = 1800.0
    """A job is overdue after this wait. Default: half an hour."""

    planned_patience_seconds: float = 86400.0
    """The same for a job of a batch plan, which may be delayed so that the whole batch ends sooner. Default: a day, longer
    than a batch that runs overnight."""

    faith_seconds: float = 4 * 3600.0
    """An overdue job keeps its reserved GPUs at least this long. Default: four hours, longer than most jobs of a lab."""


class OverdueReservation(Struct, frozen=True):
    """GPUs reserved for one overdue job, kept from round to round until it starts."""

    job_id: str
    gpu_uuids: tuple[str, ...]
    since_seconds: float
    """When the GPUs were chosen, in seconds since the epoch. A later grant on them must not delay the job."""

    start_seconds: float
    """First estimate of its start. Jobs that end by then may run before it; the limit never moves later."""

    until_seconds: float
    """From then on other GPUs may be chosen, in case a job on these never ends."""

    unable_since_seconds: float | None = None
    """Since when these GPUs cannot host the job; None while they can."""


class VirtualTime(Struct, frozen=True):
    """What each user of one queue has had of the machine, at one moment; see `virtual_clocks`."""

    clocks: Mapping[int, float] = field(default_factory=dict)
    """By UID: machine time times dominant share by weight, in seconds; what running jobs have had is included. Missing is 0."""

    floors: Mapping[int, float] = field(default_factory=dict)
    """By priority of waiting jobs: never falls while jobs of it wait. A clock that is further behind it than the credit counts as
    that far behind, and is set forward when a job of its user starts."""

    contenders: Mapping[Contender, bool] = field(default_factory=dict)
    """Users with waiting jobs after the last round, and whether they are active: a job waits for others, not for its owner's quota."""

    late_seconds: float | None = None
    """Machine time of late jobs since there are any in the queue; None while there are none."""

    other_seconds: float | None = None
    """The same of all other jobs."""

    late_ids: frozenset[str] = frozenset()
    """Ids of the running jobs that started as late ones."""


class Precedence(Struct, frozen=True):
    """State of the order that one round passes on to the next."""

    reservation: OverdueReservation | None = None
    time: VirtualTime = VirtualTime()


NO_PRECEDENCE = Precedence()


class Grant(Struct, frozen=True):
    """A job that starts now."""

    job_id: str
    slices: tuple[Slice, ...]
    is_late: bool = False
    """Whether it was overdue behind a higher priority or a batch plan."""

    mode: SharingMode = SharingMode.TIME_SLICE


class Cause(Enum):
    """Why a job waits."""

    MEMORY = "memory"
    """Its slices do not fit."""

    COMPUTE = "compute"
    """Its slices fit, but not its share of the GPUs' time."""

    SHARING = "sharing"
    """Both fit, but the jobs there share their GPUs in another mode."""

    TURN = "turn"
    """It fits, but would delay a job that memory is reserved for."""

    PLAN = "plan"
    """It fits, but its batch ends sooner if it starts later."""

    WAVE = "wave"
    """It fits, but contends less for its GPU in its batch's next wave."""

    BUSY = "busy"
    """It fits, but jobs end earlier on average if it waits for a less busy GPU."""

    QUOTA = "quota"
    """Its owner's quota is used up."""

    QUOTA_TURN = "quota turn"
    """Its owner's quota has room, but it would delay another job of the same owner."""

    FAMILY = "family"
    """Its size is a guess from few runs, and as many jobs of its family run as may meanwhile."""

    CROWD = "crowd"
    """It needs no GPU, and the maximum number of such jobs is running."""


# Formats the reason for a wait.
Explain = Callable[[Candidate, Cause], str]


class Wait(Struct, frozen=True, eq=False):
    """A job that waits. The text of its reason is computed on access."""

    job_id: str
    cause: Cause
    ahead: int
    """Number of jobs before it in its queue."""

    _explain: Explain
    _candidate: Candidate

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Wait) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[str, Cause, int]:
        return self.job_id, self.cause, self.ahead

    @property
    def reason(self) -> str:
        """One line of text: `waits for 1205 MiB on one GPU: 641 MiB free of 22.99 GiB; 3 jobs ahead`."""
        text = self._explain(self._candidate, self.cause)
        return text + (f"; {self.ahead} job{'s' if self.ahead > 1 else ''} ahead" if self.ahead else "")


class Waits(Sequence[Wait]):
    """Lazy sequence of waits: of a queue of ten thousand jobs only a few are ever displayed."""

    def __init__(
        self, found: Sequence[tuple[Candidate, Cause]], explain: Explain, first_line: int | None = None
    ) -> None:
        """Wrap the jobs that wait.

        Args:
            found: Waiting jobs, queue by queue.
            explain: Formats a reason.
            first_line: How many of them belong to the first queue (jobs with GPUs); None for all.
        """
        self._found = found
        self._explain = explain
        self._first_line = len(found) if first_line is None else first_line

    def __len__(self) -> int:
        return len(self._found)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Waits) and self._found == other._found

    def __hash__(self) -> int:
        return hash(tuple(self._found))

    @overload
    def __getitem__(self, place: int) -> Wait: ...

    @overload
    def __getitem__(self, place: slice) -> list[Wait]: ...

    def __getitem__(self, place: int | slice) -> Wait | list[Wait]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self._found)))]
        place = range(len(self._found))[place]
        candidate, cause = self._found[place]
        ahead = place if place < self._first_line else place - self._first_line
        return Wait(candidate.job_id, cause, ahead, self._explain, candidate)


class KeptMemory(Struct, frozen=True):
    """What a round has reserved for a job that waits."""

    owner_uid: int
    memory_bytes: int
    """Of each of its GPUs."""

    start_seconds: float
    """Expected start of the job, in seconds since the epoch."""

    spare_bytes: Mapping[str, int]
    """What jobs that are still there then may take, by UUID of each of its GPUs."""


class Admission(Struct, frozen=True):
    """Result of one round: exactly one outcome for each candidate."""

    grants: tuple[Grant, ...]
    waits: Sequence[Wait]
    """In the order in which the next round considers them."""

    expired: tuple[str, ...]
    """Ids of jobs that reached the end of their wait."""

    reservation: OverdueReservation | None = None
    """Input of the next round."""

    time: VirtualTime = VirtualTime()
    """Input of the next round."""

    turns: Mapping[Contender, float] = field(default_factory=dict)
    """Clock of each user with waiting jobs at the expected ends of the user's running ones: the least of a priority is next."""

    late_ids: frozenset[str] = frozenset()
    """Ids of the jobs of the queue that were overdue behind a higher priority or a batch plan."""

    suspended: tuple[tuple[str, str], ...] = ()
    """(Id of a running job to suspend, id of the job that gets its place)."""

    reclaimed: tuple[str, ...] = ()
    """Ids of idle jobs that lose their leases; the grants already use their memory."""

    holds_back: bool = False
    """Whether a job waits for a less busy GPU, or for jobs of its new family: then time alone may let it start."""

    elsewhere: tuple[str, ...] = ()
    """Ids of parked jobs that wait for their own GPU while another one has room: they end and start again there."""

    kept: tuple[KeptMemory, ...] = ()
    """Of jobs that wait on."""
