"""The rules of pgpu 0.1 for sizes that it chooses: what the others are compared with.

A job of unknown size gets all that is free, at least half of a GPU, and shrinks once. A slice does not grow: a job that needs
more ends, and is queued again with more, as if all of them had `--retry-oom`.
"""

from benchmarks.chosen_sizes.families import CARD_BYTES
from benchmarks.chosen_sizes.machine import Job, Machine

from pgpu.advising.memory_demand import estimate, retry_bytes, shrunk_bytes
from pgpu.model import Request
from pgpu.scheduling import Candidate

MOST_TRIES = 3
CAREFUL_SHARE = 0.5


class Today:
    """See above."""

    quiet_seconds = 60.0

    def request(self, machine: Machine, job: Job) -> Candidate:
        memory_bytes = job.floor_bytes or estimate(job.work.signature, machine.history(job.work.signature)).memory_bytes
        if job.attempt == MOST_TRIES:
            memory_bytes = CARD_BYTES
        request = Request(min(CARD_BYTES, memory_bytes or int(CARD_BYTES * CAREFUL_SHARE)))
        return Candidate(
            job.id,
            request,
            None,
            0,
            job.eligible_seconds,
            machine.duration(job),
            takes_free=memory_bytes is None,
        )

    def grow(self, machine: Machine, job: Job) -> None:
        floor_bytes = retry_bytes(job.slice_bytes, job.wanted_bytes)
        job.eligible_seconds = machine.now_seconds
        machine.lose(job, floor_bytes)

    def shrunk_bytes(self, machine: Machine, job: Job) -> int:
        if not job.is_unknown:
            return job.slice_bytes
        same = [run for run in machine.history(job.work.signature) if run.signature == job.work.signature]
        floor_bytes = max((run.peak_bytes for run in same if run.peak_bytes < 0.9 * run.slice_bytes), default=0)
        fit_bytes = shrunk_bytes(job.slice_bytes, job.held_bytes, job.held_bytes, floor_bytes)
        return job.slice_bytes if fit_bytes is None else fit_bytes
