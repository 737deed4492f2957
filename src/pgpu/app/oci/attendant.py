"""Looks after one container that asked for GPU memory, in a process of its own that `nursery` made.

It asks for the memory in the container's name, tells the container why it waits, gives up when the container ends, and is
the job's supervisor once the memory is granted. Whatever goes wrong it says through the container, whose log its user reads.
"""

import logging
import select
import time
from contextlib import closing, suppress
from pathlib import Path

from pgpu.app.composition import make_engine, open_ledger
from pgpu.app.oci.machine import machine_settings
from pgpu.app.oci.machine_facts import clean_environment
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings
from pgpu.enforcement.slice_files import SliceFiles
from pgpu.engine.engine import Engine
from pgpu.engine.keeper.doorstep import Doorstep
from pgpu.engine.submission.job_submission import accept
from pgpu.engine.submission.submitter import Submitter
from pgpu.engine.supervisor import attend, supervise
from pgpu.errors import JobNotFoundError, PgpuError, RequestError
from pgpu.host.process_identity import open_pidfd
from pgpu.ledger import Ledger
from pgpu.model import DOCKER_UID, Job, JobSpec, JobState, Request, SharingWish, Submission
from pgpu.runtimes.oci import CONTAINER_VARIABLE, Container, container_of
from pgpu.runtimes.oci.record import RECORD, Gate
from pgpu.units import format_duration

_LOG = logging.getLogger(__name__)


LOOK_SECONDS = 0.2
"""How often a container is looked for that is still being created."""

CREATION_LOOK_SECONDS = 0.005
"""The same where its memory is granted already."""

ORPHAN_SECONDS = 60.0
"""A container that was created longer ago has a first process, or has ended."""

SAY_AGAIN_SECONDS = 30.0
"""Between two reasons in a container's log."""

_END_SECONDS = 5.0
_CODES = {JobState.FAILED: 125, JobState.CANCELLED: 130}


def attend_to(config: str, state_dir: str, job_id: str) -> None:
    """Look after one container.

    Args:
        config: The machine's settings file.
        state_dir: Where the machine's ledger lies.
        job_id: Of the slice that was laid out for the container, and of its job.

    Raises:
        PgpuError: The container's slice is gone.
    """
    settings = machine_settings(config, state_dir)
    files = SliceFiles(runtime_directory(settings.runtime_dir, settings.state_dir) / "slices" / job_id)
    container = container_of(files.home)
    with closing(Gate(container.gate)) as gate:
        try:
            _look_after(settings, container, gate, job_id)
        except PgpuError as exc:
            _end(container, gate, str(exc) if exc.hint is None else f"{exc} ({exc.hint})", 125)
            _LOG.warning("%s", exc)
        except BaseException as exc:  # a bug of ours must not leave a container waiting
            _end(container, gate, f"a bug in pgpu: {exc!r}", 125)
            raise
    files.remove()
    remove_orphans(settings, files.home.parent)


def remove_orphans(settings: Settings, slices: Path) -> None:
    """Remove the slices of containers that ended before anybody asked for their memory, such as after a crash of ours."""
    ledger = open_ledger(settings)
    for record in slices.glob(f"*/{RECORD}"):
        with suppress(PgpuError, OSError):
            is_old = time.time() - record.stat().st_mtime > ORPHAN_SECONDS
            if (
                is_old
                and container_of(record.parent).first_process() is None
                and not _is_known(ledger, record.parent.name)
            ):
                SliceFiles(record.parent).remove()


def _is_known(ledger: Ledger, job_id: str) -> bool:
    try:
        return ledger.entry(job_id).is_live
    except JobNotFoundError:
        return False


def _look_after(settings: Settings, container: Container, gate: Gate, job_id: str) -> None:
    engine = make_engine(settings)
    _ask(engine, settings, container, job_id)
    attend(engine, job_id)
    _GrantWait(engine, container, gate, job_id).until_over()
    supervise(engine, job_id)
    _tell_end(engine.ledger.job(job_id), container, gate)


def _ask(engine: Engine, settings: Settings, container: Container, job_id: str) -> None:
    """A name that another job has is only a name: the container's id stays."""
    asker = Submitter(DOCKER_UID, tuple(clean_environment().items()), None)
    timeout = container.wait_timeout_seconds if container.has_timeout else settings.wait_timeout
    for name in dict.fromkeys((container.name or None, None)):
        submission = Submission(_spec(container, name), _request(container), wait_timeout_seconds=timeout)
        try:
            accept(engine, [submission], asker, lambda: job_id)
        except RequestError:
            if name is None:
                raise
        else:
            return


def _spec(container: Container, name: str | None) -> JobSpec:
    return JobSpec(
        command=container.command,
        runtime="oci",
        image=container.image or container.container_id[:12],
        environment=((CONTAINER_VARIABLE, str(container.home)),),
        user=container.user,
        name=name,
        remove=False,
    )


def _request(container: Container) -> Request:
    return Request(
        memory_bytes=container.memory_bytes,
        gpu_count=container.gpu_count,
        compute_share=container.compute_share,
        is_strict=container.is_strict,
        sharing=SharingWish(container.sharing),
    )


class _GrantWait:
    """The time until a container's memory is granted, or nobody wants it any more."""

    def __init__(self, engine: Engine, container: Container, gate: Gate, job_id: str) -> None:
        self._engine = engine
        self._container = container
        self._gate = gate
        self._id = job_id
        self._first: int | None = None
        self._said = ""
        self._may_say_at_seconds = 0.0

    def until_over(self) -> None:
        """Wait; a container that ends while it waits takes its request back."""
        with Doorstep(self._engine, self._id, self._engine.settings.gpu_model) as doorstep:
            while self._engine.ledger.job(self._id).state is JobState.WAITING:
                if self._is_gone():
                    self._engine.ask_to_stop(self._id, 0.0)
                    return
                doorstep.wake_descriptor = self._first
                self._say(doorstep.reason)
                doorstep.rest(LOOK_SECONDS if self._first is None or not self._said else SAY_AGAIN_SECONDS)
        while self._container.is_being_created:  # Granted at once: whoever makes the container is not ready yet.
            select.select([], [], [], CREATION_LOOK_SECONDS)

    def _is_gone(self) -> bool:
        if self._first is not None:
            return bool(select.select([self._first], [], [], 0)[0])
        if self._container.is_being_created:
            return False
        holder = self._container.first_process()
        self._first = open_pidfd(holder) if holder is not None else None
        return self._first is None

    def _say(self, reason: str) -> None:
        """Once at the beginning, and then not every change."""
        now_seconds = time.monotonic()
        if reason in {"", self._said} or now_seconds < self._may_say_at_seconds:
            return
        self._said, self._may_say_at_seconds = reason, now_seconds + SAY_AGAIN_SECONDS
        self._gate.say(f"=job {self._id} {reason if reason.startswith('waits') else f'waits: {reason}'}")


def _tell_end(job: Job, container: Container, gate: Gate) -> None:
    """Tell a container that never got its memory why; one that did has ended, and hears nothing."""
    if job.wait_timed_out:
        waited = format_duration((job.finished_at_seconds or time.time()) - job.created_at_seconds)
        _end(container, gate, f"no GPU memory was free for {waited}: given up", 124)
    elif job.state in _CODES:
        _end(container, gate, job.error or "its request for GPU memory was cancelled", _CODES[job.state])


def _end(container: Container, gate: Gate, reason: str, code: int) -> None:
    gate.say(f"={reason}", f"-{code}")
    deadline_seconds = time.monotonic() + _END_SECONDS
    while container.is_being_created and time.monotonic() < deadline_seconds:
        select.select([], [], [], LOOK_SECONDS)
    with suppress(OSError):
        holder = container.first_process()
        descriptor = open_pidfd(holder) if holder is not None else None
        if descriptor is not None:
            select.select([descriptor], [], [], _END_SECONDS)
