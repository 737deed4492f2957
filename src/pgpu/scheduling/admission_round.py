"""What one round of admission answers: who starts, who waits and why, who gives up, and what the next round is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import overload

from pgpu.model import Gpu, Request, SharingMode, Slice
from pgpu.scheduling.capacity import mode_of, usable


@dataclass(frozen=True, slots=True)
class Candidate:
    """One waiting job."""

    job_id: str
    request: Request
    deadline_seconds: float | None = None
    """When its wait runs out, in seconds since the epoch; None for never."""

    owner_uid: int = 0
    eligible_at_seconds: float = 0.0
    """Since when only memory and its turn keep it waiting, in seconds since the epoch: its wait is counted from there."""

    duration_seconds: float | None = None
    """How long it will probably run: the median of its history; None where there is none."""

    takes_free: bool = False
    """Whether nobody knows its need: it then takes what is free where it is placed, and no less than its request."""

    gpu_uuid: str | None = None
    """The only GPU that will do; None for any."""

    @property
    def mode(self) -> SharingMode:
        """How it shares its GPUs."""
        return mode_of(self.request.sharing)

    @property
    def compute_share(self) -> float:
        """What it takes of each GPU's time, 0 to 1: all of one that it has alone."""
        return 1.0 if self.mode is SharingMode.EXCLUSIVE else self.request.compute_share or 0.0

    def can_use(self, gpu: Gpu) -> bool:
        """Whether a GPU will do, whatever is free of it."""
        return self.gpu_uuid in {None, gpu.uuid} and usable(gpu, self.request.gpu_count)

    def asking(self, memory_bytes: int) -> "Candidate":
        """Return the same job with a request for so much on each of its GPUs."""
        if memory_bytes == self.request.memory_bytes:
            return self
        return replace(self, request=replace(self.request, memory_bytes=memory_bytes))


@dataclass(frozen=True, slots=True)
class Held:
    """One job whose slices count."""

    job_id: str
    owner_uid: int
    slices: tuple[Slice, ...]
    granted_at_seconds: float
    compute_share: float = 0.0
    """Of each of its GPUs, 0 to 1."""

    duration_seconds: float | None = None
    """As of a candidate."""

    mode: SharingMode = SharingMode.TIME_SLICE
    """How it shares its GPUs."""


@dataclass(frozen=True, slots=True)
class Quota:
    """What one user may hold at a time."""

    memory_bytes: int | None = None
    """Over all GPUs; None for as much as there is."""

    jobs: int | None = None
    """Granted at a time; None for any number."""

    weight: float = 1.0
    """Above 0: a user of weight 2 is entitled to twice the share of one of weight 1."""


NO_QUOTA = Quota()


COUNTED_RUNS = 4
"""A run counts so many times as long as it was: so a sixteenth of the memory is given out this way on average, and a quarter of
the time where one job fills the machine."""


LONGEST_SECONDS = 4 * 3600.0
"""So much of a run counts at most: a job that never ends keeps nobody from going first for ever."""


@dataclass(frozen=True, slots=True)
class OverdueReservation:
    """GPUs that are kept for one overdue job, from round to round, until it starts."""

    job_id: str
    gpu_uuids: tuple[str, ...]
    since_seconds: float
    """When they were chosen, in seconds since the epoch: what was granted there later must not delay the job."""

    start_seconds: float
    """When it was first thought to start; jobs that end by then go before it, and later ones never."""

    until_seconds: float
    """Other GPUs are looked for from then on: one that nobody leaves keeps the job waiting no longer."""

    unable_since_seconds: float | None = None
    """Since when they could not host the job; None while they could."""


@dataclass(frozen=True, slots=True)
class ServedJob:
    """A job that went first."""

    owner_uid: int
    memory_bytes: int
    """Over all its GPUs."""

    granted_at_seconds: float
    ended_at_seconds: float | None = None
    """None while it holds memory."""

    def counts(self, now_seconds: float) -> bool:
        """Whether it keeps others from going first: while it runs, and for some time after."""
        run_seconds = (self.ended_at_seconds or now_seconds) - self.granted_at_seconds
        if self.ended_at_seconds is None and run_seconds < LONGEST_SECONDS:
            return True
        return now_seconds - self.granted_at_seconds < COUNTED_RUNS * min(run_seconds, LONGEST_SECONDS)


@dataclass(frozen=True, slots=True)
class Precedence:
    """What one round tells the next."""

    reservation: OverdueReservation | None = None
    served: tuple[ServedJob, ...] = ()
    """Those that may still count."""


NO_PRECEDENCE = Precedence()


@dataclass(frozen=True, slots=True)
class Grant:
    """A job that starts now."""

    job_id: str
    slices: tuple[Slice, ...]
    went_first: bool = False
    """Whether it did because it was overdue: to be told to the rounds after this one (`ServedJob`)."""

    mode: SharingMode = SharingMode.TIME_SLICE
    """How it shares its GPUs from now on."""


class Cause(Enum):
    """Why a job waits."""

    MEMORY = "memory"
    """Its slices do not fit."""

    COMPUTE = "compute"
    """Its slices fit, and its share of the GPUs' time does not."""

    SHARING = "sharing"
    """Both fit, beside jobs that share their GPUs in another mode."""

    TURN = "turn"
    """They fit, and would delay the job that memory is kept for."""

    PLAN = "plan"
    """The batch ends sooner if they start later."""

    QUOTA = "quota"
    """Its owner holds as much as they may."""

    QUOTA_TURN = "quota turn"
    """Its owner may hold so much more, and it would delay another job of theirs."""

    CROWD = "crowd"
    """It needs no GPU, and as many such jobs run as may."""


Explain = Callable[[Candidate, Cause], str]
"""Puts into words why a job waits."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A job that waits; the words are made only when somebody asks."""

    job_id: str
    cause: Cause
    ahead: int
    """How many waiting jobs stand before it in its line."""

    _explain: Explain = field(compare=False, repr=False)
    _candidate: Candidate = field(compare=False, repr=False)

    @property
    def reason(self) -> str:
        """One line for people: `waits for 1205 MiB on one GPU: 641 MiB free of 22.99 GiB; 3 jobs ahead`."""
        text = self._explain(self._candidate, self.cause)
        return text + (f"; {self.ahead} job{'s' if self.ahead > 1 else ''} ahead" if self.ahead else "")


class Waits(Sequence[Wait]):
    """Those who wait, each put into words only when it is asked for: of ten thousand few are."""

    def __init__(
        self, found: Sequence[tuple[Candidate, Cause]], explain: Explain, first_line: int | None = None
    ) -> None:
        """Say nothing yet.

        Args:
            found: Who waits, line by line.
            explain: Finds the words.
            first_line: How many of them stand in the first line; None for all.
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


@dataclass(frozen=True, slots=True)
class Admission:
    """One answer for each candidate."""

    grants: tuple[Grant, ...]
    waits: Sequence[Wait]
    """In the order in which they will be looked at."""

    expired: tuple[str, ...]
    """Ids of the jobs that could not start before their wait ran out."""

    reservation: OverdueReservation | None = None
    """For whom GPUs are kept from now on: to be told to the next round."""

    suspended: tuple[tuple[str, str], ...] = ()
    """Ids of running jobs that make room from now on, each with that of the job that it makes room for."""

    reclaimed: tuple[str, ...] = ()
    """Ids of idle jobs whose leases are taken: the grants count on what they hold."""

    elsewhere: tuple[str, ...] = ()
    """Ids of parked jobs that wait for their own GPU while another has room for them: they end, to begin anew there."""
