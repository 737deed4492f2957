"""One round of admission: what the ledger and the GPUs say, told to `scheduling`.

It asks and answers; whoever holds the transaction writes the answer down.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pgpu.engine.dependencies import judge
from pgpu.engine.snapshot import Snapshot
from pgpu.ledger import ALL_GPUS, Entry, View, Waiting
from pgpu.scheduling import Admission, Candidate, GpuRoom, Headroom, Held, Quota, Wait, admit

Durations = Callable[[View, Collection[str]], Mapping[str, float]]
"""Tells how long the programs with these signatures will probably run, in seconds; who is missing is unknown."""

Hindered = Callable[[View, Collection[Waiting]], Mapping[str, str]]
"""Tells, by id, which of these jobs may not start yet, whatever is free, and why."""


Sized = Callable[[Sequence[GpuRoom], Sequence[Waiting]], Sequence[Waiting]]
"""Tells what waiting jobs ask for in this round, whose need nobody knows."""


CLOSED = "waits for the administrator, who lets nothing new start for now"


def unknown_durations(_view: View, _signatures: Collection[str]) -> Mapping[str, float]:
    """Know of no program how long it runs."""
    return {}


def as_asked(_rooms: Sequence[GpuRoom], waiting: Sequence[Waiting]) -> Sequence[Waiting]:
    """Take every request as it is."""
    return waiting


def hindered_by_others(view: View, _waiting: Collection[Waiting]) -> Mapping[str, str]:
    """Keep back who goes after jobs that have not ended, and who has as many of its array before it as may run."""
    return judge(view).held


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that one round is decided on."""

    rooms: tuple[GpuRoom, ...]
    """Of the GPUs on which something may start."""

    queue: tuple[Candidate, ...]
    """Oldest first."""

    held: tuple[Held, ...]
    quotas: Mapping[int, Quota]
    hindered: Mapping[str, str]
    """By id of the waiting jobs that are not in the queue: what they wait for before memory counts."""

    deadlines_seconds: Mapping[str, float]
    """By id of the waiting jobs that have one: the ledger's."""

    capacities: Mapping[str, int] = field(default_factory=dict)
    """By UUID of every GPU: what slices may sum to."""

    def giving_up(self, job_ids: Collection[str], now_seconds: float) -> "Situation":
        """Return the same where the wait of some has run out."""
        if not job_ids:
            return self
        queue = tuple(
            replace(each, deadline_seconds=now_seconds) if each.job_id in job_ids else each for each in self.queue
        )
        return replace(self, queue=queue)

    def admission(self, now_seconds: float) -> Admission:
        """Decide."""
        return admit(self.rooms, self.queue, now_seconds, held=self.held, quotas=self.quotas)


@dataclass(frozen=True, slots=True)
class Rounds:
    """Reads the situation of one kind of GPUs."""

    gpu_model: str | None
    headroom: Headroom
    durations: Durations = unknown_durations
    hindered: Hindered = hindered_by_others
    sized: Sized = as_asked

    def situation(self, view: View, snapshot: Snapshot) -> Situation:
        """Read what a round is decided on.

        Args:
            view: Of the ledger, read later than the GPUs.
            snapshot: Of the GPUs.
        """
        holding = [entry for entry in view.holding() if entry.job.gpu_model == self.gpu_model]
        rooms = snapshot.rooms(holding, self.headroom)
        open_rooms = _open(rooms, view.closed_gpus())
        waiting = self.sized(open_rooms, view.waiting(self.gpu_model))
        signatures = {each.signature for each in waiting} | {entry.job.signature for entry in holding}
        lasting = self.durations(view, signatures - {""})
        hindered = dict(self.hindered(view, waiting))
        if rooms and not open_rooms:
            hindered = {each.job_id: CLOSED for each in waiting} | hindered
        return Situation(
            rooms=open_rooms,
            capacities={room.gpu.uuid: room.capacity_bytes for room in rooms},
            queue=tuple(_candidate(each, lasting) for each in waiting if each.job_id not in hindered),
            held=tuple(_held(entry, lasting) for entry in holding),
            quotas=view.quotas(),
            hindered=hindered,
            deadlines_seconds={
                each.job_id: each.wait_deadline_seconds for each in waiting if each.wait_deadline_seconds is not None
            },
        )


def _open(rooms: Sequence[GpuRoom], closed: Collection[str]) -> tuple[GpuRoom, ...]:
    """Leave out the GPUs on which the administrator lets nothing new start; what runs there goes on."""
    return tuple(room for room in rooms if ALL_GPUS not in closed and room.gpu.uuid not in closed)


@dataclass(frozen=True)
class Outcome:
    """What came of one round."""

    granted: tuple[str, ...] = ()
    """Ids."""

    waits: tuple[Wait, ...] = ()
    """In the order in which they will be looked at."""

    hindered: Mapping[str, str] = field(default_factory=dict)
    """As of the situation."""

    deadlines_seconds: Mapping[str, float] = field(default_factory=dict)
    """As of the situation; of those that still wait."""

    capacities: Mapping[str, int] = field(default_factory=dict)
    """By UUID of each GPU: what slices may sum to."""

    is_news: bool = False
    """Whether there was anything to write down."""

    @property
    def waiting_count(self) -> int:
        """How many still wait."""
        return len(self.waits) + len(self.hindered)

    @cached_property
    def _waits_by_id(self) -> dict[str, Wait]:
        return {wait.job_id: wait for wait in self.waits}

    def reason(self, job_id: str) -> str | None:
        """Say why a job waits; None if it does not, as far as this round knows."""
        wait = self._waits_by_id.get(job_id)
        return self.hindered.get(job_id) if wait is None else wait.reason


def outcome_of(situation: Situation, admission: Admission, *, is_news: bool) -> Outcome:
    """Put together what came of a round; `is_news` where something else than admission was to be written."""
    granted = tuple(grant.job_id for grant in admission.grants)
    gone = {*granted, *admission.expired}
    return Outcome(
        granted=granted,
        waits=admission.waits,
        hindered=situation.hindered,
        deadlines_seconds={
            job_id: seconds for job_id, seconds in situation.deadlines_seconds.items() if job_id not in gone
        },
        capacities=situation.capacities,
        is_news=is_news or bool(gone),
    )


def _candidate(waiting: Waiting, lasting: Mapping[str, float]) -> Candidate:
    """Without a deadline: the ledger's is wall time, which may be set; who waits for it tells when it ran out."""
    return Candidate(
        waiting.job_id,
        waiting.request,
        None,
        waiting.owner_uid,
        waiting.created_at_seconds,
        lasting.get(waiting.signature),
    )


def _held(entry: Entry, lasting: Mapping[str, float]) -> Held:
    job = entry.job
    lease = job.lease
    return Held(
        job.id,
        job.owner_uid,
        () if lease is None else lease.slices,
        0.0 if lease is None else lease.granted_at_seconds,
        job.request.compute_share or 0.0,
        lasting.get(job.signature),
    )
