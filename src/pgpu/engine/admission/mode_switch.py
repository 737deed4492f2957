"""When a job waits until a GPU in time slices is empty, because it is better off there under MPS.

A running process keeps its mode, so a GPU changes its mode only once everybody has left. Who starts there in time slices puts that
off for all who come later; who waits instead pays for them. It is rent or buy: a job waits once its own gain and what
its program has lost in time slices since it last ran under MPS come to as much as the wait. So a stream of jobs ends in the better mode
whatever their order, at no more than twice what knowing the future would have cost. It refuses to have anybody wait
longer than it runs itself, or for a job of which nobody knows when it ends.

Source: Karlin, Manasse, Rudolph and Sleator, *Competitive Snoopy Caching* (Algorithmica 1988), for rent or buy.
Docs: docs/decisions/0033-waiting-for-sharing-mode-as-long-as-it-pays.md.
"""

import math
from collections.abc import Iterable, Mapping

from pgpu.ledger import Call, Entry


def is_worth_waiting(
    wait_seconds: float, own_seconds: float, sliced_seconds: float, gain: float, waited_seconds: float = 0.0
) -> bool:
    """Whether a job should wait for MPS.

    Args:
        wait_seconds: Until the GPU is probably empty; infinity where nobody knows.
        own_seconds: How long the job usually runs.
        sliced_seconds: How long its program ran in time slices beside others since it last ran under MPS.
        gain: So many times faster it is under MPS; above 1.
        waited_seconds: For how long it has waited already where it could have started in time slices: whoever comes
            meanwhile may put off that the GPU is empty again and again, each time by little.
    """
    saved_seconds = (own_seconds + sliced_seconds) * (1 - 1 / gain)
    return waited_seconds + wait_seconds <= min(own_seconds, saved_seconds)


def empty_in_seconds(there: Iterable[Entry], lasting: Mapping[Call, float], now_seconds: float) -> float:
    """Return when the last of those on a GPU will probably end; infinity where one's program never ended before.

    Args:
        there: Who is on it.
        lasting: How long calls usually last, in seconds.
        now_seconds: Since the epoch.
    """
    return max((_ends_in_seconds(entry, lasting, now_seconds) for entry in there), default=0.0)


def _ends_in_seconds(entry: Entry, lasting: Mapping[Call, float], now_seconds: float) -> float:
    """One that is overdue is expected to be so for as long again as it is already."""
    job = entry.job
    usual_seconds = lasting.get((job.signature, job.owner_uid)) if job.signature else None
    since_seconds = job.started_at_seconds or (job.lease.granted_at_seconds if job.lease else now_seconds)
    return math.inf if usual_seconds is None else abs(usual_seconds - max(0.0, now_seconds - since_seconds))
