"""Which parked jobs should not wait for the one GPU that they were on: another would do for them now, if they began anew.

Whether it would, the ordinary round says, played as if they could go anywhere: order, shares and quotas are what they are. It
refuses to say how they begin anew: whoever started them does.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pgpu.scheduling.admission_round import Admission
from pgpu.scheduling.candidate import Candidate


def jobs_to_restart_elsewhere(
    admission: Admission, queue: Sequence[Candidate], play: Callable[[Sequence[Candidate]], Admission]
) -> tuple[str, ...]:
    """Return the ids of those who wait for their own GPU, and would start now if any would do.

    Args:
        admission: What the round came to.
        queue: Who was in it.
        play: Decides the same round for another queue.
    """
    started = {grant.job_id for grant in admission.grants}
    bound = {each.job_id for each in queue if each.gpu_uuid is not None and each.job_id not in started}
    if not bound:
        return ()
    found = play([replace(each, gpu_uuid=None) if each.job_id in bound else each for each in queue])
    return tuple(grant.job_id for grant in found.grants if grant.job_id in bound)
