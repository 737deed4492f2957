"""What becomes of waiting jobs before memory counts: those that will never start are cancelled, the held ones say why they wait.

Of those that others let go the wait counts from then on. It refuses to judge: `dependencies` does.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

from pgpu.engine.admission.dependencies import DependencyVerdicts, judge_conditional
from pgpu.ledger import Decision, Entry, Peer, View
from pgpu.model import JobState


def settle(decision: Decision, now_seconds: float, gives_up: Collection[str] = ()) -> list[str]:
    """Write what follows from how other jobs ended, and return who was cancelled.

    Args:
        decision: Where to read and write.
        now_seconds: Seconds since the epoch.
        gives_up: The jobs whose wait has run out; cancelled here if they are held.
    """
    waiting = decision.conditional()
    found = judge_conditional(decision, waiting)
    for job_id, why in found.doomed.items():
        decision.put(cancel_entry(decision.entry(job_id), now_seconds, reason=why))
    if given_up := [late_id for late_id in gives_up if late_id in found.held]:
        for late_id in given_up:
            decision.put(cancel_entry(decision.entry(late_id), now_seconds, timed_out=True))
        return [*found.doomed, *given_up, *settle(decision, now_seconds)]
    before = {peer.job_id: peer.reason for peer in waiting}
    decision.put_reasons({job_id: why for job_id, why in found.held.items() if before[job_id] != why})
    decision.let_go(_let_go(waiting, found), now_seconds)
    return list(found.doomed)


def has_to_settle(view: View, gives_up: Collection[str] = ()) -> bool:
    """Whether `settle` would write anything."""
    waiting = view.conditional()
    found = judge_conditional(view, waiting)
    reasons = {peer.job_id: peer.reason for peer in waiting}
    is_stale = any(reasons[held_id] != why for held_id, why in found.held.items())
    is_stale = is_stale or bool(_let_go(waiting, found))
    return bool(found.doomed) or is_stale or any(job_id in found.held for job_id in gives_up)


def _let_go(waiting: Sequence[Peer], found: DependencyVerdicts) -> list[str]:
    """Return who was held by others until now, and is no longer; only who is held has a reason in the ledger."""
    return [
        peer.job_id
        for peer in waiting
        if peer.reason is not None and peer.job_id not in found.held and peer.job_id not in found.doomed
    ]


def cancel_entry(entry: Entry, now_seconds: float, *, timed_out: bool = False, reason: str | None = None) -> Entry:
    """Return a waiting job that was given up; `reason` says why where nobody asked for it."""
    job = replace(
        entry.job, state=JobState.CANCELLED, finished_at_seconds=now_seconds, reason=reason, wait_timed_out=timed_out
    )
    return replace(entry, job=job)
