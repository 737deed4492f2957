"""What is told of one job beside what the ledger says: what it holds, and what it got of its GPUs' time."""

from dataclasses import replace

from pgpu.client.protocol import JobReport
from pgpu.engine.engine import Engine
from pgpu.engine.turns.turn_state import turns_now
from pgpu.engine.watch.gpu_time import GpuTime, read_samples, time_shares
from pgpu.ledger import Entry


def report_job(engine: Engine, entry: Entry) -> JobReport:
    """Report one job of an engine.

    Raises:
        NodeError: Its meter cannot be read.
    """
    lease = entry.job.lease if entry.is_lease_held else None
    if lease is None:
        return JobReport(entry.job, ())
    samples = read_samples(engine.places(entry.job.id).time_samples)
    time = time_shares(samples, [part.gpu_uuid for part in lease.slices])
    if entry.job.request.oversubscribes:
        time = tuple(_with_turn(engine, entry.job.id, each) for each in time)
    return JobReport(entry.job, tuple(engine.enforcer.use(lease)), time)


def _with_turn(engine: Engine, job_id: str, time: GpuTime) -> GpuTime:
    """Whoever does the turns knows of a change sooner than whoever takes samples."""
    for turn in turns_now(engine.settings, [time.gpu_uuid]):
        has_turn = job_id in turn.holders
        since_seconds, until_seconds = (turn.since_seconds, turn.until_seconds) if has_turn else (None, None)
        return replace(time, is_held=not has_turn, turn_since_seconds=since_seconds, turn_until_seconds=until_seconds)
    return time
