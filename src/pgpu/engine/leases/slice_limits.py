"""The limits of a running job's slices: the compute words of its limit files, and the order in which a resize changes limits.

The ledger must never hold less than a job has, or others would be granted the difference. So a limit that becomes smaller is
bound before the ledger is written, and one that becomes larger after it, memory and compute separately. A crash at any moment
leaves the job too little, never too much.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pgpu.enforcement import Enforcer
from pgpu.enforcement.compute_word import ComputeWord, weight_of
from pgpu.errors import PgpuError
from pgpu.ledger import Entry
from pgpu.model import Job, JobState, Request, SharingMode


def compute_words(job: Job, holding: Sequence[Entry]) -> tuple[ComputeWord, ...]:
    """Return the compute word of each of a job's GPUs in the order of its lease; empty without a lease.

    Launches are paced only in time slices, and only where this job or one beside it has a share or a priority: jobs without
    either get what the hardware's own time slices give. Under MPS and alone on a GPU the hardware does it.

    Args:
        job: Any.
        holding: Every job that holds a lease. The words must be written again whenever this changes.
    """
    if job.lease is None:
        return ()
    request = job.request
    is_sliced = job.lease.sharing is SharingMode.TIME_SLICE
    others = [entry.job for entry in holding if entry.job.id != job.id]
    return tuple(
        ComputeWord(
            share=request.compute_share or 0.0,
            weight=weight_of(request.priority),
            is_measured=True,
            is_shared=is_sliced
            and any(
                each.request.compute_share is not None or each.request.priority != 0
                for each in (job, *(other for other in others if _is_on(other, part.gpu_uuid)))
            ),
            is_strict=is_sliced and request.is_strict,
        )
        for part in job.lease.slices
    )


def neighbours(job: Job, holding: Sequence[Entry]) -> list[str]:
    """Return the ids of the other jobs that hold a slice on one of a job's GPUs."""
    uuids = [] if job.lease is None else [part.gpu_uuid for part in job.lease.slices]
    return [each.job.id for each in holding if each.job.id != job.id and any(_is_on(each.job, uuid) for uuid in uuids)]


def _is_on(job: Job, gpu_uuid: str) -> bool:
    if job.lease is None or job.parked_at_seconds is not None:
        return False
    return any(part.gpu_uuid == gpu_uuid for part in job.lease.slices)


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One resize of one job. Does nothing unless the job runs: a starting one binds its limits itself."""

    enforcer: Enforcer
    before: Entry
    after: Entry
    holding: Sequence[Entry]
    """Every job that holds a lease, this one as it is to be."""

    def take(self) -> None:
        """Bind the limits that become smaller, before the ledger is written.

        Raises:
            PgpuError: Not all of them bind; some may.
        """
        self._bind(self.after.job, self._smaller())

    def give(self) -> None:
        """Bind the limits that become larger, after the ledger was written.

        Raises:
            PgpuError: Not all of them bind; some may.
        """
        self._bind(self.after.job, self._larger())

    def give_back(self) -> None:
        """Undo `take` as far as possible."""
        self._restore(self.before.job, self._smaller())

    def revert(self, entry: Entry) -> None:
        """Undo `give` as far as possible, before the ledger is written: to the old limits, or to those of a later resize."""
        self._restore(self.before.job if self.is_as_it_was_put(entry) else entry.job, self._larger())

    def is_as_it_was_put(self, entry: Entry) -> bool:
        """Whether no other resize has changed the job's slices since."""
        return (entry.job.request, entry.job.lease) == (self.after.job.request, self.after.job.lease)

    def _smaller(self) -> list["_Dimension"]:
        requests = self.before.job.request, self.after.job.request
        return [each for each in _DIMENSIONS if each.is_changed(*requests) and not each.is_larger(*requests)]

    def _larger(self) -> list["_Dimension"]:
        return [each for each in _DIMENSIONS if each.is_larger(self.before.job.request, self.after.job.request)]

    def _bind(self, job: Job, dimensions: Sequence["_Dimension"]) -> None:
        if self.after.job.lease is None or self.after.job.state is not JobState.RUNNING:
            return
        for each in dimensions:
            each.bind(self.enforcer, job, self.holding)

    def _restore(self, job: Job, dimensions: Sequence["_Dimension"]) -> None:
        for each in dimensions:
            # Of several GPUs the enforcer binds in the lease's order, so it restores those first that took the change.
            with suppress(PgpuError):
                self._bind(job, [each])


@dataclass(frozen=True, slots=True)
class _Dimension:
    """A limit that can change without the other: memory, or compute."""

    amount: Callable[[Request], tuple[float, bool]]
    """The amount, and whether a strict limit makes it less."""

    bind: Callable[[Enforcer, Job, Sequence[Entry]], None]

    def is_changed(self, before: Request, after: Request) -> bool:
        return self.amount(before) != self.amount(after)

    def is_larger(self, before: Request, after: Request) -> bool:
        (old, was_less), (new, is_less) = self.amount(before), self.amount(after)
        return new > old or (new == old and was_less and not is_less)


def _bind_memory(enforcer: Enforcer, job: Job, _holding: Sequence[Entry]) -> None:
    if job.lease is not None:
        enforcer.resize(job.lease, job.request.memory_bytes)


def _bind_compute(enforcer: Enforcer, job: Job, holding: Sequence[Entry]) -> None:
    if job.lease is not None:
        enforcer.set_compute(job.lease, compute_words(job, holding))


_DIMENSIONS = (
    _Dimension(lambda request: (request.memory_bytes, False), _bind_memory),
    _Dimension(lambda request: (request.compute_share or 0.0, request.is_strict), _bind_compute),
)
