"""Which waiting jobs must not be looked at yet, and which never will be, because of what others did.

A job goes after those it names once all of them ended with exit code 0; as soon as one ended otherwise it is cancelled, and
with it those that wait for it. That is Slurm's `afterok`. An array may say how many of it are granted at a time. It refuses
to know of memory, order and clocks, and to write anything.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pgpu.ledger import Peer, View
from pgpu.model import JobState


@dataclass(frozen=True, slots=True)
class DependencyVerdicts:
    """How waiting jobs stand to others. Who is in neither may start."""

    held: Mapping[str, str]
    """By id: what it waits for before memory counts, in one line."""

    doomed: Mapping[str, str]
    """By id: why it will never start, in one line."""


def judge(view: View) -> DependencyVerdicts:
    """Judge every waiting job that others may keep back."""
    return judge_conditional(view, view.conditional())


def judge_conditional(view: View, waiting: Sequence[Peer]) -> DependencyVerdicts:
    """Judge waiting jobs, `View.conditional` as it was read already."""
    if not waiting:
        return DependencyVerdicts({}, {})
    named = {job_id for peer in waiting for job_id in peer.place.after}
    return judge_peers(waiting, view.peers(named), view.granted_of_arrays())


def judge_peers(waiting: Sequence[Peer], awaited: Mapping[str, Peer], granted: Mapping[str, int]) -> DependencyVerdicts:
    """Judge waiting jobs.

    Args:
        waiting: Oldest first; nobody waits for a younger one.
        awaited: By id, whom these go after. Who is missing is forgotten.
        granted: By id of an array, how many of it are granted now.
    """
    counted: Counter[str | None] = Counter(granted)
    held: dict[str, str] = {}
    doomed: dict[str, str] = {}
    for peer in waiting:
        if why := next(_failures(peer, awaited, doomed), None):
            doomed[peer.job_id] = why
        elif why := _hindrance(peer, awaited, counted):
            held[peer.job_id] = why
        else:
            counted[peer.place.array_id] += 1
    return DependencyVerdicts(held, doomed)


def failure_text(peer: Peer) -> str | None:
    """Say how a job ended otherwise than well; None while it has not, or if it ended well."""
    who = job_label(peer)
    if peer.state is JobState.CANCELLED:
        return f"{who} was cancelled"
    if peer.state is JobState.FAILED:
        return f"{who} failed"
    if peer.state is JobState.EXITED and peer.exit_code != 0:
        return f"{who} ended with exit code {peer.exit_code}"
    return None


def job_label(peer: Peer) -> str:
    """Return how people know a job: `job 0123456789ab (train)`."""
    return f"job {peer.job_id} ({peer.name})" if peer.name else f"job {peer.job_id}"


def _failures(peer: Peer, awaited: Mapping[str, Peer], doomed: Mapping[str, str]) -> Iterator[str]:
    for job_id in peer.place.after:
        other = awaited.get(job_id)
        if other is None:
            yield f"it was to go after job {job_id}, of which nothing is known any more"
        elif job_id in doomed:
            yield f"it was to go after {job_label(other)}, which was cancelled"
        elif (why := failure_text(other)) is not None:
            yield f"it was to go after others, and {why}"


def _hindrance(peer: Peer, awaited: Mapping[str, Peer], granted: Mapping[str | None, int]) -> str | None:
    open_ends = [awaited[job_id] for job_id in peer.place.after if not awaited[job_id].state.is_final]
    if open_ends:
        more = f" and of {len(open_ends) - 1} more" if len(open_ends) > 1 else ""
        return f"waits for the end of {job_label(open_ends[0])}{more}"
    most = peer.place.array_most_at_once
    if most is not None and granted[peer.place.array_id] >= most:
        return f"waits for others of its array, of which {most} may run at a time"
    return None
