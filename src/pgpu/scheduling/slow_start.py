"""Slow start: of a new family of jobs whose sizes pgpu chooses, few run at once until some of it have ended.

All jobs of a burst get one size, and all would be wrong together: as many as fit start at once, then grow together, and each
waits for the others to end. How many may run is an input (`advising.memory_demand.most_at_once`), but never less than one for
each GPU, so that none is idle; it rises with each end. A job counts for ten minutes: some never end, such as servers.
"""

from collections import Counter
from collections.abc import Sequence

from pgpu.scheduling.admission_round import Candidate, Held, by_priority

COUNTED_SECONDS = 600.0


def split_new_families(
    queue: Sequence[Candidate], held: Sequence[Held], gpu_count: int, now_seconds: float
) -> tuple[Sequence[Candidate], Sequence[Candidate]]:
    """Split a queue into the jobs that a round considers and those of new families of which enough run.

    Args:
        queue: Waiting jobs, oldest first. A parked job continues a run that was counted, so it is never held back.
        held: Jobs with slices.
        gpu_count: Of the machine.
        now_seconds: Seconds since the epoch.

    Returns:
        Both in the order of the queue.
    """
    if all(each.most_of_family is None for each in queue):
        return queue, ()
    counts = Counter(each.family for each in held if now_seconds - each.granted_at_seconds < COUNTED_SECONDS)
    held_back = set()
    for equals in by_priority(queue):
        for candidate in equals:
            most = candidate.most_of_family
            if most is not None and counts[candidate.family] >= max(most, gpu_count) and candidate.gpu_uuid is None:
                held_back.add(candidate.job_id)
            else:
                counts[candidate.family] += 1
    considered = [each for each in queue if each.job_id not in held_back]
    return considered, [each for each in queue if each.job_id in held_back]
