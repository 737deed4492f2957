"""What a resize does to a running job's limits, in an order in which a crash at any moment leaves it too little.

The ledger must never know of less than a job has: others would be granted the difference. So what becomes smaller binds
before the ledger is written, and what becomes larger after it, memory and GPU time each for itself. This module refuses to
touch a job that does not run: a starting one binds by itself.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pgpu.enforcement import Enforcer
from pgpu.engine.leases.compute_words import compute_words
from pgpu.errors import PgpuError
from pgpu.ledger import Entry
from pgpu.model import Job, JobState, Request


@dataclass(frozen=True, slots=True)
class LimitChange:
    """One change of one job."""

    enforcer: Enforcer
    before: Entry
    after: Entry
    holding: Sequence[Entry]
    """Every job that holds a lease, this one as it is to be."""

    def take(self) -> None:
        """Make smaller what is to be smaller, before the ledger says so.

        Raises:
            PgpuError: It does not bind; some of it may.
        """
        self._bind(self.after.job, self._smaller())

    def give(self) -> None:
        """Make larger what is to be larger, now that the ledger says so.

        Raises:
            PgpuError: It does not bind; some of it may.
        """
        self._bind(self.after.job, self._larger())

    def give_back(self) -> None:
        """Undo `take`, as far as that goes."""
        self._restore(self.before.job, self._smaller())

    def revert(self, entry: Entry) -> None:
        """Undo `give`, as far as that goes, before the ledger says so: what was before, or what another resize said since."""
        self._restore(self.before.job if self.is_as_it_was_put(entry) else entry.job, self._larger())

    def is_as_it_was_put(self, entry: Entry) -> bool:
        """Whether nobody has changed the job's slices since."""
        return (entry.job.request, entry.job.lease) == (self.after.job.request, self.after.job.lease)

    def _smaller(self) -> list["_Dimension"]:
        return [
            each for each in _DIMENSIONS if each.is_changed(*self._requests) and not each.is_larger(*self._requests)
        ]

    def _larger(self) -> list["_Dimension"]:
        return [each for each in _DIMENSIONS if each.is_larger(*self._requests)]

    @property
    def _requests(self) -> tuple[Request, Request]:
        return self.before.job.request, self.after.job.request

    def _bind(self, job: Job, dimensions: Sequence["_Dimension"]) -> None:
        if self.after.job.lease is None or self.after.job.state is not JobState.RUNNING:
            return
        for each in dimensions:
            each.bind(self.enforcer, job, self.holding)

    def _restore(self, job: Job, dimensions: Sequence["_Dimension"]) -> None:
        """Where one of several GPUs refused, those come first here, too, that took it."""
        for each in dimensions:
            with suppress(PgpuError):
                self._bind(job, [each])


@dataclass(frozen=True, slots=True)
class _Dimension:
    """What can change for itself."""

    amount: Callable[[Request], tuple[float, bool]]
    """How much it is, and what else changes with it that makes it less."""

    bind: Callable[[Enforcer, Job, Sequence[Entry]], None]

    def is_changed(self, before: Request, after: Request) -> bool:
        return self.amount(before) != self.amount(after)

    def is_larger(self, before: Request, after: Request) -> bool:
        (old, was_less), (new, is_less) = self.amount(before), self.amount(after)
        return new > old or (new == old and was_less and not is_less)


def _bind_memory(enforcer: Enforcer, job: Job, _holding: Sequence[Entry]) -> None:
    if job.lease is not None:
        enforcer.resize(job.lease, job.request.memory_bytes)


def _bind_share(enforcer: Enforcer, job: Job, holding: Sequence[Entry]) -> None:
    if job.lease is not None:
        enforcer.set_compute(job.lease, compute_words(job, holding))


_DIMENSIONS = (
    _Dimension(lambda request: (request.memory_bytes, False), _bind_memory),
    _Dimension(lambda request: (request.compute_share or 0.0, request.is_strict), _bind_share),
)
