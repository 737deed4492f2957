"""Writes what came of a round of admission, inside the transaction in which it was decided.

It refuses to decide anything, and to start or wake anybody: a transaction may still fail.
"""

import time
from dataclasses import replace

from pgpu.engine.admission.expiry import cancel_entry, settle
from pgpu.engine.admission.round_outcome import NO_CHANGE, RoundOutcome
from pgpu.engine.leases.idle_leases import mark_restarting, mark_taken, regrant
from pgpu.ledger import Decision, Entry
from pgpu.model import JobState, Lease
from pgpu.scheduling.capacity import with_host_part


def commit_round(decision: Decision, outcome: RoundOutcome, gpu_model: str | None) -> RoundOutcome:
    """Write grants, suspensions, leases that are taken, and those that waited too long or in the wrong place; return it with those for whom somebody must be started.

    Args:
        decision: The transaction.
        outcome: Of a round in it, or of one since which nothing has changed.
        gpu_model: Whose queue it was; None for real GPUs.
    """
    now_seconds = time.time()
    admission = outcome.admission or NO_CHANGE
    for grant in admission.grants:
        lease = Lease(grant.job_id, grant.slices, now_seconds, sharing=grant.mode)
        entry = decision.entry(grant.job_id)
        decision.put(regrant(entry, lease) if entry.job.is_aside else _granted(entry, lease))
    for job_id, by in admission.suspended:
        entry = decision.entry(job_id)
        decision.put(replace(entry, job=replace(entry.job, suspended_by=by)))
    if outcome.admission is not None:
        decision.put_precedence(gpu_model, outcome.admission)
    for job_id in admission.reclaimed:
        decision.put(mark_taken(decision.entry(job_id), now_seconds))
    for job_id in admission.expired:
        decision.put(cancel_entry(decision.entry(job_id), now_seconds, timed_out=True))
    for job_id in admission.elsewhere:
        decision.put(mark_restarting(decision.entry(job_id)))
    if admission.expired:
        settle(decision, now_seconds)
    unattended = tuple(grant.job_id for grant in admission.grants if _is_unattended(decision.entry(grant.job_id)))
    return replace(outcome, granted=unattended)


def _is_unattended(entry: Entry) -> bool:
    """Whether somebody must be started to look after a granted job; a container of another tool brings its own."""
    return entry.supervisor is None and entry.job.spec.runtime != "oci"


def _granted(entry: Entry, lease: Lease) -> Entry:
    """What was granted is what it asks for from now on: a job of unknown size asked for whatever was free."""
    if entry.job.request.oversubscribes:
        parts = tuple(with_host_part(part, entry.job.request.memory_bytes) for part in lease.slices)
        lease = replace(lease, slices=parts)
    amount = lease.slices[0].memory_bytes if lease.slices else 0
    request = replace(entry.job.request, memory_bytes=amount)
    return replace(entry, job=replace(entry.job, state=JobState.STARTING, lease=lease, reason=None, request=request))
