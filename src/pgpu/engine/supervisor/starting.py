"""Start of a granted job, exactly once, and adoption of one that runs already.

The job's holder (its process or container) is in the ledger before the job's first instruction. After a crash the next agent
finds either no holder, so the job never ran and is started, or a holder, which it adopts. If the holder is gone, the record of
its monitor decides: without the launcher's mark the command never ran, and the job is queued again at its place; with the mark
and without an end, or with a record of an earlier boot and without an end, the job fails. It is never run twice.
"""

import contextlib
import time
from collections.abc import Callable

from pgpu.engine.admission.auto_sharing import keep_declined
from pgpu.engine.engine import Engine
from pgpu.engine.leases.eviction import PlaceRefusedError
from pgpu.engine.leases.lease_resize import compute_words, concerned
from pgpu.engine.leases.recovery import is_supervised
from pgpu.engine.streams.carrier import Carrier
from pgpu.engine.streams.no_streams import NoStreams
from pgpu.errors import (
    CancelledError,
    CommandNotExecutableError,
    CommandNotFoundError,
    EnforcementError,
    LedgerError,
    NodeError,
    PgpuBug,
    PgpuError,
    RequestError,
)
from pgpu.host.process_identity import myself
from pgpu.host.stderr_log import say
from pgpu.host.thread_turns import pause
from pgpu.ledger import Entry
from pgpu.model import (
    Delivery,
    Gpu,
    Holder,
    Job,
    JobState,
    Lease,
    ProcessHolder,
    SharingMode,
    SharingWish,
)
from pgpu.runtimes import RunningJob
from pgpu.runtimes.job_monitor import OfferedMonitor
from pgpu.structs import replace

HEADROOM_WAIT_SECONDS = 600.0
"""Where headroom yields, an allocation within a slice of a declared size waits at least so long for a device that is out of
memory: another program took what headroom would have kept, and the job has it once that program or another job ends."""

ATTEMPT_VARIABLE = "PGPU_ATTEMPT"
"""In a job's environment: counts from 1; higher where pgpu queued it again."""

EXIT_CODES = {CommandNotExecutableError: 126, CommandNotFoundError: 127}
"""Exit codes for commands that could not be executed; the same as Docker's."""

TakeMonitor = Callable[[str, ProcessHolder], OfferedMonitor | None]
"""Returns the monitor that a process offers for its job, by the job's id; None where there is none."""


def claim(engine: Engine, job_id: str) -> Entry | None:
    """Register this process as a job's supervisor; None if another living one is, or if the job's lease was released.

    Raises:
        LedgerError: The ledger cannot be used.
    """
    engine.ledger.refuse_to_make()
    entry = engine.ledger.entry(job_id)
    if entry.supervisor == myself():  # written down with the grant
        return entry if entry.is_live else None
    with engine.ledger.decision() as decision:
        entry = decision.entry(job_id)
        if not entry.is_live or (entry.supervisor != myself() and is_supervised(entry)):
            return None
        entry = replace(entry, supervisor=myself())
        decision.put(entry)
    return entry


def start(
    engine: Engine,
    job: Job,
    carrier: Carrier | NoStreams,
    take_monitor: TakeMonitor = lambda _job_id, _starter: None,
) -> RunningJob:
    """Make the slice, start the job in it and write its state `running`.

    Raises:
        CancelledError: The job was stopped meanwhile; nothing runs.
        NotReadyError: The GPU's MPS daemon restarts or drains, for example; nothing runs, and a later attempt may succeed.
        PlaceRefusedError: A job with `--sharing auto` cannot be a client of MPS; it is queued again with time slices.
        PgpuError: The job cannot be started; nothing runs.
    """
    job = replace(job, spec=engine.ledger.spec(job.id))
    if job.spec.is_abridged:
        raise PgpuBug(f"the command of job {job.id} is not in the ledger as a whole")
    runtime = engine.runtime(job.spec.runtime)
    gpus = _hold_gpus(engine, _lease(job))
    enforcer = engine.enforcer.for_gpus(gpus).name
    is_advisory = bool(gpus) and runtime.is_advisory(job.spec)
    bound = replace(job, lease=replace(_lease(job), enforcer=enforcer, is_advisory=is_advisory))
    if engine.keeps_memory_of(bound):
        wait_seconds = max(job.spec.wait_for_memory_seconds, HEADROOM_WAIT_SECONDS)
        bound = replace(bound, spec=replace(job.spec, wait_for_memory_seconds=wait_seconds))
    environment = (*bound.spec.environment, *job.place.variables, (ATTEMPT_VARIABLE, str(job.attempt)))
    bound = replace(bound, spec=replace(bound.spec, environment=environment))
    delivery = _shared(engine, bound, gpus, engine.enforcer.prepare(bound, gpus))
    with engine.ledger.view() as view:
        paced, beside = view.paced(), concerned(bound, view)
    engine.enforcer.set_compute(_lease(bound), compute_words(bound, paced, by_user=engine.settings.divides_users))
    submitter = engine.submitter_of(job.id)
    starter = None if submitter is None else submitter.starter
    stdio = carrier.open(None if starter is None else take_monitor(job.id, starter))
    # A process runs as soon as it is announced, and is waited for in few places, which pause by themselves. A container
    # engine takes its time before and after.
    is_process = runtime.name == "process"
    announced = bound

    def announce(holder: Holder) -> None:
        nonlocal announced
        announced = _announce(engine, bound, holder, is_running=is_process)

    with contextlib.nullcontext() if is_process else pause():
        running = runtime.start(bound, delivery, stdio, announce, submitter)
    carrier.started()
    if not is_process:
        announced = _mark_running(engine, announced)
    _bind_resize(engine, bound, announced)
    # What changed before the announcement (a share, a suspension) is in the ledger; its message met nothing that applies it.
    has_changed = (
        announced.suspended_by is not None
        or announced.request != bound.request
        or _lease(announced).slices != _lease(bound).slices
    )
    engine.wake([*beside, job.id] if has_changed else beside)
    return running


def adopt(engine: Engine, job: Job, carrier: Carrier | NoStreams) -> RunningJob | None:
    """Attach to a job that runs already; None if its holder is gone."""
    running = engine.runtime(job.spec.runtime).adopt(job, carrier.reopen())
    carrier.started()
    if running is not None:
        _mark_running(engine, job)
        engine.wake([job.id])  # what changed while no agent supervised it is in the ledger
    return running


def _lease(job: Job) -> Lease:
    if job.lease is None:
        raise PgpuBug(f"job {job.id} has no lease, and cannot be started")
    return job.lease


def _shared(engine: Engine, job: Job, gpus: list[Gpu], delivery: Delivery) -> Delivery:
    """Return the delivery of a job, under MPS as a client of its GPU's daemon."""
    if _lease(job).sharing is not SharingMode.MPS:
        return delivery
    if engine.mps is None:
        raise NodeError("nvidia-cuda-mps-control is no longer on this machine", hint="install it with the driver")
    try:
        return engine.mps.join(job, gpus, delivery, engine.enforcer.for_gpus(gpus), engine.account(job.id))
    except (RequestError, EnforcementError) as exc:
        if job.request.sharing is not SharingWish.AUTO:
            raise
        _decline_mps(engine, job, exc)
        raise PlaceRefusedError(f"{exc}; it gets time slices instead") from exc


def _decline_mps(engine: Engine, job: Job, why: PgpuError) -> None:
    """Change a job with `--sharing auto` to time slices for its next grant.

    If the job itself cannot be a client (and it was not the daemon that failed), its program gets no MPS for a day.
    """
    engine.ledger.events.note(
        "mps-declined", f"time slices instead of MPS: {why}", job_id=job.id, owner_uid=job.owner_uid
    )
    engine.enforcer.release(_lease(job))
    if isinstance(why, RequestError) and job.signature:
        keep_declined(engine.ledger.facts, job.signature, job.owner_uid)
    with engine.ledger.decision() as decision:
        entry = decision.entry(job.id)
        request = replace(entry.job.request, sharing=SharingWish.TIME_SLICE)
        decision.put(replace(entry, job=replace(entry.job, request=request)))


def _hold_gpus(engine: Engine, lease: Lease) -> list[Gpu]:
    """Return the GPUs of a lease, and hold the machine-wide locks of all of the engine's GPUs."""
    if not lease.slices:
        return []
    gpus = engine.recent_gpus()
    engine.gpu_locks.hold(gpus)
    known = {gpu.uuid: gpu for gpu in gpus}
    try:
        return [known[part.gpu_uuid] for part in lease.slices]
    except KeyError as exc:
        raise NodeError(f"GPU {exc.args[0]} was granted and is no longer on this machine") from exc


def _announce(engine: Engine, job: Job, holder: Holder, *, is_running: bool) -> Job:
    with engine.ledger.decision() as decision:
        entry = decision.entry(job.id)
        if entry.supervisor != myself():
            raise PgpuBug(f"another process supervises job {job.id}")
        if entry.stop_grace_seconds is not None:
            raise CancelledError(f"job {job.id} was stopped before it was started")
        # A resize may have changed the slices while the job was being started.
        lease = replace(_lease(job), slices=_lease(entry.job).slices)
        announced = replace(entry.job, holder=holder, lease=lease)
        if is_running:
            announced = _running(announced)
        decision.put(replace(entry, job=announced))
    return announced


def _mark_running(engine: Engine, job: Job) -> Job:
    try:
        with engine.ledger.decision() as decision:
            entry = decision.entry(job.id)
            running = _running(entry.job)
            decision.put(replace(entry, job=running))
    except LedgerError as exc:
        # The job runs and its holder is in the ledger, so it is not ended for this; it stays `starting` until its end.
        say(str(exc))
        return job
    return running


def _bind_resize(engine: Engine, bound: Job, running: Job) -> None:
    """Bind a resize that was accepted while the job was being started; of a running job, the resize binds by itself."""
    if running.lease is not None and running.lease.slices != _lease(bound).slices:
        engine.enforcer.resize(running.lease, running.request.memory_bytes)


def _running(job: Job) -> Job:
    started_at_seconds = job.started_at_seconds or time.time()
    return replace(job, state=JobState.RUNNING, started_at_seconds=started_at_seconds, reason=None)


def failed(exc: PgpuError, *, has_run: bool = True) -> Callable[[Job], Job]:
    """Return a function that makes a job `failed` with this error, or `cancelled` for a CancelledError.

    Args:
        exc: The error.
        has_run: False for a job whose command was never executed: it has no time of start then.
    """
    text = str(exc) if exc.hint is None else f"{exc} ({exc.hint})"
    code = next((code for kind, code in EXIT_CODES.items() if isinstance(exc, kind)), None)

    def final(job: Job) -> Job:
        job = replace(job, finished_at_seconds=time.time(), reason=None)
        job = job if has_run else replace(job, started_at_seconds=None)
        if isinstance(exc, CancelledError):
            return replace(job, state=JobState.CANCELLED)
        return replace(job, state=JobState.FAILED, error=text, exit_code=code)

    return final
