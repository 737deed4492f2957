"""What a waiting job waits for besides GPUs: a release, a time, other jobs, or a place of its array.

`--after` is Slurm's `afterok`, `--begin` and `pgpu hold` are Slurm's, `%N` is the number of an array's elements at a time.

A job may start once all its predecessors have ended with exit code 0; as soon as one has ended otherwise, the job is
cancelled, and so are its successors. All this follows from the time and from how other jobs ended, before memory counts; a round
writes it first.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache

from pgpu.ledger import Decision, Entry, JobPeer, LedgerView
from pgpu.model import JobState
from pgpu.structs import Struct, field, replace
from pgpu.units import format_time

DEPENDENCY, HELD, BEGIN = "dependency", "held", "begin"
"""Rules of jobs that may not start, whatever is free: others must end first, a user holds it, its begin has not come."""


class DependencyVerdicts(Struct, frozen=True):
    """Waiting jobs that may not start; a job that is in neither mapping may."""

    hindered: Mapping[str, str]
    """Reason by id, in one line."""

    doomed: Mapping[str, str]
    """Jobs that will never start: reason by id, in one line."""

    dormant: Mapping[str, str] = field(default_factory=dict)
    """Those of `hindered` that only a release or their begin lets start: `HELD` or `BEGIN` by id."""

    def may_expire(self, job_id: str) -> bool:
        """Whether the wait of a job of `hindered` may run out: not while a user holds it."""
        return job_id in self.hindered and self.dormant.get(job_id) != HELD


def judge(view: LedgerView, now_seconds: float, waiting: Sequence[JobPeer] | None = None) -> DependencyVerdicts:
    """Judge every waiting job that may have to wait so; `waiting` if `LedgerView.conditional` was read already."""
    waiting = view.conditional() if waiting is None else waiting
    if not waiting:
        return DependencyVerdicts({}, {})
    named = {job_id for after in {peer.place.after for peer in waiting} for job_id in after}
    return judge_peers(waiting, view.peers(named), view.granted_of_arrays(), now_seconds)


def judge_peers(
    waiting: Sequence[JobPeer], awaited: Mapping[str, JobPeer], granted: Mapping[str, int], now_seconds: float = 0.0
) -> DependencyVerdicts:
    """Judge waiting jobs.

    Args:
        waiting: Oldest first; no job waits for a younger one.
        awaited: Their predecessors by id; those that the ledger has forgotten are missing.
        granted: How many jobs of each array are granted now, by the array's id.
        now_seconds: Seconds since the epoch.
    """
    counted: Counter[str | None] = Counter(granted)
    hindered: dict[str, str] = {}
    doomed: dict[str, str] = {}
    dormant: dict[str, str] = {}

    # Cached, since thousands of jobs may have the same thousands of predecessors.
    @cache
    def judge_predecessors(after: tuple[str, ...]) -> tuple[str | None, str | None]:
        if why := next(_failures(after, awaited, doomed), None):
            return why, None
        return None, _unfinished(after, awaited)

    # One pass is enough: predecessors are older, so they were judged before. Granted places of an array are counted
    # as they are given, the oldest element first.
    for peer in waiting:
        why, unfinished = judge_predecessors(peer.place.after)
        if why is not None:
            doomed[peer.job_id] = why
        elif found := _hindrance(peer, unfinished, counted, now_seconds):
            rule, hindered[peer.job_id] = found
            if rule != DEPENDENCY:
                dormant[peer.job_id] = rule
        else:
            counted[peer.place.array_id] += 1
    return DependencyVerdicts(hindered, doomed, dormant)


def failure_text(peer: JobPeer) -> str | None:
    """Return how a job failed; None while it has not ended, or if it succeeded."""
    label = _label(peer)
    if peer.state is JobState.CANCELLED:
        return f"{label} was cancelled"
    if peer.state is JobState.FAILED:
        return f"{label} failed"
    if peer.state is JobState.EXITED and peer.exit_code != 0:
        return f"{label} ended with exit code {peer.exit_code}"
    return None


def _label(peer: JobPeer) -> str:
    return f"job {peer.job_id} ({peer.name})" if peer.name else f"job {peer.job_id}"


def _failures(after: Sequence[str], awaited: Mapping[str, JobPeer], doomed: Mapping[str, str]) -> Iterator[str]:
    for job_id in after:
        other = awaited.get(job_id)
        if other is None:
            yield f"its predecessor, job {job_id}, is no longer in the ledger"
        elif job_id in doomed:
            yield f"its predecessor, {_label(other)}, was cancelled"
        elif (why := failure_text(other)) is not None:
            yield f"a predecessor failed: {why}"


def _unfinished(after: Sequence[str], awaited: Mapping[str, JobPeer]) -> str | None:
    """Return which predecessors have not ended, in one line; None if all have."""
    unfinished = [awaited[job_id] for job_id in after if not awaited[job_id].state.is_final]
    more = f" and of {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
    return f"waits for the end of {_label(unfinished[0])}{more}" if unfinished else None


def _hindrance(
    peer: JobPeer, unfinished: str | None, granted: Mapping[str | None, int], now_seconds: float
) -> tuple[str, str] | None:
    """Return the rule that keeps a job, and its reason; None if nothing does."""
    if peer.held_by_uid is not None:
        holder = "its owner" if peer.held_by_uid == peer.owner_uid else "an administrator"
        return HELD, f"held by {holder} until it is released"
    if unfinished is not None:
        return DEPENDENCY, unfinished
    if peer.begin_at_seconds is not None and peer.begin_at_seconds > now_seconds:
        return BEGIN, f"waits for its begin on {format_time(peer.begin_at_seconds)}"
    most = peer.place.array_most_at_once
    if most is not None and granted[peer.place.array_id] >= most:
        return DEPENDENCY, f"waits for others of its array, of which {most} may run at a time"
    return None


def settle(decision: Decision, now_seconds: float, gives_up: Collection[str] = ()) -> list[str]:
    """Cancel jobs that can never start, write the reasons of those that may not start, and release those that may.

    The wait of a released job counts from now on.

    Args:
        decision: The transaction.
        now_seconds: Seconds since the epoch.
        gives_up: Jobs past their deadline; cancelled here if they may not start.

    Returns:
        The ids of the cancelled jobs.
    """
    waiting = decision.conditional()
    found = judge(decision, now_seconds, waiting)
    for job_id, why in found.doomed.items():
        decision.put(cancel_entry(decision.entry(job_id), now_seconds, reason=why))
    if given_up := [late_id for late_id in gives_up if found.may_expire(late_id)]:
        for late_id in given_up:
            decision.put(cancel_entry(decision.entry(late_id), now_seconds, timed_out=True))
        # The successors of those given up can never start either.
        return [*found.doomed, *given_up, *settle(decision, now_seconds)]
    before = {peer.job_id: peer.reason for peer in waiting}
    decision.put_reasons({job_id: why for job_id, why in found.hindered.items() if before[job_id] != why})
    decision.mark_eligible(_released_ids(waiting, found), now_seconds)
    return list(found.doomed)


def has_unsettled_jobs(view: LedgerView, gives_up: Collection[str] = ()) -> bool:
    """Whether `settle` would write anything."""
    waiting = view.conditional()
    found = judge(view, time.time(), waiting)
    reasons = {peer.job_id: peer.reason for peer in waiting}
    is_stale = any(reasons[job_id] != why for job_id, why in found.hindered.items()) or bool(
        _released_ids(waiting, found)
    )
    return bool(found.doomed) or is_stale or any(map(found.may_expire, gives_up))


def _released_ids(waiting: Sequence[JobPeer], found: DependencyVerdicts) -> list[str]:
    # In the ledger only jobs that may not start have a reason.
    return [
        peer.job_id
        for peer in waiting
        if peer.reason is not None and peer.job_id not in found.hindered and peer.job_id not in found.doomed
    ]


def cancel_entry(entry: Entry, now_seconds: float, *, timed_out: bool = False, reason: str | None = None) -> Entry:
    """Return a waiting job as cancelled; `reason` is set unless a user cancelled it. A warning that announces a next try goes."""
    job = replace(
        entry.job,
        state=JobState.CANCELLED,
        finished_at_seconds=now_seconds,
        reason=reason,
        warning=None,
        wait_timed_out=timed_out,
    )
    return replace(entry, job=job)
