"""The line of waiting jobs as it stands now: who is looked at before whom, why each waits, and until about when.

It reads and forecasts; it refuses to change anything.
"""

import time
from collections.abc import Mapping
from dataclasses import replace

from pgpu.engine.engine import Engine
from pgpu.model import Job, JobState
from pgpu.scheduling import expected_starts


def read_queue(engine: Engine) -> tuple[list[Job], list[Job]]:
    """Return the jobs that wait for this engine's GPUs, in the order in which they are looked at, and those that are held.

    Raises:
        NodeError: A GPU or the ledger cannot be read.
    """
    snapshot = engine.snapshot()
    now_seconds = time.time()
    with engine.ledger.view() as view:
        situation = engine.rounds.situation(view, snapshot)
        entries = engine.queue_of(view.live())
        later = engine.rounds.later(view, situation.hindered)
    waiting = {entry.job.id: entry.job for entry in entries if entry.job.state is JobState.WAITING}
    admission = situation.admission(now_seconds)
    left = _left(len(situation.offers) - len(admission.reclaimed))
    reasons = {wait.job_id: wait.reason + left for wait in admission.waits}
    order = [*(grant.job_id for grant in admission.grants), *reasons]
    starts = expected_starts(
        situation.rooms,
        situation.queue,
        now_seconds,
        held=situation.held,
        quotas=situation.quotas,
        plan=situation.plan,
        precedence=situation.precedence,
        later=later,
        most_without_gpu=situation.most_without_gpu,
    )
    line = [_told(waiting[job_id], reasons, starts) for job_id in order if job_id in waiting]
    held = [job for job in waiting.values() if job.id in situation.hindered]
    return line, [_told(job, situation.hindered, starts) for job in held]


def _left(count: int) -> str:
    """Say that there are idle leases: whoever waits all the same would wait without them, too, or is of a lower priority."""
    if not count:
        return ""
    return f"; {count} lease{'s are' if count > 1 else ' is'} idle (offered) and would not help"


def _told(job: Job, reasons: Mapping[str, str], starts: Mapping[str, float]) -> Job:
    reason = reasons.get(job.id, "it fits and starts now")
    return replace(job, reason=reason, expected_start_seconds=starts.get(job.id))
