"""What a user may know of others' jobs: that memory is taken or waited for, and how much. Not by whom, nor for what."""

from pgpu.client.protocol import JobReport
from pgpu.ledger import Entry
from pgpu.model import ANONYMOUS, Job, JobSpec, Lease, Request

_NOBODY_UID = -1


def anonymous(entry: Entry) -> JobReport:
    """Return a job without anything that tells whose it is: amounts, GPUs and its state."""
    job = entry.job
    return JobReport(
        Job(
            id=ANONYMOUS,
            spec=JobSpec(command=(), runtime=job.spec.runtime),
            request=Request(job.request.memory_bytes, job.request.gpu_count),
            state=job.state,
            created_at_seconds=0.0,
            lease=None if job.lease is None else Lease(ANONYMOUS, job.lease.slices, 0.0, None, is_advisory=False),
            gpu_model=job.gpu_model,
            owner_uid=_NOBODY_UID,
        ),
        (),
    )
