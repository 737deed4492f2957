"""Attends one container of `docker run --runtime=pgpu`, in threads of the queue's agent.

If the engine was starting when it created the container, the engine is first asked for the image. Then the request is submitted
in the container's name, the reason of the wait is written to the container's log, the request is withdrawn if the container
ends, and the job is supervised once the memory is granted. Errors go to the container's log as well: its user reads them there.
Another agent goes on from the container's record and the ledger. While the container waits, with its reason in its log, or
runs, and nothing happens, it has no thread.
"""

import os
import select
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

from pgpu.app.oci.gpu_request import EngineAwayError, find_image
from pgpu.app.oci.runc_call import ContainerRefusedError, clean_environment
from pgpu.app.settings import load_machine_settings
from pgpu.enforcement.slice_files import SliceFiles
from pgpu.engine.admission.rounds import Admissions
from pgpu.engine.agent.containers import SubmissionTurn, container_home
from pgpu.engine.agent.doorstep import Doorstep
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.engine.job_submission import accept
from pgpu.engine.submitter import Submitter
from pgpu.engine.supervisor import supervision
from pgpu.errors import CancelledError, JobNotFoundError, PgpuError, RequestError, RuntimeUnavailableError
from pgpu.host.process_identity import has_ended, open_pidfd
from pgpu.host.stderr_log import say
from pgpu.ledger import Entry
from pgpu.model import DOCKER_UID, Job, JobSpec, JobState, Objective, Request, SharingWish, Submission
from pgpu.runtimes.container_record import CONTAINER_VARIABLE, Container, Gate, container_of
from pgpu.structs import replace
from pgpu.units import format_duration

POLL_SECONDS = 0.2
"""How often the state of a container that is being created is checked."""

CREATION_POLL_SECONDS = 0.005
"""The same once its memory is granted."""

REPEAT_SECONDS = 30.0
"""Least time between two reasons in a container's log."""

_END_SECONDS = 5.0
_EXIT_CODES = {JobState.FAILED: 125, JobState.CANCELLED: 130}


def attend_container(
    engine: Engine, job_id: str, turn: SubmissionTurn, make_loop: Callable[[], EventLoop]
) -> Iterator[EventLoop]:
    """Attend one container to its end, and yield a loop of it while nothing happens (`EventLoop.calm_until`).

    Args:
        engine: With the settings of the machine.
        job_id: The slice that was laid out for the container, and its job.
        turn: In which its request is submitted.
        make_loop: As for `supervision`.

    Raises:
        PgpuError: The container's slice is gone.
    """
    home = container_home(engine, job_id)
    if home is None:
        return
    container = container_of(home)
    with closing(Gate(container.gate)) as gate:
        try:
            entry = yield from _follow(engine, container, gate, turn, make_loop)
            if entry.is_live:
                return  # Its lease is another process's, or its release failed: the agent begins another thread.
            _end_held(entry.job, container, gate)
        except PgpuError as exc:
            _end(container, gate, str(exc) if exc.hint is None else f"{exc} ({exc.hint})", 125)
            say(f"container {container.container_id[:12]}: {exc}")
        except Exception as exc:  # A bug of pgpu must not leave the container waiting.
            _end(container, gate, f"a bug in pgpu: {exc!r}", 125)
            raise
    # Only now: until its end the container has the files mounted.
    SliceFiles(home).remove()


def _follow(
    engine: Engine, container: Container, gate: Gate, turn: SubmissionTurn, make_loop: Callable[[], EventLoop]
) -> Generator[EventLoop, None, Entry]:
    """Submit a container's request unless that was done, and supervise its job; return how the job is left."""
    job_id = container.home.name
    with turn:
        try:
            engine.ledger.entry(job_id)
        except JobNotFoundError:
            # The slice's directory has the job's id already. If the agent is killed before the submission, no job has this
            # id, and the next agent submits it.
            if container.unconfirmed:
                container = _confirm(container, gate)
            _submit(engine, container, job_id)
    while True:
        with closing(make_loop()) as loop:
            yield from _wait_for_grant(engine, container, gate, job_id, loop)
        yield from supervision(engine, job_id, make_loop=make_loop)
        entry = engine.ledger.entry(job_id)
        if entry.job.state is not JobState.WAITING:  # else it was refused the place that it was granted
            return entry


def _confirm(container: Container, gate: Gate) -> Container:
    """Wait until the engine, which was starting when it created the container, reports the image; return the full record.

    Raises:
        CancelledError: The container ended meanwhile.
        RequestError: A variable is the image's own. The engine's restart policy creates the container anew, without it.
        RuntimeUnavailableError: The engine does not know the container or its image, or the record cannot be written.
    """
    gate.write("=waits until the engine has started and reports the image")
    while container.exists():
        try:
            image = find_image(container.engine, container.container_id)
        except EngineAwayError:
            select.select([], [], [], POLL_SECONDS)
            continue
        except ContainerRefusedError as exc:
            raise RuntimeUnavailableError(str(exc)) from exc
        own = sorted(set(container.unconfirmed) & set(image.environment))
        if own:
            raise RequestError(f"{', '.join(own)} is set by the image, which requests nothing", hint="start it again")
        found = replace(container, image=image.name, image_id=image.id, name=image.container_name, unconfirmed=())
        try:
            found.save()
        except OSError as exc:
            raise RuntimeUnavailableError(f"{container.home} cannot be written: {exc.strerror}") from exc
        return found
    raise CancelledError("the container ended before the engine had started")


def _end_held(job: Job, container: Container, gate: Gate) -> None:
    """End a container that never got its memory; one that got it has ended with its job."""
    if job.wait_timed_out:
        waited = format_duration((job.finished_at_seconds or time.time()) - job.created_at_seconds)
        _end(container, gate, f"no GPU memory was free for {waited}: given up", 124)
    elif job.state in _EXIT_CODES:
        reason = job.error or "its request for GPU memory was cancelled"
        _end(container, gate, reason, _EXIT_CODES[job.state])


def _submit(engine: Engine, container: Container, job_id: str) -> None:
    """Submit the container's request; if another job has its name, the request goes without the name."""
    submitter = Submitter(DOCKER_UID, tuple(clean_environment().items()), None)
    settings = load_machine_settings(container.config, str(engine.settings.state_directory))
    timeout = container.wait_timeout_seconds if container.has_timeout else settings.wait_timeout
    request = Request(
        memory_bytes=container.memory_bytes,
        gpu_count=container.gpu_count,
        compute_share=container.compute_share,
        is_strict=container.is_strict,
        sharing=SharingWish(container.sharing),
        objective=Objective.SOONEST,
    )
    # Docker's names are unique in one engine, those of live jobs in the ledger.
    for name in dict.fromkeys((container.name or None, None)):
        spec = JobSpec(
            command=container.command,
            runtime="oci",
            image=container.image or container.container_id[:12],
            environment=((CONTAINER_VARIABLE, str(container.home)),),
            user=container.user,
            name=name,
            remove=False,
        )
        try:
            accept(
                engine,
                lambda: Admissions(engine),  # the engine's own is the agent's main thread's
                [Submission(spec, request, wait_timeout_seconds=timeout)],
                submitter,
                lambda: job_id,
            )
        except RequestError:
            if name is None:
                raise
        else:
            return


def _wait_for_grant(
    engine: Engine, container: Container, gate: Gate, job_id: str, loop: EventLoop
) -> Iterator[EventLoop]:
    """Wait until the memory is granted; a container that ends during the wait withdraws its request."""
    with (
        closing(_GrantWait(container, gate, job_id)) as wait,
        closing(Doorstep(engine, job_id, engine.settings.gpu_model)) as doorstep,
    ):
        while engine.ledger.waits(job_id):
            if wait.is_gone():
                engine.ask_to_stop(job_id, 0.0)
                return
            # The agent's message, or the end of the container's first process, interrupts the rest.
            doorstep.wake_descriptor = wait.first_process_descriptor
            wait.report(doorstep.reason)
            # Until the first process is known, its end has no descriptor and must be polled.
            if wait.first_process_descriptor is not None and wait.reported and doorstep.is_connected:
                yield from _rest(loop, doorstep.descriptors)
                doorstep.rest(0.0)
            else:
                doorstep.rest(POLL_SECONDS)
    if engine.ledger.job(job_id).holder is not None:
        return  # Another agent started it.
    while container.is_being_created:  # Granted at once: the engine is still creating the container.
        select.select([], [], [], CREATION_POLL_SECONDS)


def _rest(loop: EventLoop, descriptors: Sequence[int]) -> Iterator[EventLoop]:
    """Wait until one is readable, for `REPEAT_SECONDS` at most."""
    woken: list[int] = []
    for each in descriptors:
        loop.watch(each, READABLE, woken.append)
    timer = loop.call_later(REPEAT_SECONDS, lambda: woken.append(0))
    yield from loop.calm_until(lambda: bool(woken))
    timer.cancel()
    for each in descriptors:
        loop.forget(each)


class _GrantWait:
    """State of the wait for a grant: the container's first process, and the last reason in its log."""

    def __init__(self, container: Container, gate: Gate, job_id: str) -> None:
        self._container = container
        self._gate = gate
        self._id = job_id
        self.reported = ""
        """The last reason."""

        self._next_report_seconds = 0.0
        self.first_process_descriptor: int | None = None
        """A pidfd, once there is a first process."""

    def is_gone(self) -> bool:
        """Whether the container has ended."""
        # A pidfd becomes readable when its process ends: pidfd_open(2). The PID cannot be reused meanwhile.
        if self.first_process_descriptor is not None:
            return has_ended(self.first_process_descriptor)
        # `runc create` writes the PID file at its end; before, there is no first process to find.
        if self._container.is_being_created:
            return False
        holder = self._container.first_process()
        self.first_process_descriptor = open_pidfd(holder) if holder is not None else None
        return self.first_process_descriptor is None

    def close(self) -> None:
        """Close the pidfd."""
        if self.first_process_descriptor is not None:
            os.close(self.first_process_descriptor)

    def report(self, reason: str) -> None:
        """Write a new reason to the container's log, at most one in `REPEAT_SECONDS`."""
        now_seconds = time.monotonic()
        if reason in {"", self.reported} or now_seconds < self._next_report_seconds:
            return
        self.reported, self._next_report_seconds = reason, now_seconds + REPEAT_SECONDS
        self._gate.write(f"=job {self._id} {reason if reason.startswith('waits') else f'waits: {reason}'}")


def _end(container: Container, gate: Gate, reason: str, code: int) -> None:
    """Make the container write the reason and exit with the code; wait until it did, or for a few seconds."""
    # The hold prints the reason: only it has the container's streams.
    gate.write(f"={reason}", f"-{code}")
    deadline_seconds = time.monotonic() + _END_SECONDS
    while container.is_being_created and time.monotonic() < deadline_seconds:
        select.select([], [], [], POLL_SECONDS)
    # A FIFO loses its content when its last descriptor is closed: the gate stays open here until the hold has read it.
    holder = container.first_process()
    descriptor = open_pidfd(holder) if holder is not None else None
    if descriptor is not None:
        with os.fdopen(descriptor):
            has_ended(descriptor, _END_SECONDS)
