"""What a user may know of others' jobs: that memory and GPU time are taken or waited for, and how much. Not by whom."""

from pgpu.client.protocol import JobReport
from pgpu.ledger import Entry
from pgpu.model import ANONYMOUS, Job, JobSpec, Lease, Request

_NOBODY_UID = -1


def anonymous_report(entry: Entry) -> JobReport:
    """Return a job without anything that tells whose it is: amounts, GPUs and its state."""
    job = entry.job
    return JobReport(
        Job(
            id=ANONYMOUS,
            spec=JobSpec(command=(), runtime=job.spec.runtime),
            request=Request(job.request.memory_bytes, job.request.gpu_count, job.request.compute_share),
            state=job.state,
            created_at_seconds=0.0,
            lease=None if job.lease is None else _anonymous_lease(job.lease),
            gpu_model=job.gpu_model,
            owner_uid=_NOBODY_UID,
        ),
        (),
    )


def _anonymous_lease(lease: Lease) -> Lease:
    return Lease(ANONYMOUS, lease.slices, 0.0, None, is_advisory=False, sharing=lease.sharing)
