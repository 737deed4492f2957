"""What is done for granted jobs whose supervisor died: anybody who comes by finishes the dead and gives the living another one.

It relies on the ledger alone, so it works after any crash: of the job, of its supervisor, of both, of the machine.
"""

import time
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from pgpu.engine.engine import Engine
from pgpu.engine.leases.mps_sharing import leave_mps
from pgpu.engine.process.unix_sockets import send_datagram
from pgpu.host.process_identity import is_alive
from pgpu.ledger import Entry
from pgpu.model import ClaimHolder, Job, JobState, ProcessHolder

SPAWN_PATIENCE_SECONDS = 20.0
"""How long a supervisor may take from its start to its first word in the ledger; a busy machine starts hundreds."""

GRANT_PATIENCE_SECONDS = 2.0
"""How long whoever granted a job may take to have its supervisor speak. Starting a second one harms nobody: it goes."""

LOST = "its supervisor died, and nobody saw how it ended"


def recover(engine: Engine) -> None:
    """Look after every job that nobody looks after.

    Raises:
        NodeError: The ledger cannot be used, or no process can be started.
    """
    with engine.ledger.view() as view:
        granted, queues = view.holding(), view.queues()
    for entry in granted:
        if _is_supervised(entry):
            continue
        if _is_gone(engine, entry):
            _finish(engine, entry.job.id)
        elif not _is_expected(entry) and _take_over(engine, entry):
            engine.respawn(entry.job.id)
    _sweep(engine, {entry.job.id for entry in granted})
    for model in queues:
        engine.keepers.ensure(model)
    if engine.mps is not None:
        engine.mps.sweep(engine.gpus.gpus())


def _sweep(engine: Engine, granted_ids: Collection[str]) -> None:
    """Remove the sockets and pipes of jobs that ended whose supervisors were killed between their last two acts."""
    for live in (engine.settings.runtime_directory / "jobs").glob("*"):
        if live.name not in granted_ids and not send_datagram(engine.places(live.name).wake_socket, b""):
            with engine.ledger.view() as view:  # One may have been granted since.
                is_held = any(entry.job.id == live.name for entry in view.holding())
            if not is_held:
                engine.places(live.name).remove_live()


def _is_supervised(entry: Entry) -> bool:
    return entry.supervisor is not None and is_alive(entry.supervisor)


def _is_expected(entry: Entry) -> bool:
    """Whether somebody is on the way to it and has not spoken yet."""
    if entry.supervisor is not None or entry.job.lease is None:
        return False
    if entry.spawned_at_seconds is None:
        return abs(time.time() - entry.job.lease.granted_at_seconds) < GRANT_PATIENCE_SECONDS
    return abs(time.time() - entry.spawned_at_seconds) < SPAWN_PATIENCE_SECONDS


def _is_gone(engine: Engine, entry: Entry) -> bool:
    """Whether nothing is left of the job that another supervisor could look after."""
    holder, lease = entry.job.holder, entry.job.lease
    if isinstance(holder, ClaimHolder) and lease is not None:
        is_over = entry.stop_grace_seconds is not None or not Path(holder.slice_directory).exists()
        return is_over and not engine.enforcer.is_held(lease)
    if entry.job.gpu_model != engine.settings.gpu_model or lease is None or not isinstance(holder, ProcessHolder):
        return False
    return not is_alive(holder) and not engine.enforcer.is_held(lease)


def _finish(engine: Engine, job_id: str) -> None:
    """Write the end of a job of which nothing is left, unless somebody looks after it by now: its files are theirs."""
    with engine.deciding() as decision:
        entry = decision.entry(job_id)
        if not entry.is_live or _is_supervised(entry):
            return
        if entry.job.lease is not None:
            engine.enforcer.release(entry.job.lease)
        now_seconds = time.time()
        job = entry.job if entry.job.state.is_final else mark_lost(entry.job, now_seconds)
        decision.put(replace(entry, job=job, supervisor=None, lease_released_at_seconds=now_seconds))
    leave_mps(engine.mps, entry.job.lease)
    engine.places(job_id).remove_live()


def mark_lost(job: Job, now_seconds: float) -> Job:
    """Return a job whose end nobody saw."""
    return replace(job, state=JobState.FAILED, error=LOST, finished_at_seconds=now_seconds, exit_code=None)


def _take_over(engine: Engine, seen: Entry) -> bool:
    """Only one of those who noticed starts another supervisor."""
    with engine.ledger.decision() as decision:
        entry = decision.entry(seen.job.id)
        if (entry.supervisor, entry.spawned_at_seconds) != (seen.supervisor, seen.spawned_at_seconds):
            return False
        decision.put(replace(entry, supervisor=None, spawned_at_seconds=time.time()))
    return True
