"""One round of admission: what the ledger and the GPUs say, told to `scheduling`.

It asks and answers; whoever holds the transaction writes the answer down.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from pgpu.engine.snapshot import Snapshot
from pgpu.ledger import Entry, View, Waiting
from pgpu.scheduling import Admission, Candidate, GpuRoom, Headroom, Held, Quota, admit

Durations = Callable[[View, Collection[str]], Mapping[str, float]]
"""Tells how long the programs with these signatures will probably run, in seconds; who is missing is unknown."""

Hindered = Callable[[View, Collection[Waiting]], Collection[str]]
"""Tells which of these jobs may not start yet, whatever is free."""


def unknown_durations(_view: View, _signatures: Collection[str]) -> Mapping[str, float]:
    """Know of no program how long it runs."""
    return {}


def nobody_hindered(_view: View, _waiting: Collection[Waiting]) -> Collection[str]:
    """Let everybody start whose slices fit."""
    return ()


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that one round is decided on."""

    rooms: tuple[GpuRoom, ...]
    queue: tuple[Candidate, ...]
    """Oldest first."""

    held: tuple[Held, ...]
    quotas: Mapping[int, Quota]

    def giving_up(self, job_id: str | None, now_seconds: float) -> "Situation":
        """Return the same where one job's wait has run out."""
        if job_id is None:
            return self
        queue = tuple(
            replace(each, deadline_seconds=now_seconds) if each.job_id == job_id else each for each in self.queue
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
    hindered: Hindered = nobody_hindered

    def situation(self, view: View, snapshot: Snapshot) -> Situation:
        """Read what a round is decided on.

        Args:
            view: Of the ledger, read later than the GPUs.
            snapshot: Of the GPUs.
        """
        holding = [entry for entry in view.holding() if entry.job.gpu_model == self.gpu_model]
        waiting = view.waiting(self.gpu_model)
        signatures = {each.signature for each in waiting} | {entry.job.signature for entry in holding}
        lasting = self.durations(view, signatures - {""})
        hindered = set(self.hindered(view, waiting))
        return Situation(
            rooms=snapshot.rooms(holding, self.headroom),
            queue=tuple(_candidate(each, lasting) for each in waiting if each.job_id not in hindered),
            held=tuple(_held(entry, lasting) for entry in holding),
            quotas=view.quotas(),
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
