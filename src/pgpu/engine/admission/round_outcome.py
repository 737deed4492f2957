"""What came of one round of admission.

Of ten thousand jobs that wait nobody asks why, most of the time: whose turn it is, is told when somebody does.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from pgpu.engine.admission.rounds import Situation
from pgpu.scheduling import Admission, Wait

NO_CHANGE = Admission((), (), ())
"""What is decided where nothing changes."""


@dataclass(frozen=True)
class RoundOutcome:
    """One round's."""

    situation: Situation = field(default_factory=lambda: Situation((), (), (), {}, {}, {}))
    admission: Admission | None = None
    """None where nobody could start and none was given up."""

    granted: tuple[str, ...] = ()
    """Ids of the jobs for which somebody must be started."""

    @property
    def admits_anybody(self) -> bool:
        """Whether somebody starts, is given up, or begins anew."""
        return bool(self._gone)

    @property
    def moved_ids(self) -> tuple[str, ...]:
        """Whose place somebody takes who starts, and who has a place again or none: their supervisors see to it, the sooner the better."""
        found = self.admission or NO_CHANGE
        parked = {each.job_id for each in self.situation.queue if each.gpu_uuid is not None}
        back = (grant.job_id for grant in found.grants if grant.job_id in parked)
        return (*(job_id for job_id, _by in found.suspended), *found.reclaimed, *found.elsewhere, *back)

    @property
    def changes_claim(self) -> bool:
        """Whether GPUs are kept for another job than before, or other ones."""
        return self.admission is not None and self.admission.reservation != self.situation.precedence.reservation

    @property
    def capacities(self) -> Mapping[str, int]:
        """By UUID of each GPU: what slices may sum to."""
        return self.situation.capacities

    @cached_property
    def waiting_ids(self) -> frozenset[str]:
        """Who still waits, whatever for."""
        queued = {candidate.job_id for candidate in self.situation.queue}
        return frozenset(queued - self._gone).union(self.situation.hindered)

    @property
    def deadlines_seconds(self) -> Mapping[str, float]:
        """The ledger's, by id, of those that still wait and have one."""
        told = self.situation.deadlines_seconds
        return {job_id: seconds for job_id, seconds in told.items() if job_id not in self._gone}

    @cached_property
    def _gone(self) -> set[str]:
        if self.admission is None:
            return set()
        found = self.admission
        return {*(grant.job_id for grant in found.grants), *found.expired, *found.elsewhere}

    @cached_property
    def _waits(self) -> dict[str, Wait]:
        told = self.admission or self.situation.admission(time.time())
        return {wait.job_id: wait for wait in told.waits}

    def reason(self, job_id: str) -> str | None:
        """Say why a job waits; None if it does not, as far as this round knows."""
        if job_id not in self.waiting_ids:
            return None
        hindered = self.situation.hindered.get(job_id)
        return self._waits[job_id].reason if hindered is None and job_id in self._waits else hindered
