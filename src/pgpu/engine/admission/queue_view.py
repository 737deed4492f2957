"""The queue as users see it: its order, why each job waits, and its expected start. Changes nothing."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pgpu.engine.admission.rounds import RoundOutcome
from pgpu.engine.engine import Engine
from pgpu.ledger import Entry
from pgpu.model import Job, JobState
from pgpu.scheduling import expected_starts


def read_queue(engine: Engine) -> tuple[list[Job], list[Job]]:
    """Return the waiting jobs of this engine's queue in the order of the next round, and those that are held.

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
    idle_count = len(situation.offers) - len(admission.reclaimed)
    idle = f"; {idle_count} lease{'s are' if idle_count > 1 else ' is'} idle (offered) and would not help"
    reasons = {wait.job_id: wait.reason + (idle if idle_count else "") for wait in admission.waits}
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
    queue = [_with_forecast(waiting[job_id], reasons, starts) for job_id in order if job_id in waiting]
    held = [job for job in waiting.values() if job.id in situation.hindered]
    return queue, [_with_forecast(job, situation.hindered, starts) for job in held]


def _with_forecast(job: Job, reasons: Mapping[str, str], starts: Mapping[str, float]) -> Job:
    reason = reasons.get(job.id, "it fits and starts now")
    return replace(job, reason=reason, expected_start_seconds=starts.get(job.id))


def add_wait_reasons(entries: Sequence[Entry], outlook_of: Callable[[Job], RoundOutcome]) -> list[Entry]:
    """Return entries with the present reason of each waiting job; the ledger's may be outdated.

    Args:
        entries: Any, as in the ledger.
        outlook_of: Returns the outcome that a round of a job's queue would have now.

    Raises:
        PgpuError: An engine cannot be made, or its ledger not be read.
    """
    models = {entry.job.gpu_model: entry.job for entry in entries if entry.job.state is JobState.WAITING}
    outlooks = {model: outlook_of(job) for model, job in models.items()}
    found = []
    for entry in entries:
        if entry.job.state is JobState.WAITING:
            reason = outlooks[entry.job.gpu_model].reason(entry.job.id) or entry.job.reason
            entry = replace(entry, job=replace(entry.job, reason=reason))  # noqa: PLW2901 - the same entry, completed
        found.append(entry)
    return found
