"""What the rooms of the engine share: the ledger, the GPUs, the enforcer, the runtimes, the settings and the files' places.

Functions of the engine take this context, or the one part of it that they use. `Engine` extends it by the decisions on
jobs; agents hold one as well.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING

from pgpu.enforcement import DRIVER, Enforcer
from pgpu.engine.admission.outsider_peaks import OutsiderPeaks
from pgpu.engine.admission.snapshot import BLIND, Snapshot, take_snapshot
from pgpu.engine.agent.agents import Agents
from pgpu.engine.history.run_history import RunHistory
from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.engine.leases.parking_state import can_leave, is_travelling
from pgpu.engine.settings import EngineSettings, JobPaths, job_paths
from pgpu.engine.submitter import account_of, own_account
from pgpu.engine.unix_sockets import send_datagram
from pgpu.errors import LedgerError, NodeError, RequestError
from pgpu.gpu import GpuSource
from pgpu.ledger import Decision, Entry, Ledger
from pgpu.ledger.change_watch import CachedRead
from pgpu.model import Account, Gpu, Job, JobSpec, Request
from pgpu.runtimes import Runtime
from pgpu.scheduling import Headroom, check_can_ever_fit, usable
from pgpu.scheduling.capacity import check_can_page, check_can_preempt, taken_of_device
from pgpu.scheduling.yielding_headroom import may_use_headroom
from pgpu.structs import replace

if TYPE_CHECKING:
    from pgpu.enforcement.checkpoints import Checkpoints
    from pgpu.engine.leases.mps_sharing import MpsSharing

RECENT_SECONDS = 1.0
"""Hundreds of jobs that start or end together read their GPUs once."""


class EngineContext:
    """The parts that one engine is made of, and what every change to its jobs has in common."""

    def __init__(  # noqa: PLR0917 - the parts that app joins
        self,
        settings: EngineSettings,
        ledger: Ledger,
        gpus: GpuSource,
        enforcer: Enforcer,
        runtimes: Mapping[str, Runtime],
        agent_command: Sequence[str],
    ) -> None:
        self.ledger = ledger
        self.gpus = gpus
        self.enforcer = enforcer
        self.apply(settings)
        self.gpu_locks = GpuLocks(ledger.path)
        self.agents = Agents(settings, agent_command)
        self.make_mps: Callable[[], MpsSharing] | None = None
        """Makes what `mps` is; set by `app` where `nvidia-cuda-mps-control` is installed."""

        self.make_checkpoints: Callable[[], Checkpoints] | None = None
        """Makes what `checkpoints` is; set by `app` where jobs may be moved to the host."""

        self.leaves_rounds = False
        """Whether a new job is left to the next round of an agent that lives. Set by `app` for commands: for one job they would
        import the scheduler and initialise NVML, which on real GPUs takes longer than all else."""

        self._runtimes = runtimes
        self._recent_gpus: tuple[Sequence[Gpu], float] = (), float("-inf")
        self.snapshot_at_seconds = float("-inf")
        """Monotonic time of the last `snapshot`."""

    def apply(self, settings: EngineSettings) -> None:
        """Use these settings for decisions that begin from now on; directories and GPU model must be those of before."""
        self.settings = settings
        self.headroom = Headroom(
            settings.headroom_least_bytes, settings.headroom_fraction, yields=settings.headroom_yields
        )
        self.learning = RunHistory(settings.gpu_model, self.headroom)
        self._outsider_peaks = OutsiderPeaks(settings.outsider_peaks, settings.stable_seconds)

    @cached_property
    def mps(self) -> "MpsSharing | None":
        """MPS daemons, made at first use: most commands have nothing to do with them."""
        return None if self.make_mps is None else self.make_mps()

    @cached_property
    def checkpoints(self) -> "Checkpoints | None":
        """Of the driver, likewise."""
        return None if self.make_checkpoints is None else self.make_checkpoints()

    def places(self, job_id: str) -> JobPaths:
        """Return the paths of a job's files."""
        return job_paths(self.settings.state_directory, self.settings.runtime_directory, job_id)

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

    @cached_property
    def paced(self) -> CachedRead[list[Entry]]:
        """Reads the jobs with a lease that have a share of compute or a priority."""

        def read() -> list[Entry]:
            with self.ledger.view() as view:
                return view.paced()

        return self.ledger.cached(read)

    # GPUs

    def recent_gpus(self) -> Sequence[Gpu]:
        """Return this engine's GPUs as they were at most `RECENT_SECONDS` ago: what they are seldom changes.

        Raises:
            NodeError: The driver does not answer.
        """
        gpus, read_at_seconds = self._recent_gpus
        if time.monotonic() - read_at_seconds > RECENT_SECONDS:
            gpus = self.gpus.gpus()
            self._recent_gpus = gpus, time.monotonic()
        return gpus

    def listed_gpus(self) -> Sequence[Gpu]:
        """Return this engine's GPUs, in NVML index order: of a command as the living agent's last round read them.

        Raises:
            NodeError: The driver does not answer.
        """
        return self.agent_gpus() or self.gpus.gpus()

    def agent_gpus(self) -> Sequence[Gpu]:
        """Return the GPUs of the agent that admits this process's jobs; empty where this process does it."""
        return self.agents.gpus(self.settings.gpu_model) if self.leaves_rounds else ()

    def hold_gpus(self) -> None:
        """Hold the machine-wide locks of this engine's GPUs until this process ends.

        Raises:
            NodeError: Another ledger uses them.
        """
        self.gpu_locks.hold(self.gpus.gpus())

    def snapshot(self, holding: Sequence[Entry] | None = None) -> Snapshot:
        """Read this engine's GPUs and its jobs' meters.

        Args:
            holding: The jobs with a lease as they were read just now; None reads them here.

        Raises:
            NodeError: A GPU cannot be read.
        """
        if holding is None:
            # The view is closed before NVML is called, which takes milliseconds.
            with self.ledger.view() as view:
                holding = view.holding()
        holding = self.queue_of(holding)
        leaving = [
            entry.job
            for entry in holding
            if entry.job.suspended_by is not None or entry.job.can_park or entry.waits_to_grow
        ]
        # The meter of a job still counts memory that was moved to the host; the driver does not count it any more.
        away = [job.id for job in leaving if is_travelling(self.places(job.id).parking)]
        found = take_snapshot(self.gpus, self.enforcer, holding, away)
        self.snapshot_at_seconds = time.monotonic()
        self._recent_gpus = found.gpus, self.snapshot_at_seconds
        if not self.headroom.yields:
            return found
        return replace(found, stable_bytes=self._outsider_peaks.with_reading(found))

    def limits_bind(self) -> bool:
        """Whether every job that starts here keeps its limit, and waits for a device that others have filled.

        Not where processes only preload the shim (`is_advisory`), nor where the driver keeps limits: what it refuses does not
        show whether the slice or the device is full, so no job waits there.
        """
        is_advisory = self.runtime("process").is_advisory(JobSpec((), "process"))
        return not is_advisory and DRIVER not in self.enforcer.name.split(", ")

    def keeps_memory_of(self, job: Job) -> bool:
        """Whether a granted job may use headroom, so that it keeps what its slice promised although an outsider fills the GPU.

        An allocation then waits for the GPU, and a job that failed although it waited is started again.
        """
        lease = job.lease
        if lease is None or not lease.slices or lease.enforcer == DRIVER:
            return False
        return self.headroom.yields and may_use_headroom(job, lease)

    def snapshot_or_blind(self, holding: Sequence[Entry] | None = None) -> Snapshot:
        """Return `snapshot`, or one without GPUs while they cannot be read: nothing is admitted then.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        try:
            return self.snapshot(holding)
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
        candidates = [gpu for gpu in gpus if usable(gpu, request)]
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
        """Make changes in one transaction, then wake the agent of each queue in which jobs wait.

        Raises:
            LedgerError: The ledger cannot be written; nothing was changed.
        """
        with self.ledger.decision() as decision:
            yield decision
            queues = decision.queues()
        # Agents are woken after the commit: they read the ledger at once, and would miss the change before it.
        with suppress(NodeError):  # the next command or server tick starts the missing agent
            self.call_agents(queues)

    def call_agents(self, queues: Collection[str | None]) -> None:
        """Wake the agents of these queues, started where there is none, and this engine's own if it has one.

        Raises:
            NodeError: An agent of a queue with waiting jobs could not be started.
        """
        for model in {*queues, self.settings.gpu_model}:
            self.agents.call(model, must_exist=model in queues)

    def wake(self, job_ids: Sequence[str], message: bytes = b"") -> None:
        """Send a datagram to the jobs' threads of the agent: read the ledger again, or a control message; never blocks."""
        for job_id in job_ids:
            # A wake-up carries no state: that is in the ledger. Signals and window sizes are in the message alone.
            send_datagram(self.places(job_id).wake_socket, message)

    def account(self, job_id: str) -> Account | None:
        """Return the account of a job that was submitted through a server; None for all other jobs."""
        environment, inherited = self.ledger.inheritance(job_id)
        return account_of(inherited, environment)

    def submitter_of(self, job_id: str) -> Account | None:
        """Return the account with environment, umask and limits that a job inherits; None if the ledger has none."""
        environment, inherited = self.ledger.inheritance(job_id)
        return account_of(inherited, environment) or own_account(inherited, environment)


# Control messages to a job's thread, on the socket that also wakes it. A signal is kept until the job runs.

SIGNAL_PREFIX = b"signal"
"""First word of a message with a signal for the job's main process: `signal 10`."""

WINDOW_PREFIX = b"window"
"""First word of a message with the size of a client's terminal: `window 80 24`."""


def send_signal(context: EngineContext, job_id: str, number: int) -> None:
    """Send a signal to a job's main process through its agent."""
    context.wake([job_id], b"%s %d" % (SIGNAL_PREFIX, number))


def send_window(context: EngineContext, job_id: str, columns: int, rows: int) -> None:
    """Send a job's thread the size of a client's terminal, in characters."""
    context.wake([job_id], b"%s %d %d" % (WINDOW_PREFIX, columns, rows))
