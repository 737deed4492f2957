"""The engine: every change of the ledger that is a decision, and who must hear of it.

Each public method is one decision in one transaction, made by whichever process comes by. What needs a process of its
own to sit beside a job is the supervisor's.
"""

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from pgpu.enforcement import Enforcer
from pgpu.enforcement.checkpoints import Checkpoints
from pgpu.engine.admission.auto_sharing import AutoSharing
from pgpu.engine.admission.commit import commit_round
from pgpu.engine.admission.expiry import cancel_entry, has_to_settle, settle
from pgpu.engine.admission.queue_plan import QueuePlanner, Stretches, read_plan
from pgpu.engine.admission.round_outcome import RoundOutcome
from pgpu.engine.admission.rounds import RoundReader
from pgpu.engine.admission.snapshot import BLIND, Snapshot, take_snapshot
from pgpu.engine.history.run_history import RunHistory
from pgpu.engine.keeper.calling import START, Keepers
from pgpu.engine.leases.compute_words import neighbours
from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.engine.leases.mps_sharing import MpsSharing, leave_mps, refuse_what_cannot_join
from pgpu.engine.parking.movability import can_leave
from pgpu.engine.parking.parking_state import is_travelling
from pgpu.engine.process.paths import JobPaths, job_paths, keeper_paths
from pgpu.engine.process.spawn import spawn_supervisor
from pgpu.engine.process.unix_sockets import send_datagram
from pgpu.engine.settings import EngineSettings
from pgpu.engine.submission.inheritance import account_of
from pgpu.engine.submission.job_submission import accept, new_job_id
from pgpu.engine.submission.submitter import Submitter
from pgpu.engine.submission.unsupported import refuse_unsupported
from pgpu.errors import LedgerError, NodeError, RequestError
from pgpu.gpu import GpuSource
from pgpu.ledger import Call, Decision, Entry, Ledger, View
from pgpu.model import (
    Account,
    Gpu,
    Job,
    JobSpec,
    JobState,
    Request,
    Submission,
)
from pgpu.runtimes import Runtime
from pgpu.scheduling import Headroom, check_can_ever_fit, usable
from pgpu.scheduling.capacity import check_can_page, check_can_preempt, taken_of_device


class Engine:
    """Grants one kind of GPUs to the jobs of one ledger."""

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
        self.rounds = RoundReader(settings.gpu_model, self.headroom, self.learning.durations, sized=self.learning.sized)
        self._auto = AutoSharing(settings.has_mps)
        self.rounds.shared = self._auto.shared
        self.rounds.oversubscription = settings.oversubscription
        self.rounds.jobs_without_gpu = settings.jobs_without_gpu
        """How a round is decided; `app` may give it more to decide on."""
        plan = keeper_paths(settings, settings.gpu_model).plan
        self.rounds.planned = lambda: read_plan(plan)
        self._planning = QueuePlanner(plan)
        self._stretches = Stretches()
        self._runtimes = runtimes
        self._supervisor_command = tuple(supervisor_command)
        self.keepers = Keepers(settings, keeper_command)
        self.starter: Callable[[str], bool] = self._tell_keeper_to_start
        """Starts a job's supervisor quickly, or returns False; a keeper has a way of its own."""
        self._locks = GpuLocks(ledger.path)
        self.mps: MpsSharing | None = None
        """Of GPUs whose jobs may be clients of MPS; `app` gives it where there is a control program."""
        self.checkpoints: Checkpoints | None = None
        """Of the driver; `app` gives them, where jobs may be moved to the host."""
        self.rounds.leaves = self.can_leave

    def _tell_keeper_to_start(self, job_id: str) -> bool:
        return self.keepers.tell(self.settings.gpu_model, b"%s %s" % (START, job_id.encode()))

    def places(self, job_id: str) -> JobPaths:
        """Return where a job's files lie."""
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

    def submit(
        self,
        spec: JobSpec,
        request: Request,
        *,
        wait_timeout_seconds: float | None = None,
        asker: Submitter | None = None,
        job_id: str | None = None,
    ) -> Job:
        """Accept one job durably and have it looked after; see `Client.submit`.

        Args:
            spec: What to run.
            request: What it needs.
            wait_timeout_seconds: How long it may wait.
            asker: Whose job it is; None for this process's own user.
            job_id: Twelve hexadecimal digits that no job has; None chooses some.
        """
        submission = Submission(spec, request, wait_timeout_seconds=wait_timeout_seconds)
        return self.submit_all([submission], asker, lambda: job_id or new_job_id())[0]

    def submit_all(
        self,
        submissions: Sequence[Submission],
        asker: Submitter | None = None,
        new_id: Callable[[], str] = new_job_id,
    ) -> list[Job]:
        """Accept jobs durably, all or none, and have them looked after; see `accept`."""
        jobs = accept(self, submissions, asker, new_id)
        for job in jobs:
            if job.state is JobState.STARTING:
                self._have_started(job.id)
        return jobs

    def check(self, spec: JobSpec, request: Request, account: Account | None = None) -> Sequence[Gpu]:
        """Refuse what can never run here, or not under this account, and return the GPUs if it wants any; changes nothing.

        Raises:
            RequestError: The request or the command is wrong.
            NodeError: There is no GPU, or another ledger shares them out.
        """
        gpus = () if request.is_without_gpu else self.gpus.gpus()
        if not gpus and request.gpu_count:
            raise NodeError("no GPU was found", hint='--simulate "RTX 3090" runs on a simulated one')
        refuse_unsupported(request, self.settings)
        refuse_what_cannot_join(spec, request)
        if gpus:
            self.check_amount(gpus, request)
        self.runtime(spec.runtime).check(spec, account)
        self._locks.hold(gpus)
        return gpus

    def check_amount(self, gpus: Sequence[Gpu], request: Request) -> None:
        """Refuse what is more than there is, and slices in which nothing could run on so many of these GPUs.

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
        if len(candidates) - len(refusals) < request.gpu_count:
            raise refusals[0]

    def hold_gpus(self) -> None:
        """Hold the machine-wide locks of this engine's GPUs until this process ends.

        Raises:
            NodeError: Another ledger shares them out.
        """
        self._locks.hold(self.gpus.gpus())

    def step(self, gives_up: Collection[str] = ()) -> RoundOutcome:
        """Admit what fits now. Others may write meanwhile, unless there is something to write down.

        While the GPUs cannot be read nothing is admitted, and all else goes on.

        Args:
            gives_up: Jobs whose wait has run out, cancelled if they cannot start now. Only who waits for them can tell:
                the ledger's deadline is wall time, and that may be set.

        Raises:
            LedgerError: The ledger cannot be used; nothing was changed.
        """
        snapshot = self._snapshot_or_blind()
        with self.ledger.view() as view:
            has_news, version = has_to_settle(view, gives_up), view.version()
            outcome = self._round(view, snapshot, gives_up)
        self._auto.readings.keep(self.ledger.facts)
        if not has_news and not outcome.admits_anybody and not outcome.changes_claim:
            return outcome
        with self.ledger.decision() as decision:
            if not has_news and decision.version() == version:
                outcome = commit_round(decision, outcome, self.settings.gpu_model)
            else:
                outcome = self._admit(decision, snapshot, gives_up)
        self.wake(outcome.moved_ids)
        return outcome

    @contextmanager
    def deciding(self) -> Iterator[Decision]:
        """Make changes in one transaction; then have whoever keeps a queue look at it.

        Raises:
            LedgerError: The ledger cannot be written; nothing was changed.
        """
        with self.ledger.decision() as decision:
            yield decision
            queues = decision.queues()
        with suppress(NodeError):  # Whoever comes by next starts a keeper.
            self.call_keepers(queues)

    @contextmanager
    def arriving(
        self, count: int, gives_up: Collection[str] = (), undecided: Collection[Call] = ()
    ) -> Iterator[Decision]:
        """Take new jobs in; a single one that nobody waits before is granted in the same transaction, if it fits.

        Args:
            count: How many are added.
            gives_up: Those of them that are cancelled unless they can start at once.
            undecided: The calls of those that leave their sharing mode to pgpu.

        Raises:
            LedgerError: The ledger cannot be written; nothing was changed.
            NodeError: No keeper could be started for those that wait; they are in the ledger.
        """
        model = self.settings.gpu_model
        may_go_first = (count == 1 and self.ledger.first_waiting(model) is None) or bool(gives_up)
        snapshot = self._snapshot_or_blind() if may_go_first else BLIND
        if self.settings.has_mps:
            self._auto.readings.prepare(self.ledger, snapshot.gpus, undecided)
        with self.ledger.decision() as decision:
            is_first = decision.first_waiting(model) is None
            yield decision
            is_round = may_go_first and (is_first or bool(gives_up))
            moved = self._admit(decision, snapshot, gives_up).moved_ids if is_round else ()
            queues = decision.queues()
        self.wake(moved)
        self.call_keepers(queues)

    def call_keepers(self, queues: Collection[str | None]) -> None:
        """Have whoever keeps these queues look at them, and whoever keeps this engine's.

        Raises:
            NodeError: None could be started where somebody waits.
        """
        for model in {*queues, self.settings.gpu_model}:
            self.keepers.call(model, must_exist=model in queues)

    def plan(self) -> None:
        """Plan what waits, where all of it should end soonest: for the rounds to come, and outside of any transaction.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        if self.settings.objective == "response":
            self._planning.end()
            return
        snapshot = self._snapshot_or_blind()
        with self.ledger.view() as view:
            situation = self.rounds.situation(view, snapshot)
            stretches = self._stretches.of(view, self.settings.gpu_model, snapshot.gpus)
        self._planning.look(situation, stretches, time.time())

    def outlook(self) -> RoundOutcome:
        """Say what a round would find now, and change nothing.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        snapshot = self._snapshot_or_blind()
        with self.ledger.view() as view:
            return self._round(view, snapshot, ())

    def capacities(self) -> Mapping[str, int]:
        """Return what slices may sum to on each GPU now, by UUID; none while the GPUs cannot be read."""
        snapshot = self._snapshot_or_blind()
        return {room.gpu.uuid: room.capacity_bytes for room in snapshot.rooms((), self.headroom)}

    def snapshot(self) -> Snapshot:
        """Read this engine's GPUs and its jobs' meters.

        Raises:
            NodeError: A GPU cannot be read.
        """
        with self.ledger.view() as view:
            holding = self.queue_of(view.holding())
        leaving = [entry.job for entry in holding if entry.job.suspended_by is not None or entry.job.can_park]
        away = [job.id for job in leaving if is_travelling(self.places(job.id).parking)]
        return take_snapshot(self.gpus, self.enforcer, holding, away)

    def can_leave(self, job: Job) -> bool:
        """Whether all that a job holds of its GPU can go to the host while it is suspended, as far as anybody knows."""
        return can_leave(job, self.checkpoints, self.places(job.id).parking)

    def _snapshot_or_blind(self) -> Snapshot:
        try:
            return self.snapshot()
        except LedgerError:
            raise
        except NodeError:
            return BLIND

    def queue_of(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return those of these that use this engine's GPUs."""
        return [entry for entry in entries if entry.job.gpu_model == self.settings.gpu_model]

    def wake(self, job_ids: Sequence[str], message: bytes = b"") -> None:
        """Tell supervisors to look again, or hand them a message; never waits."""
        for job_id in job_ids:
            send_datagram(self.places(job_id).wake_socket, message)

    def release(self, job_id: str) -> None:
        """Give a lease's memory back, once nothing holds it any more, and admit who fits into it."""
        entry = self.ledger.entry(job_id)
        if entry.job.lease is not None:
            self.enforcer.release(entry.job.lease)
        with self.deciding() as decision:
            decision.put(replace(decision.entry(job_id), lease_released_at_seconds=time.time(), supervisor=None))
            beside = neighbours(entry.job, decision.holding())
        self.wake(beside)
        leave_mps(self.mps, entry.job.lease)

    def ask_to_stop(self, job_id: str, grace_seconds: float) -> Job:
        """Cancel a job that waits; leave word that a running one, or what an ended one left behind, must end."""
        self.ask_all_to_stop([job_id], grace_seconds)
        return self.ledger.job(job_id)

    def ask_all_to_stop(self, job_ids: Sequence[str], grace_seconds: float) -> None:
        """Do as `ask_to_stop` for several jobs at one moment, so that none starts because another makes room."""
        with self.deciding() as decision:
            for job_id in job_ids:
                entry = decision.entry(job_id)
                if entry.job.state is JobState.WAITING:
                    decision.put(cancel_entry(entry, time.time()))
                elif entry.is_live:
                    decision.put(replace(entry, stop_grace_seconds=grace_seconds))
        self.wake(job_ids)

    def account(self, job_id: str) -> Account | None:
        """Return the account under which a job runs that is not of this process's own user.

        Its supervisor is this user's and inherits nothing of that account: an environment can make a program run
        anything.
        """
        return account_of(self.ledger.inherited(job_id), self.ledger.environment(job_id))

    def respawn(self, job_id: str) -> None:
        """Start a supervisor for a job that has none: out of the keeper's zygote, else anew.

        Raises:
            NodeError: The process cannot be started.
        """
        if self.starter(job_id):
            return
        theirs = {} if self.account(job_id) else dict(self.ledger.environment(job_id))
        environment = theirs or dict(os.environ)
        spawn_supervisor((*self._supervisor_command, job_id), self.places(job_id), environment)

    def _have_started(self, job_id: str) -> None:
        try:
            self.respawn(job_id)
        except NodeError as exc:
            with self.deciding() as decision:
                entry = decision.entry(job_id)
                failed = replace(entry.job, state=JobState.FAILED, error=str(exc), finished_at_seconds=time.time())
                decision.put(replace(entry, job=failed, lease_released_at_seconds=time.time()))
            raise

    def _round(self, view: View, snapshot: Snapshot, gives_up: Collection[str] = ()) -> RoundOutcome:
        """Say what a round would write."""
        now_seconds = time.time()
        situation = self.rounds.situation(view, snapshot).giving_up(gives_up, now_seconds)
        return RoundOutcome(situation, situation.decided(now_seconds))

    def _admit(self, decision: Decision, snapshot: Snapshot, gives_up: Collection[str] = ()) -> RoundOutcome:
        """Write what scheduling says."""
        settle(decision, time.time(), gives_up)
        return commit_round(decision, self._round(decision, snapshot, gives_up), self.settings.gpu_model)
