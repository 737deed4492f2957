"""What the rooms of the engine share: the ledger, the GPUs, the enforcer, the runtimes, the settings and the files' places.

Functions of the engine take this context, or the one part of it that they use. `Engine` extends it by the decisions on
jobs; supervisors and keepers hold one as well, each process its own.
"""

import os
import subprocess
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from pgpu.enforcement import Enforcer
from pgpu.enforcement.checkpoints import Checkpoints
from pgpu.engine.admission.snapshot import BLIND, Snapshot, take_snapshot
from pgpu.engine.history.run_history import RunHistory
from pgpu.engine.keeper.calling import START, Keepers
from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.engine.leases.mps_sharing import MpsSharing
from pgpu.engine.leases.parking_state import can_leave, is_travelling
from pgpu.engine.settings import EngineSettings, JobPaths, job_paths
from pgpu.engine.submitter import account_of
from pgpu.engine.unix_sockets import send_datagram
from pgpu.errors import LedgerError, NodeError, RequestError
from pgpu.gpu import GpuSource
from pgpu.ledger import Decision, Entry, Ledger
from pgpu.model import Account, Gpu, Job, Request
from pgpu.runtimes import Runtime
from pgpu.scheduling import Headroom, check_can_ever_fit, usable
from pgpu.scheduling.capacity import check_can_page, check_can_preempt, taken_of_device


class EngineContext:
    """The parts that one engine is made of, and what every change to its jobs has in common."""

    def __init__(  # noqa: PLR0917 - the parts that app joins
        self,
        settings: EngineSettings,
        ledger: Ledger,
        gpus: GpuSource,
        enforcer: Enforcer,
        runtimes: Mapping[str, Runtime],
        supervisor_command: Sequence[str],
        keeper_command: Sequence[str],
    ) -> None:
        self.settings = settings
        self.ledger = ledger
        self.gpus = gpus
        self.enforcer = enforcer
        self.headroom = Headroom(settings.headroom_least_bytes, settings.headroom_fraction)
        self.learning = RunHistory(settings.gpu_model, self.headroom)
        self.keepers = Keepers(settings, keeper_command)
        self.mps: MpsSharing | None = None
        """MPS daemons; set by `app` where `nvidia-cuda-mps-control` is installed."""

        self.checkpoints: Checkpoints | None = None
        """Of the driver; set by `app` where jobs may be moved to the host."""

        self.starter: Callable[[str], bool] = self._start_by_keeper
        """Starts a job's supervisor out of a zygote, or returns False; a keeper replaces it by a direct call."""

        self._runtimes = runtimes
        self._supervisor_command = tuple(supervisor_command)
        self._locks = GpuLocks(ledger.path)

    def places(self, job_id: str) -> JobPaths:
        """Return the paths of a job's files."""
        return job_paths(self.settings, job_id)

    def runtime(self, name: str) -> Runtime:
        """Return the runtime of this name.

        Raises:
            RequestError: This installation has none.
        """
        try:
            return self._runtimes[name]
        except KeyError:
            raise RequestError(f"there is no runtime {name!r} here") from None

    def queue_of(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the entries of jobs that use this engine's GPUs; one ledger may hold queues of several models."""
        return [entry for entry in entries if entry.job.gpu_model == self.settings.gpu_model]

    # GPUs

    def hold_gpus(self) -> None:
        """Hold the machine-wide locks of this engine's GPUs until this process ends.

        Raises:
            NodeError: Another ledger uses them.
        """
        self.hold(self.gpus.gpus())

    def hold(self, gpus: Sequence[Gpu]) -> None:
        """Hold the machine-wide locks of these GPUs; see `hold_gpus`."""
        self._locks.hold(gpus)

    def snapshot(self) -> Snapshot:
        """Read this engine's GPUs and its jobs' meters.

        Raises:
            NodeError: A GPU cannot be read.
        """
        # The view is closed before NVML is called, which takes milliseconds.
        with self.ledger.view() as view:
            holding = self.queue_of(view.holding())
        leaving = [entry.job for entry in holding if entry.job.suspended_by is not None or entry.job.can_park]
        # The meter of a job still counts memory that was moved to the host; the driver does not count it any more.
        away = [job.id for job in leaving if is_travelling(self.places(job.id).parking)]
        return take_snapshot(self.gpus, self.enforcer, holding, away)

    def snapshot_or_blind(self) -> Snapshot:
        """Return `snapshot`, or one without GPUs while they cannot be read: nothing is admitted then.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        try:
            return self.snapshot()
        except LedgerError:
            raise
        except NodeError:
            return BLIND

    def capacities(self) -> Mapping[str, int]:
        """Return what slices may sum to on each GPU now, in bytes by UUID; empty while the GPUs cannot be read."""
        return {room.gpu.uuid: room.capacity_bytes for room in self.snapshot_or_blind().rooms((), self.headroom)}

    def check_amount(self, gpus: Sequence[Gpu], request: Request) -> None:
        """Refuse more than these GPUs have, and slices too small for a program on as many GPUs as the request needs.

        Raises:
            RequestError: The amount is wrong.
        """
        check_can_ever_fit(gpus, request, self.headroom)
        check_can_page(gpus, request, self.settings.oversubscription)
        check_can_preempt(request)
        least = taken_of_device(request, self.settings.oversubscription)
        refusals: list[RequestError] = []
        candidates = [gpu for gpu in gpus if usable(gpu, request.gpu_count)]
        for gpu in candidates:
            try:
                self.enforcer.check_slice(least.memory_bytes, gpu)
            except RequestError as exc:
                refusals.append(exc)
        # `check_can_ever_fit` has found enough usable GPUs, so a shortage means that at least one refused.
        if len(candidates) - len(refusals) < request.gpu_count:
            raise refusals[0]

    def can_leave(self, job: Job) -> bool:
        """Whether all that a job holds of its GPU can be moved to the host while it is suspended; see `parking_state`."""
        return can_leave(job, self.checkpoints, self.places(job.id).parking)

    # Changes of the ledger, and the processes that follow them

    @contextmanager
    def deciding(self) -> Iterator[Decision]:
        """Make changes in one transaction, then wake the keeper of each queue in which jobs wait.

        Raises:
            LedgerError: The ledger cannot be written; nothing was changed.
        """
        with self.ledger.decision() as decision:
            yield decision
            queues = decision.queues()
        # Keepers are woken after the commit: they read the ledger at once, and would miss the change before it.
        with suppress(NodeError):  # the next command or server tick starts the missing keeper
            self.call_keepers(queues)

    def call_keepers(self, queues: Collection[str | None]) -> None:
        """Wake the keepers of these queues, started where there is none, and this engine's own if it has one.

        Raises:
            NodeError: A keeper of a queue with waiting jobs could not be started.
        """
        for model in {*queues, self.settings.gpu_model}:
            self.keepers.call(model, must_exist=model in queues)

    def wake(self, job_ids: Sequence[str], message: bytes = b"") -> None:
        """Send a datagram to jobs' supervisors: read the ledger again, or a control message; never blocks."""
        for job_id in job_ids:
            # A wake-up carries no state: that is in the ledger. Signals and window sizes are in the message alone.
            send_datagram(self.places(job_id).wake_socket, message)

    def account(self, job_id: str) -> Account | None:
        """Return the account of a job that runs as another user than this process; None for all other jobs.

        The supervisor of such a job stays this user's and inherits nothing of the account: an environment can make a
        program run anything.
        """
        return account_of(self.ledger.inherited(job_id), self.ledger.environment(job_id))

    def respawn(self, job_id: str) -> None:
        """Start a supervisor for a job that has none: forked by the keeper's zygote where there is one, else as a new process.

        Raises:
            NodeError: The process cannot be started.
        """
        if self.starter(job_id):
            return
        # The environment of the submitting process was kept in the ledger, since a supervisor can be started by any
        # process.
        submitted = {} if self.account(job_id) else dict(self.ledger.environment(job_id))
        spawn_supervisor((*self._supervisor_command, job_id), self.places(job_id), submitted or dict(os.environ))

    def _start_by_keeper(self, job_id: str) -> bool:
        return self.keepers.tell(self.settings.gpu_model, b"%s %s" % (START, job_id.encode()))


def spawn_supervisor(command: Sequence[str], places: JobPaths, environment: Mapping[str, str]) -> None:
    """Start a supervisor; its standard error is the job's `supervisor.log`.

    Args:
        command: argv, the job's id included.
        places: Of the job's files; made if they are missing.
        environment: Of the process that submitted the job.

    Raises:
        NodeError: The process cannot be started.
    """
    places.make()
    try:
        with places.supervisor_log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
    except OSError as exc:
        raise NodeError(f"no supervisor can be started: {exc}") from exc
    # The supervisor outlives this process: a session of its own, no inherited descriptor. The thread reaps it if it ends
    # first, as a daemon so that it doesn't delay this process's exit.
    threading.Thread(target=process.wait, daemon=True).start()


# Control messages to a supervisor, on the socket that also wakes it. It keeps a signal until the job runs.

SIGNAL_PREFIX = b"signal"
"""First word of a message with a signal for the job's main process: `signal 10`."""

WINDOW_PREFIX = b"window"
"""First word of a message with the size of a client's terminal: `window 80 24`."""


def send_signal(context: EngineContext, job_id: str, number: int) -> None:
    """Send a signal to a job's main process through its supervisor."""
    context.wake([job_id], b"%s %d" % (SIGNAL_PREFIX, number))


def send_window(context: EngineContext, job_id: str, columns: int, rows: int) -> None:
    """Send a job's supervisor the size of a client's terminal, in characters."""
    context.wake([job_id], b"%s %d %d" % (WINDOW_PREFIX, columns, rows))
