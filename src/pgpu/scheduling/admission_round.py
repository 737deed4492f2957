"""What one round of admission answers: who starts, who waits and why, who gives up, and what the next round is told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import overload

from pgpu.model import SharingMode, Slice
from pgpu.scheduling.candidate import Candidate
from pgpu.scheduling.precedence import OverdueReservation


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
