"""Recovery after crashes: of a job, of its agent, of both, of the machine. Needs the ledger and the records of monitors alone.

Any process may run it: it writes the end of jobs that have no process left, and calls the agent for jobs without a supervisor.
"""

import os
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from pgpu.engine.context import EngineContext
from pgpu.engine.settings import EngineSettings
from pgpu.engine.streams.stdio import has_unread_output
from pgpu.engine.unix_sockets import send_datagram
from pgpu.errors import NodeError
from pgpu.host.process_identity import is_alive
from pgpu.host.stderr_log import Complaints
from pgpu.ledger import Entry, LedgerView
from pgpu.model import ClaimHolder, Job, JobState, ProcessHolder
from pgpu.runtimes.job_monitor import has_monitor, is_guard, read_reaped, read_record
from pgpu.structs import replace

LOST = "its exit code is lost: no process recorded its end"

_complaints = Complaints()


def recover(context: EngineContext) -> bool:
    """Repair the state of every job that no living process supervises.

    Returns:
        Whether a job waits or holds a lease, so that another call may find something to repair.

    Raises:
        NodeError: The ledger cannot be used, or no process can be started.
    """
    traces = find_traces(context.settings)
    with context.ledger.view() as view:
        granted, queues, lacking = view.holding(), view.queues(), find_lacking(view, traces)
    if lacking:
        _complaints.say(
            f"the ledger {context.ledger.path} lacks jobs of which there are slices or records: {', '.join(lacking)}; was it"
            " damaged or replaced? `pgpu doctor` shows more"
        )
    for entry in granted:
        if is_supervised(entry):
            continue
        if _is_gone(context, entry):
            _finish(context, entry.job.id)
        else:
            context.agents.attend(entry.job.gpu_model, entry.job.id)
    _remove_live_files(context, {entry.job.id for entry in granted})
    for model in queues:
        context.agents.ensure(model)
    if context.settings.mps_directory.exists() and context.mps is not None and context.mps.daemons.has_any():
        context.mps.sweep(context.gpus.gpus())
    return bool(granted or queues)


def find_traces(settings: EngineSettings) -> dict[str, Path]:
    """Return the slices of jobs and the records of their monitors, by the job's id."""
    slices, spool = settings.runtime_directory / "slices", settings.spool
    found: dict[str, Path] = {}
    with suppress(FileNotFoundError, NotADirectoryError):
        found |= {name: slices / name for name in os.listdir(slices)}  # noqa: PTH208 - each command does this
    with suppress(FileNotFoundError, NotADirectoryError):
        for name in os.listdir(spool):  # noqa: PTH208 - likewise
            kind, _, rest = name.partition("-")
            if kind in {"started", "ended"}:
                found[rest.partition(".")[0]] = spool / name
    return found


def find_lacking(view: LedgerView, traces: Mapping[str, Path]) -> list[str]:
    """Return the jobs with traces that the ledger lacks: it has each job before anything of it exists.

    Args:
        view: That began after the traces were listed.
        traces: As of `find_traces`.
    """
    if not traces or not (lacking := view.missing(traces)):
        return []
    from pgpu.enforcement.self_test import id_of_test  # noqa: PLC0415 - seldom needed
    from pgpu.enforcement.slice_files import LAID_OUT  # noqa: PLC0415 - likewise

    # A test's slice has an id of its own; that of a container is made before its request is in the ledger.
    tests = {id_of_test(entry.job.id) for entry in view.holding()}
    return [job_id for job_id in lacking if job_id not in tests and not (traces[job_id] / LAID_OUT).exists()]


def is_supervised(entry: Entry) -> bool:
    """Whether the process that supervises a job lives, and still is an agent."""
    supervisor = entry.supervisor
    return supervisor is not None and is_alive(supervisor) and not is_guard(supervisor.pid)


def _is_gone(context: EngineContext, entry: Entry) -> bool:
    # Only a job without processes and held memory is ended here; any other one needs a thread of the agent.
    holder, lease = entry.job.holder, entry.job.lease
    if isinstance(holder, ClaimHolder) and lease is not None:
        is_over = entry.stop_grace_seconds is not None or not Path(holder.slice_directory).exists()
        return is_over and not context.enforcer.is_held(lease)
    if entry.job.gpu_model != context.settings.gpu_model or lease is None or not isinstance(holder, ProcessHolder):
        return False
    if is_alive(holder) or context.enforcer.is_held(lease):
        return False
    if entry.job.state.is_final:
        return True
    if _never_ran(context, entry.job.id, holder):
        return False  # a thread of the agent queues it again
    # A living monitor is about to record the end; a thread of the agent waits for that. Without one, an agent starts another
    # for the output that no monitor has read.
    places = context.places(entry.job.id)
    return not has_monitor(places.monitor_lock) and not has_unread_output(entry.job.spec, places)


def _never_ran(context: EngineContext, job_id: str, holder: ProcessHolder) -> bool:
    for path in context.places(job_id).records():
        with suppress(NodeError, FileNotFoundError):
            if read_record(path).shows_no_run_of(holder):
                return True
    return False


def _finish(context: EngineContext, job_id: str) -> None:
    # An agent may have taken the job over since the view: the entry is read again, and then that agent uses the files.
    with context.deciding() as decision:
        entry = decision.entry(job_id)
        if not entry.is_live or is_supervised(entry):
            return
        if entry.job.lease is not None:
            context.enforcer.release(entry.job.lease)
        now_seconds = time.time()
        job = entry.job if entry.job.state.is_final else _ended(context, entry.job, now_seconds)
        decision.put(replace(entry, job=job, supervisor=None, lease_released_at_seconds=now_seconds))
    from pgpu.engine.leases.mps_sharing import leave_mps  # noqa: PLC0415 - after crashes only

    leave_mps(context.mps, entry.job.lease)
    places = context.places(job_id)
    send_datagram(places.control_socket, b"finish")
    places.remove_records()
    places.remove_live()


def _ended(context: EngineContext, job: Job, now_seconds: float) -> Job:
    """Return the job as its monitor, or the guard of a killed one, has recorded its end; as failed without a record."""
    if not isinstance(job.holder, ProcessHolder):
        return mark_lost(job, now_seconds)
    places, code = context.places(job.id), None
    for path in places.records():
        try:
            record = read_record(path)
        except (NodeError, FileNotFoundError):  # another process has finished the job
            continue
        code = record.exit_code_of(job.holder)
        if code is not None:
            now_seconds = (record.ended_at_ns or 0) / 1e9
            break
        if record.has_run:
            code = read_reaped(places.spool, job.holder)
    if code is None:
        return mark_lost(job, now_seconds)
    return job.ended(code, now_seconds)


def mark_lost(job: Job, now_seconds: float) -> Job:
    """Return a job with an unknown exit code as failed."""
    return replace(job, state=JobState.FAILED, error=LOST, finished_at_seconds=now_seconds, exit_code=None)


def _remove_live_files(context: EngineContext, granted_ids: Collection[str]) -> None:
    # An agent that was killed between the release of a lease and the removal of the job's files leaves sockets and pipes.
    for live in (context.settings.runtime_directory / "jobs").glob("*"):
        if live.name not in granted_ids and not send_datagram(context.places(live.name).wake_socket, b""):
            with context.ledger.view() as view:  # it may have been granted since
                is_held = any(entry.job.id == live.name for entry in view.holding())
            if not is_held:
                context.places(live.name).remove_live()
