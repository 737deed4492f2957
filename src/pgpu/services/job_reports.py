"""Jobs as callers see them: with what they hold now, or of other users' jobs only their amounts.

No GPU is read: use is in the meters of slices, and GPU time in files that the agents write.
"""

from pgpu.engine.context import EngineContext
from pgpu.engine.watch.gpu_time import read_samples, time_shares
from pgpu.ledger import Entry, monotonic_now
from pgpu.model import ANONYMOUS, Job, JobSpec, Lease, Request
from pgpu.services.messages import JobReport

UNKNOWN_UID = -1
"""Of users that a caller may not see."""


def report_job(engine: EngineContext, entry: Entry) -> JobReport:
    """Report a job: its slices' use, and the GPU time that its agent sampled.

    Raises:
        NodeError: Its meter cannot be read.
    """
    lease = entry.job.lease if entry.is_lease_held else None
    run_seconds = entry.run_seconds(monotonic_now())
    if lease is None:
        return JobReport(entry.job, (), run_seconds=run_seconds)
    # Samples and turns are files in the runtime directory, written by the agent: no GPU is read here.
    samples = read_samples(engine.places(entry.job.id).time_samples)
    shares = time_shares(samples, [part.gpu_uuid for part in lease.slices])
    if entry.job.request.oversubscribes:
        from pgpu.engine.watch.turn_arbiter import add_turn  # noqa: PLC0415 - few jobs do

        shares = tuple(add_turn(engine.settings, entry.job.id, each) for each in shares)
    return JobReport(entry.job, tuple(engine.enforcer.use(lease)), shares, run_seconds=run_seconds)


def anonymous_report(entry: Entry, count: int = 1) -> JobReport:
    """Return state, GPUs and amounts of another user's job, without anything that identifies it or its owner; or of several alike."""
    job, lease = entry.job, entry.job.lease
    if lease is not None:
        lease = Lease(ANONYMOUS, lease.slices, 0.0, None, is_advisory=False, sharing=lease.sharing)
    return JobReport(
        Job(
            id=ANONYMOUS,
            spec=JobSpec(command=(), runtime=job.spec.runtime),
            request=Request(job.request.memory_bytes, job.request.gpu_count, job.request.compute_share),
            state=job.state,
            created_at_seconds=0.0,
            lease=lease,
            gpu_model=job.gpu_model,
            owner_uid=UNKNOWN_UID,
        ),
        (),
        count=count,
    )
