"""What the limit file of each job says of compute, given who else is on its GPUs.

Jobs without a share slow nobody down more than the hardware's own time slices do, so their launches wait for nobody while
none beside them has a share. Under MPS and alone on a GPU nothing is held back: hardware sees to it. It refuses to write:
who looks after a job does, and looks again whenever its company changes.
"""

from collections.abc import Sequence

from pgpu.enforcement.compute_word import ComputeWord, weight_of
from pgpu.ledger import Entry
from pgpu.model import Job, SharingMode


def compute_words(job: Job, holding: Sequence[Entry]) -> tuple[ComputeWord, ...]:
    """Return the word of each of a job's GPUs, in its lease's order; none without a lease.

    Args:
        job: Whose.
        holding: Every job that holds a lease.
    """
    if job.lease is None:
        return ()
    others = [entry.job for entry in holding if entry.job.id != job.id]
    return tuple(_word(job, [other for other in others if _is_on(other, part.gpu_uuid)]) for part in job.lease.slices)


def neighbours(job: Job, holding: Sequence[Entry]) -> list[str]:
    """Return the ids of the other jobs that hold a slice of one of a job's GPUs."""
    uuids = [] if job.lease is None else [part.gpu_uuid for part in job.lease.slices]
    return [each.job.id for each in holding if each.job.id != job.id and any(_is_on(each.job, uuid) for uuid in uuids)]


def _word(job: Job, beside: Sequence[Job]) -> ComputeWord:
    request = job.request
    is_sliced = job.lease is None or job.lease.sharing is SharingMode.TIME_SLICE
    return ComputeWord(
        share=request.compute_share or 0.0,
        weight=weight_of(request.priority),
        is_measured=True,
        is_shared=is_sliced and any(_is_told_apart(each) for each in (job, *beside)),
        is_strict=is_sliced and request.is_strict,
    )


def _is_told_apart(job: Job) -> bool:
    return job.request.compute_share is not None or job.request.priority != 0


def _is_on(job: Job, gpu_uuid: str) -> bool:
    if job.lease is None or job.parked_at_seconds is not None:
        return False
    return any(part.gpu_uuid == gpu_uuid for part in job.lease.slices)
