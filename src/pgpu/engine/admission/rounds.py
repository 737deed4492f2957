"""Rounds of admission: read the situation, decide it with `pgpu.scheduling`, write the outcome.

Reading and deciding need no lock. Only a round that changes something takes the ledger's write lock, and decides again if
another process has written since. Starting the granted jobs is left to the caller: a transaction may still fail.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property

from pgpu.engine.admission.auto_sharing import AutoSharing
from pgpu.engine.admission.dependencies import BEGIN, DEPENDENCY, cancel_entry, has_unsettled_jobs, settle
from pgpu.engine.admission.idle_leases import mark_evicted, mark_restarting, regrant
from pgpu.engine.admission.queue_order import PlaceRule, place_rules, user_shares
from pgpu.engine.admission.queue_plan import QueuePlanner, SlowdownCurves, read_plan
from pgpu.engine.admission.situation import Situation, SituationReader
from pgpu.engine.admission.slowdown_predictor import SlowdownPredictor
from pgpu.engine.admission.snapshot import BLIND, Snapshot
from pgpu.engine.context import EngineContext
from pgpu.engine.history.run_history import RunHistory
from pgpu.engine.history.usage_records import UserShare
from pgpu.engine.settings import agent_paths
from pgpu.engine.watch.gpu_time import gpu_demand, read_samples
from pgpu.ledger import Decision, Entry, LedgerView
from pgpu.model import Job, JobState, Lease, Objective, ProcessHolder, SharingWish
from pgpu.scheduling import Admission, Wait, expected_starts
from pgpu.scheduling.admission import machine_of
from pgpu.scheduling.capacity import with_host_part
from pgpu.scheduling.forecast import MOST_JOBS
from pgpu.structs import Struct, field, replace

NO_CHANGE = Admission((), (), ())


FITS = "fits"
"""Rule of `Forecast` of a job that starts now, beside the causes of waits and the rules of `dependencies`."""

DOUBTS = FAR, AFTER, KEPT, NO_END, OVERDUE, UNMEASURED = "far", "after", "held", "no end", "overdue", "unmeasured"
"""Why a start is unknown: behind the jobs that the forecast looks at; after a job whose own start is unknown; held by a user or by
what has no predicted end, such as the limit of its array; no known end makes room; a job before it is past its prediction, or has no
earlier run."""


class Forecast(Struct, frozen=True):
    """One waiting job with its outlook."""

    position: int | None
    """From 1 on, in the order of the next round; None if it waits for other jobs, its begin or a release."""

    job: Job
    """With its present reason, and its expected start where that rests on earlier runs alone."""

    rule: str
    """The rule that decides: a `Cause`, a rule of `dependencies`, or `FITS`."""

    place: PlaceRule = PlaceRule("")
    """Why it stands behind the job before it; the rule is empty for one that is held or needs no GPU."""

    doubt: str = ""
    """Why its expected start is unknown, one of `DOUBTS`; empty where it rests on earlier runs alone."""

    doubted: Job | None = None
    """The job whose end before it is assumed, where that is why."""

    not_before_seconds: float | None = None
    by_seconds: float | None = None
    """Bounds of an unknown start, as of `ExpectedStart`."""


class RoundOutcome(Struct, frozen=True, dict=True):
    """The outcome of one round.

    Reasons of waiting jobs are computed when one is read: ordering ten thousand jobs takes long, and most reasons are never
    read.
    """

    situation: Situation = field(default_factory=lambda: Situation((), (), (), {}, {}, {}))
    admission: Admission | None = None
    """None where no job starts and no wait ends."""

    granted: tuple[str, ...] = ()
    """Ids of the jobs that the agent must start."""

    @property
    def is_change(self) -> bool:
        """Whether there is anything to write."""
        if self.admission is None:
            return False
        before, after = self.situation.precedence, self.admission
        # From its first to its last waiting job a user competes with others, whether or not jobs start meanwhile.
        is_same = not self.situation.rooms or before.time.contenders.keys() == after.time.contenders.keys()
        return bool(self._leaving_ids) or after.reservation != before.reservation or not is_same

    @property
    def holds_back(self) -> bool:
        """Whether a job that fits waits for a less busy GPU, and may start as soon as the jobs there are measured."""
        return self.admission is not None and self.admission.holds_back

    def may_suspend_more(self, host_memory: Callable[[], int]) -> bool:
        """Whether another job could leave its GPU for a waiting one by now, since host memory has become free.

        Args:
            host_memory: Returns what is free of it, in bytes; called only where some is awaited.
        """
        awaited_bytes = self.situation.awaited_host_bytes
        return awaited_bytes is not None and host_memory() >= awaited_bytes

    @property
    def moved_ids(self) -> tuple[str, ...]:
        """Ids of jobs that lose their place to a granted one or get theirs back; their threads are woken."""
        found = self.admission or NO_CHANGE
        parked = {each.job_id for each in self.situation.queue if each.gpu_uuid is not None}
        back = (grant.job_id for grant in found.grants if grant.job_id in parked)
        return (*(job_id for job_id, _by in found.suspended), *found.reclaimed, *found.elsewhere, *back)

    @property
    def capacities(self) -> Mapping[str, int]:
        """What slices may sum to on each GPU, in bytes by UUID."""
        return self.situation.capacities

    @cached_property
    def waiting_ids(self) -> frozenset[str]:
        """Ids of the jobs that still wait, for any reason."""
        queued = {candidate.job_id for candidate in self.situation.queue}
        return frozenset(queued - self._leaving_ids).union(self.situation.hindered)

    @cached_property
    def polled_ids(self) -> frozenset[str]:
        """Ids of the jobs that still wait for what only another look at the GPUs shows, or for other jobs."""
        return self.waiting_ids - self.situation.dormant.keys()

    @property
    def deadlines_seconds(self) -> Mapping[str, float]:
        """Deadlines of the jobs that still wait, in seconds since the epoch by id."""
        deadlines = self.situation.deadlines_seconds
        return {job_id: seconds for job_id, seconds in deadlines.items() if job_id not in self._leaving_ids}

    @cached_property
    def _leaving_ids(self) -> set[str]:
        if self.admission is None:
            return set()
        found = self.admission
        return {*(grant.job_id for grant in found.grants), *found.expired, *found.elsewhere}

    @cached_property
    def _waits(self) -> dict[str, Wait]:
        admission = self.admission or self.situation.admission(time.time())
        return {wait.job_id: wait for wait in admission.waits}

    def reason(self, job_id: str) -> str | None:
        """Return why a job waits; None if it does not wait in this round."""
        if job_id not in self.waiting_ids:
            return None
        hindered = self.situation.hindered.get(job_id)
        return self._waits[job_id].reason if hindered is None and job_id in self._waits else hindered


class Admissions:
    """Runs the rounds of one engine; each process has its own, on the same ledger."""

    def __init__(self, context: EngineContext, learning: RunHistory | None = None) -> None:
        """Read and run rounds.

        Args:
            context: Of the engine.
            learning: A history with caches of its own, for a thread beside that of the engine's rounds; None for the engine's.
        """
        settings = context.settings
        plan_path = agent_paths(settings, settings.gpu_model).plan
        self._context = context
        self._auto_sharing = AutoSharing(settings.has_mps)
        self._is_contended = False
        """Whether the last round was decided again under the write lock, and changed something."""

        self._planner = QueuePlanner(plan_path)
        self._curves = SlowdownCurves()
        self.reader = SituationReader(
            settings,
            context.headroom,
            learning or context.learning,
            self._auto_sharing,
            SlowdownPredictor(self._auto_sharing.readings),
            planned=lambda: read_plan(plan_path),
            can_leave=context.can_leave,
            limits_bind=context.limits_bind,
            demand=lambda job_id: gpu_demand(read_samples(context.places(job_id).time_samples)),
        )

    def step(self, gives_up: Collection[str] = (), supervisor: ProcessHolder | None = None) -> RoundOutcome:
        """Admit what fits now. While the GPUs cannot be read nothing is admitted, and all else goes on.

        Args:
            gives_up: Jobs past their deadline; cancelled if they cannot start now. The process that waits for a job
                measures this: the ledger's deadline is wall time, which may be set.
            supervisor: The agent, if it runs this round: it is written down as the supervisor of what it grants.

        Raises:
            LedgerError: The ledger cannot be used; nothing was changed.
        """
        context = self._context
        snapshot = context.snapshot_or_blind()
        outcome, is_unsettled, version = RoundOutcome(), True, None
        # While jobs end one after another, nearly every round would be decided twice: such a one is decided under the lock.
        if not self._is_contended:
            with context.ledger.view() as view:
                is_unsettled, version = has_unsettled_jobs(view, gives_up), view.version()
                outcome = self._round(view, snapshot, gives_up)
        # Computing a reading takes tenths of a second, so it is outside of every transaction.
        self._auto_sharing.readings.keep(context.ledger.facts)
        if not is_unsettled and not outcome.is_change:
            return outcome
        with context.ledger.decision() as decision:
            # The write lock is held from here on. If another process has written since the view, the round is decided again.
            is_current = not is_unsettled and decision.version() == version
            if is_current:
                outcome = commit_round(decision, outcome, context.settings.gpu_model, supervisor)
            else:
                outcome = self._settle_and_commit(decision, snapshot, gives_up, supervisor)
            self._is_contended = outcome.is_change and not is_current and not self._auto_sharing.is_choosing
        # After the commit: threads read the ledger as soon as they are woken.
        context.wake(outcome.moved_ids)
        return outcome

    def submit(
        self,
        entries: Sequence[Entry],
        add: Callable[[Decision], Sequence[Entry]],
        gives_up: Collection[str] = (),
    ) -> Sequence[Entry]:
        """Store new jobs in one transaction; a single job in front of an empty queue is granted in it, if it fits.

        Args:
            entries: The jobs.
            add: Stores them and returns them as they are stored; an error stores none.
            gives_up: Those of them that are cancelled unless they start at once.

        Returns:
            The jobs as the transaction left them.

        Raises:
            LedgerError: The ledger cannot be written; nothing was changed.
            NodeError: No agent could be started for those that wait; they are in the ledger.
        """
        context = self._context
        model = context.settings.gpu_model
        with context.ledger.view() as view:
            may_go_first = (len(entries) == 1 and view.first_waiting(model) is None) or bool(gives_up)
            holding = view.holding() if may_go_first else ()
        # Read before the transaction, which no driver call may delay, and only where the new job might start at once.
        snapshot = context.snapshot_or_blind(holding) if may_go_first else BLIND
        # Reading a profile takes tenths of a second, so it is done before the write lock is taken.
        requests = [entry.job.request for entry in entries] if may_go_first else []
        has_company = bool(holding) and any(
            request.objective is Objective.RESPONSE and request.sharing is SharingWish.MPS for request in requests
        )
        if has_company or any(request.sharing is SharingWish.AUTO for request in requests):
            calls = {(entry.job.signature, entry.job.owner_uid) for entry in (*entries, *holding)}
            self._auto_sharing.readings.prepare(context.ledger, snapshot.gpus, calls)
        moved: Sequence[str] = ()
        with context.ledger.decision() as decision:
            # Under the write lock again: another process may have stored a job since.
            is_first = decision.first_waiting(model) is None
            entries = add(decision)
            if may_go_first and (is_first or gives_up):
                moved = self._settle_and_commit(decision, snapshot, gives_up).moved_ids
                entries = decision.entries_of([entry.job.id for entry in entries])
            queues = decision.queues()
        context.wake(moved)
        context.call_agents(queues)
        return entries

    def outlook(self) -> RoundOutcome:
        """Return the outcome that a round would have now; changes nothing.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        snapshot = self._context.snapshot_or_blind()
        with self._context.ledger.view() as view:
            return self._round(view, snapshot, ())

    def read_queue(
        self, owner_uid: int | None = None, add: Callable[[Decision], object] | None = None
    ) -> list[Forecast]:
        """Return the waiting jobs in the order of the next round, and behind them those that may not start; changes nothing.

        Args:
            owner_uid: Only the jobs of this user, with their positions among all; None for all.
            add: Stores further jobs, in a copy of the ledger.

        Raises:
            NodeError: A GPU or the ledger cannot be read.
        """
        snapshot = self._context.snapshot()
        ledger, now_seconds = self._context.ledger, time.time()
        with ledger.view() if add is None else ledger.rehearsal(add) as view:
            situation = self.reader.situation(view, snapshot)
            # Of other users' jobs, which may be ten thousand, no more than admission needs is read.
            entries = self._context.queue_of(view.live(owner_uid))
            later = self.reader.later(view, situation)
        waiting = {entry.job.id: entry.job for entry in entries if entry.job.state is JobState.WAITING}
        admission = situation.admission(now_seconds)
        idle_count = len(situation.offers) - len(admission.reclaimed)
        idle = f"; {idle_count} lease{'s are' if idle_count > 1 else ' is'} idle (offered) and would not help"
        waits = {wait.job_id: wait for wait in admission.waits}
        order = [*(grant.job_id for grant in admission.grants), *waits]
        starts = expected_starts(
            situation.rooms,
            situation.queue,
            now_seconds,
            held=situation.held,
            quotas=situation.quotas,
            plan=situation.plan,
            precedence=situation.precedence,
            later=later,
            most_without_gpu=situation.most_without_gpu,
            predict=situation.predict,
        )

        far = {wait.job_id for wait in admission.waits[MOST_JOBS:]}
        joining = {candidate.job_id for candidate, awaited in later if awaited}
        begins = {job_id for job_id, rule in situation.dormant.items() if rule == BEGIN}
        measured = {each.job_id for each in situation.held if each.duration_seconds is not None}
        jobs = {entry.job.id: entry.job for entry in entries}

        places = place_rules(situation, admission, order, waiting)

        def forecast(position: int | None, job: Job, reason: str, rule: str) -> Forecast:
            place = places.get(job.id, PlaceRule(""))
            if (start := starts.get(job.id)) is None:
                kept = AFTER if job.id in joining else NO_END if job.id in begins else KEPT
                doubt = kept if position is None else FAR if job.id in far else NO_END
                return Forecast(position, replace(job, reason=reason), rule, place, doubt)
            job = replace(job, reason=reason)
            if start.assumed is None:
                job = replace(job, expected_start_seconds=start.at_seconds, expected_gpu_uuids=start.gpu_uuids)
                return Forecast(position, job, rule, place)
            doubt, doubted = OVERDUE if start.assumed in measured else UNMEASURED, jobs.get(start.assumed)
            return Forecast(position, job, rule, place, doubt, doubted, start.not_before_seconds, start.by_seconds)

        def in_line(position: int, job: Job) -> Forecast:
            if (wait := waits.get(job.id)) is None:
                return forecast(position, job, "it fits and starts now", FITS)
            return forecast(position, job, wait.reason + (idle if idle_count else ""), wait.cause.value)

        parked = {candidate.job_id for candidate in situation.queue if candidate.gpu_uuid is not None}
        positions = enumerate((job_id for job_id in order if job_id not in parked), 1)
        line = [in_line(position, waiting[job_id]) for position, job_id in positions if job_id in waiting]
        hindered = [job for job in waiting.values() if job.id in situation.hindered]
        rest = [
            forecast(None, job, situation.hindered[job.id], situation.dormant.get(job.id, DEPENDENCY))
            for job in hindered
        ]
        return [*line, *rest]

    def shares(self) -> list[UserShare]:
        """Return what each user of the queue holds, and which user is next; changes nothing.

        Raises:
            NodeError: A GPU or the ledger cannot be read.
        """
        snapshot = self._context.snapshot()
        with self._context.ledger.view() as view:
            situation = self.reader.situation(view, snapshot)
        return user_shares(situation, situation.admission(time.time()))

    def plan(self) -> None:
        """Plan the queue for the rounds to come, where `objective = makespan`; outside of any transaction, for it takes long.

        Raises:
            LedgerError: The ledger cannot be read.
        """
        context = self._context
        if context.settings.objective == "response":
            self._planner.end()
            return
        snapshot = context.snapshot_or_blind()
        with context.ledger.view() as view:
            situation = self.reader.situation(view, snapshot)
            curves = self._curves.of(view, context.settings.gpu_model, snapshot.gpus)
        self._planner.plan_if_changed(situation, curves, time.time())

    def _round(self, view: LedgerView, snapshot: Snapshot, gives_up: Collection[str]) -> RoundOutcome:
        now_seconds = time.time()
        situation = self.reader.situation(view, snapshot).with_expired_waits(gives_up, now_seconds)
        return RoundOutcome(situation, situation.decide(now_seconds))

    def _settle_and_commit(
        self,
        decision: Decision,
        snapshot: Snapshot,
        gives_up: Collection[str],
        supervisor: ProcessHolder | None = None,
    ) -> RoundOutcome:
        settle(decision, time.time(), gives_up)
        outcome = self._round(decision, snapshot, gives_up)
        return commit_round(decision, outcome, self._context.settings.gpu_model, supervisor)


def add_wait_reasons(entries: Sequence[Entry], outlook_of: Callable[[Job], RoundOutcome]) -> list[Entry]:
    """Return entries with the present reason of each waiting job; the ledger's may be outdated.

    Args:
        entries: Any, as in the ledger.
        outlook_of: Returns the outcome that a round of a job's queue would have now.

    Raises:
        PgpuError: An engine cannot be made, or its ledger not be read.
    """
    models = {entry.job.gpu_model: entry.job for entry in entries if entry.job.state is JobState.WAITING}
    outlooks = {model: outlook_of(job) for model, job in models.items()}
    found = []
    for entry in entries:
        if entry.job.state is JobState.WAITING:
            reason = outlooks[entry.job.gpu_model].reason(entry.job.id) or entry.job.reason
            entry = replace(entry, job=replace(entry.job, reason=reason))  # noqa: PLW2901 - the same entry, completed
        found.append(entry)
    return found


def commit_round(
    decision: Decision, outcome: RoundOutcome, gpu_model: str | None, supervisor: ProcessHolder | None = None
) -> RoundOutcome:
    """Write an outcome: grants, suspensions, evicted leases, expired waits; return it with the jobs to start.

    Args:
        decision: The transaction.
        outcome: Of a round in it, or of one since which nothing has changed.
        gpu_model: Of the queue; None for real GPUs.
        supervisor: Of the granted jobs; None if an agent has yet to take them.
    """
    now_seconds = time.time()
    admission = outcome.admission or NO_CHANGE
    granted_ids = [grant.job_id for grant in admission.grants]
    for grant, entry in zip(admission.grants, decision.entries_of(granted_ids), strict=True):
        lease = Lease(grant.job_id, grant.slices, now_seconds, sharing=grant.mode)
        decision.put(regrant(entry, lease) if entry.job.is_aside else _start(entry, lease, supervisor))
    for job_id, by in admission.suspended:
        # The victim keeps its lease; its thread moves it off the GPU, and the granted job waits for that.
        entry = decision.entry(job_id)
        decision.put(replace(entry, job=replace(entry.job, suspended_by=by)))
    if outcome.admission is not None:
        machine = machine_of(outcome.situation.rooms)
        decision.put_precedence(gpu_model, outcome.admission, outcome.situation.precedence.time, machine)
    for job_id in admission.reclaimed:
        decision.put(mark_evicted(decision.entry(job_id), now_seconds))
    for job_id in admission.expired:
        decision.put(cancel_entry(decision.entry(job_id), now_seconds, timed_out=True))
    for job_id in admission.elsewhere:
        decision.put(mark_restarting(decision.entry(job_id)))
    # The successors of a job that is cancelled here can never start; they are cancelled in the same transaction.
    if admission.expired:
        settle(decision, now_seconds)
    granted = decision.entries_of(granted_ids)
    unattended = (each.job.id for each in granted if each.supervisor in {None, supervisor})
    return replace(outcome, granted=tuple(unattended))


def _start(entry: Entry, lease: Lease, supervisor: ProcessHolder | None) -> Entry:
    # The request becomes what was granted: a job of unknown size was granted whatever was free.
    if entry.job.request.oversubscribes:
        parts = tuple(with_host_part(part, entry.job.request.memory_bytes) for part in lease.slices)
        lease = replace(lease, slices=parts)
    amount = lease.slices[0].memory_bytes if lease.slices else 0
    request = replace(entry.job.request, memory_bytes=amount)
    job = replace(entry.job, state=JobState.STARTING, lease=lease, reason=None, request=request)
    return replace(entry, job=job, supervisor=supervisor)
