"""Operations on jobs and GPUs for one caller, on the ledger and the engines of this process.

The local client and the routes of a server call the same `JobService`; the HTTP client calls it through `route_table`.
Methods import what they alone need: a local client is a new process for each command.
Every method blocks on the ledger or on GPUs, so a server runs it in a thread. None waits for a job to change its state.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice
from typing import TYPE_CHECKING

from pgpu.advising.advice import Advice
from pgpu.digests import sha256
from pgpu.engine.context import EngineContext, send_signal, send_window
from pgpu.engine.engine import Engine
from pgpu.engine.history.usage_records import CallHistory, Findings, Profiled, UserShare, Waste
from pgpu.engine.leases.recovery import recover
from pgpu.engine.settings import MOST_END_DELAY_SECONDS
from pgpu.engine.submitter import Submitter
from pgpu.errors import AccessError, CapacityError, JobNotFoundError, RequestError
from pgpu.ledger import Decision, Entry, GpuHistory
from pgpu.model import (
    GpuSeries,
    Job,
    JobState,
    Outsider,
    Profile,
    Resize,
    UserUsage,
)
from pgpu.services.access import Caller
from pgpu.services.engine_pool import EnginePool
from pgpu.services.job_reports import UNKNOWN_UID, anonymous_report, report_job
from pgpu.services.messages import Ask, GpuReport, JobReport, QueueReport, UsageReport
from pgpu.structs import asdict, replace

if TYPE_CHECKING:
    from pgpu.engine.admission.rounds import Forecast
    from pgpu.services.output_log import LogPart

_KEY = re.compile(r"[0-9A-Za-z]{1,64}")
_MOST_SIGNAL = 64
_MOST_CHARACTERS = 65_535
_MOST_SECONDS = 10.0 * 365 * 86_400
"""Longer waits than ten years overflow the clocks that they are added to."""

_LAST_SECONDS = 1e12
"""No clock has a later time."""


class JobService:
    """The operations that a client calls, for one caller."""

    def __init__(self, engines: EnginePool, caller: Caller) -> None:
        self.engines = engines
        self.caller = caller
        self.ledger = engines.own.ledger

    def submit_batch(self, ask: Ask) -> Sequence[Job]:
        """Accept jobs durably, all or none; a repeated key returns the jobs of the first request.

        Raises:
            AccessError: The caller may not submit them.
            RequestError: One of them can never be met; nothing was stored.
            CapacityError: Too many of the caller's jobs would wait; nothing was stored.
        """
        if ask.key is not None and not _KEY.fullmatch(ask.key):
            raise RequestError("a key is up to 64 letters and digits")
        engine, submitter = self._accepting(ask)
        # Ids are made from the key, so a repeated request meets the jobs of the first one.
        if ask.key is None:
            return engine.submit_all(ask.submissions, submitter)
        if accepted := self._jobs_of_key(ask, ask.key):
            return accepted
        ids = self._ids_of(ask.key)
        try:
            return engine.submit_all(ask.submissions, submitter, lambda: next(ids))
        except (RequestError, CapacityError):
            # A request with the same key may have been accepted meanwhile: it took the ids, or the caller's quota.
            if accepted := self._jobs_of_key(ask, ask.key):
                return accepted
            raise

    def rehearse_batch(self, ask: Ask) -> Sequence[QueueReport]:
        """Return where and about when each job of a submission would start, and why it would wait; stores nothing.

        The ids are of no job. Errors are those of the submission.
        """
        engine, submitter = self._accepting(ask)
        return [self._queue_report(each) for each in engine.rehearse(ask.submissions, submitter)]

    def _accepting(self, ask: Ask) -> tuple[Engine, Submitter | None]:
        """Check a submission, and return the engine and the user of its jobs."""
        from pgpu.engine.submission_expansion import check_count

        check_count(ask.submissions)
        for each in ask.submissions:
            _check_seconds(each.wait_timeout_seconds)
            _check_seconds(each.spec.wait_for_memory_seconds)
        for each in ask.submissions:
            self.caller.check_submission(each.spec, each.request)
        # After the checks, so that a refused request changes nothing.
        self._recover()
        return self.engines.simulated(ask.simulate), self.caller.submitter(ask.environment, ask.inherited)

    def _jobs_of_key(self, ask: Ask, key: str) -> Sequence[Job]:
        """Return the caller's jobs of a key; ids are short enough that another user's job may have one of them."""
        most = sum(1 if each.array is None else 1 + len(each.array.indices) for each in ask.submissions)
        # An array's id is no job's, and is left out.
        found = self.ledger.entries_of(list(islice(self._ids_of(key), most)))
        return [entry.job for entry in found if entry.job.owner_uid == self.caller.uid]

    def _ids_of(self, key: str) -> Iterator[str]:
        """Yield the job ids of one key of one caller; the same sequence each time."""
        for number in count():
            yield sha256(f"{self.caller.uid} {key} {number}".encode()).hexdigest()[:12]

    def page(
        self, *, include_final: bool, after: int = 0, limit: int | None = None
    ) -> tuple[list[JobReport], int | None]:
        """List the visible jobs, oldest first; of other users' live jobs only what they hold, and those that wait counted.

        Args:
            include_final: Whether to list the caller's jobs that ended.
            after: Begin behind this place.
            limit: At most so many; None for all.

        Returns:
            The jobs, and the place of the last one if there are more, else None.
        """
        self._recover()
        most, sees_uid = None if limit is None else limit + 1, self.caller.sees_uid
        found, counts = self.ledger.page(after, most, seen_by=sees_uid, include_final=include_final)
        entries, own = found[:limit], self.engines.own
        # One forecast of each queue serves the whole page; other users' jobs need none.
        seen = self._with_reasons([entry for entry in entries if self.caller.sees(entry.job.owner_uid)])
        reports = {entry.sequence: report_job(own, entry) for entry in seen}
        listed = [
            reports.get(entry.sequence) or anonymous_report(entry, counts.get(entry.sequence, 1)) for entry in entries
        ]
        return self._with_indices(listed), entries[-1].sequence if len(found) > len(entries) else None

    def job(self, id_or_name: str) -> JobReport:
        """Find one job by id, by a beginning of its id that only one has, or by name; with its whole command.

        Raises:
            JobNotFoundError: None or several match.
        """
        entry = self.find(id_or_name)
        if entry.job.spec.is_abridged:
            entry = replace(entry, job=replace(entry.job, spec=self.ledger.spec(entry.job.id)))
        return self.report(entry)

    def find(self, id_or_name: str) -> Entry:
        """Find a visible job.

        Raises:
            JobNotFoundError: None or several match.
        """
        entry = self.ledger.find(id_or_name, self.caller.sees_uid)
        self.caller.check_sees(entry.job)
        return entry

    def report(self, entry: Entry) -> JobReport:
        """Return a job and what it holds now, with the current reason if it waits."""
        return self._with_indices([report_job(self.engines.own, self._with_reasons([entry])[0])])[0]

    def _with_indices(self, reports: Sequence[JobReport]) -> list[JobReport]:
        """Return reports with the indices of their GPUs, as the agents of their queues read them; no driver is called."""
        models = {each.job.gpu_model for each in reports if each.job.lease is not None and each.job.lease.slices}
        agents = self.engines.own.agents
        indices = {gpu.uuid: gpu.place for model in models for gpu in agents.gpus(model)}
        found = []
        for each in reports:
            uuids = [part.gpu_uuid for part in each.job.lease.slices] if each.job.lease is not None else []
            is_known = bool(uuids) and all(uuid in indices for uuid in uuids)
            found.append(replace(each, gpus=tuple(indices[uuid] for uuid in uuids)) if is_known else each)
        return found

    def _with_reasons(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return entries with the present reason of each waiting job."""
        if all(entry.job.state is not JobState.WAITING for entry in entries):
            return entries
        from pgpu.engine.admission.rounds import add_wait_reasons

        return add_wait_reasons(entries, self.engines.outlook_of)

    def members(self, id_or_name: str) -> Sequence[JobReport]:
        """Find the jobs of an array by its id, a beginning of it or its name; else one job.

        The reason of a waiting one is that in the ledger: the present one takes a round, which `wait` on an array does not need.

        Raises:
            JobNotFoundError: None or several match.
        """
        entries = self.ledger.entries_of(self.ledger.members(id_or_name, self.caller.sees_uid))
        for entry in entries:
            self.caller.check_sees(entry.job)
        return [report_job(self.engines.own, each) for each in entries]

    def ended(self, job_ids: Sequence[str]) -> tuple[Sequence[Job], float]:
        """Return the ended jobs at the beginning of a list of ids; all in one transaction.

        Returns:
            The jobs up to the first that has not ended, and the time in seconds after which that one counts as ended, though
            its memory is still held; infinity while it is not final.

        Raises:
            JobNotFoundError: One of the jobs up to there is none of the caller's.
        """
        entries = {entry.job.id: entry for entry in self.ledger.entries_of(job_ids)}
        found: list[Job] = []
        for job_id in job_ids:
            if job_id not in entries:
                raise JobNotFoundError(f"no job {job_id}")
            job = entries[job_id].job
            self.caller.check_sees(job)
            if not job.state.is_final:
                return found, math.inf
            since_seconds = max(0.0, time.time() - (job.finished_at_seconds or 0.0))
            if entries[job_id].is_lease_held and since_seconds < MOST_END_DELAY_SECONDS:
                return found, MOST_END_DELAY_SECONDS - since_seconds
            found.append(job)
        return found, 0.0

    def queue(self, simulate: str | None = None) -> Sequence[QueueReport]:
        """List the caller's waiting jobs in the order of admission, those that may not start last."""
        self._recover()
        engine, sees_uid = self.engines.simulated(simulate), self.caller.sees_uid
        with engine.ledger.view() as view:
            if view.first_waiting(engine.settings.gpu_model) is None or not view.count_waiting(sees_uid):
                return []  # without a forecast, which needs the scheduler and the driver
        found = engine.admissions.read_queue(sees_uid)
        return [self._queue_report(each) for each in found if self.caller.sees(each.job.owner_uid)]

    def _queue_report(self, each: "Forecast") -> QueueReport:
        is_seen = each.doubted is not None and self.caller.sees(each.doubted.owner_uid)
        return QueueReport(
            each.position,
            each.job,
            each.rule,
            is_start_known=not each.doubt,
            place_rule=each.place.rule,
            place_seconds=each.place.seconds,
            doubt=each.doubt,
            doubted=each.doubted.id if each.doubted is not None and is_seen else None,
            not_before_seconds=each.not_before_seconds,
            by_seconds=each.by_seconds,
        )

    def shares(self, simulate: str | None = None) -> Sequence[UserShare]:
        """Return what each user holds of the machine, the next one first; users that the caller may not see are nameless."""
        found = self.engines.simulated(simulate).admissions.shares()
        return [each if self.caller.sees(each.uid) else replace(each, uid=UNKNOWN_UID) for each in found]

    def request_cancel(self, jobs: Sequence[str], grace_seconds: float) -> Sequence[Job]:
        """Cancel waiting jobs and end running ones, all at once. Does not wait for their ends."""
        _check_seconds(grace_seconds)
        self._recover()
        ids = dict.fromkeys(chain.from_iterable(self._find_all(jobs).values()))
        # All in one transaction, after all names were found: an unknown one leaves the others running.
        self.engines.own.ask_all_to_stop(list(ids), grace_seconds)
        found = [entry.job for entry in self.ledger.entries_of(list(ids))]
        self._note("job.stop", found)
        return found

    def hold(self, jobs: Sequence[str]) -> Sequence[Job]:
        """Hold waiting jobs, and of arrays those that wait: none of them starts before it is released.

        A job that an administrator holds is released by administrators alone.

        Raises:
            RequestError: One of them does not wait; nothing was changed.
        """
        uid, is_admin = self.caller.uid, self.caller.is_admin
        found = self._change_waiting(jobs, lambda decision, ids: decision.hold(ids, uid, takes_over=is_admin))
        self._note("job.hold", found)
        return found

    def release(self, jobs: Sequence[str]) -> Sequence[Job]:
        """Let held jobs start again; their wait counts from now on.

        Raises:
            AccessError: An administrator holds one of them, and the caller is none; nothing was changed.
            RequestError: One of them does not wait; nothing was changed.
        """

        def release(decision: Decision, ids: Sequence[str]) -> None:
            for entry in () if self.caller.is_admin else decision.entries_of(ids):
                if entry.job.held_by_uid not in {None, self.caller.uid}:
                    raise AccessError(f"job {entry.job.id} is held by an administrator", hint="ask for its release")
            decision.release_held(ids, time.time())

        found = self._change_waiting(jobs, release)
        self._note("job.release", found)
        return found

    def _change_waiting(self, words: Sequence[str], change: Callable[[Decision, Sequence[str]], None]) -> Sequence[Job]:
        """Change the waiting jobs that words stand for in one transaction, wake the agents, and return the jobs."""
        self._recover()
        # Before the transaction, for which all other writers wait.
        found = self._find_all(words)
        everything = list(dict.fromkeys(chain.from_iterable(found.values())))
        with self.engines.own.deciding() as decision:
            states = {entry.job.id: entry.job.state for entry in decision.entries_of(everything)}
            for members in found.values():
                if not any(states.get(each) is JobState.WAITING for each in members):
                    if (state := states.get(members[0])) is None:
                        raise JobNotFoundError(f"no job {members[0]}")
                    raise RequestError(f"job {members[0]} does not wait: it is {state.value}")
            ids = [job_id for job_id in everything if states.get(job_id) is JobState.WAITING]
            change(decision, ids)
            return [entry.job for entry in decision.entries_of(ids)]

    def _find_all(self, words: Sequence[str]) -> dict[str, list[str]]:
        """Return the ids of the jobs that words stand for, by word; those that are ids, often thousands, are read at once.

        Raises:
            JobNotFoundError: As of `Ledger.members`; the caller sees no other user's jobs.
        """
        sees_uid = self.caller.sees_uid
        with self.ledger.view() as view:
            exact = view.existing(words, sees_uid)
        return {word: [word] if word in exact else self.ledger.members(word, sees_uid) for word in words}

    def request_stop(self, id_or_name: str, grace_seconds: float) -> Job:
        """Cancel a waiting job; end a running one with SIGTERM and, after the grace, SIGKILL. Does not wait for its end."""
        _check_seconds(grace_seconds)
        self._recover()
        job = self.find(id_or_name).job
        asked = self.engines.of_job(job).ask_to_stop(job.id, grace_seconds)
        self._note("job.stop", [asked])
        return asked

    def signal(self, id_or_name: str, number: int) -> None:
        """Send a signal to a running job's main process."""
        if not 1 <= number <= _MOST_SIGNAL:
            raise RequestError(f"there is no signal {number}")
        job = self.find(id_or_name).job
        if job.state not in {JobState.STARTING, JobState.RUNNING}:
            raise RequestError(f"job {job.id} does not run: it is {job.state.value}")
        send_signal(self.engines.own, job.id, number)
        self._note("job.signal", [job], signal=number)

    def window(self, id_or_name: str, columns: int, rows: int) -> None:
        """Set the terminal size of a job with a terminal."""
        if not (0 <= columns <= _MOST_CHARACTERS and 0 <= rows <= _MOST_CHARACTERS):
            raise RequestError("a terminal has 0 to 65535 columns and rows")
        send_window(self.engines.own, self.find(id_or_name).job.id, columns, rows)

    def resize(
        self,
        id_or_name: str,
        memory_bytes: int | None = None,
        compute_share: float | None = None,
        is_strict: bool | None = None,  # noqa: FBT001 - the fields of `Resize`, by name
    ) -> Job:
        """Change the slices of a waiting or running job, its share of compute or both, of all its GPUs or none.

        Args:
            id_or_name: Of the job.
            memory_bytes: Of each slice; None leaves an amount as it is, here and below.
            compute_share: Of each GPU's time, above 0 to 1; 0 takes the share away.
            is_strict: Whether it never gets more than its share.

        Raises:
            RequestError: It can never be met.
            CapacityError: The larger slice or share does not fit now; nothing was changed.
        """
        from pgpu.engine.leases.lease_resize import resize

        job = self.find(id_or_name).job
        change = Resize(memory_bytes, compute_share, is_strict)
        resized = resize(self.engines.of_job(job), job.id, change)
        self._note("job.resize", [job], change=asdict(change))
        return resized

    def offer(self, id_or_name: str, value: float) -> Job:
        """Mark the lease of an idle job that serves a function as evictable for a waiting job of the same or a higher priority.

        On eviction the job gets SIGTERM and 1.5 s later SIGKILL; a job that supports parking gets SIGTSTP and continues
        without its lease. A second call only changes the value.

        Args:
            id_or_name: Of the job.
            value: What it saves to keep the lease, 0 or more, in a unit common to all evictable leases: the lowest value
                for each byte is evicted first.

        Raises:
            RequestError: It serves no function, or the value is negative.
            CapacityError: It does not run, or its lease was taken already.
        """
        from pgpu.engine.leases.eviction import mark_evictable

        engine, job_id = self._evictable(id_or_name)
        return mark_evictable(engine, job_id, value)

    def park(self, id_or_name: str) -> Job:
        """Take the lease from a job that supports parking until it is claimed again.

        Does nothing if it is parked already.

        Raises:
            RequestError: It does not support parking, or is not on one GPU in time slices.
            CapacityError: It does not run.
        """
        from pgpu.engine.leases.eviction import park

        engine, job_id = self._evictable(id_or_name)
        return park(engine, job_id)

    def claim(self, id_or_name: str) -> Job:
        """Keep an evictable lease, 409 if it was taken before; a parked job waits for its lease again.

        The lease is not evicted after this returns. A parked job queues for its lease, like every job of its priority, on the GPU that it was on; its
        `parked_at_seconds` is None once it was granted, and its main process gets SIGCONT once its memory is restored.

        Raises:
            CapacityError: It was evicted before, or the job does not run.
        """
        from pgpu.engine.leases.eviction import reacquire

        engine, job_id = self._evictable(id_or_name)
        return reacquire(engine, job_id)

    def _evictable(self, id_or_name: str) -> tuple[EngineContext, str]:
        """Find a job for a change of its lease, which only the gateway may make: the value decides which lease is evicted."""
        job = self.find(id_or_name).job
        self.caller.check_administers()
        return self.engines.of_job(job), job.id

    def profiled(self, id_or_name: str) -> Profiled:
        """Return the profile and the packed log of a traced job that ended."""
        from pgpu.engine.history.usage_history import read_profiled

        return read_profiled(self.engines.own, self.find(id_or_name).job.id)

    def add_findings(self, id_or_name: str, findings: Findings) -> Profile:
        """Add the results of several runs of a program to the profile of one of them."""
        from pgpu.engine.history.usage_history import add_findings

        return add_findings(self.engines.own, self.find(id_or_name).job.id, findings)

    def advise(
        self,
        jobs: Sequence[str | Profile],
        gpu_model: str | None = None,
        tolerance: float | None = None,
        simulate: str | None = None,
    ) -> Advice:
        """Recommend how jobs share a GPU, from the profile of each of them alone: the caller's, or those in the request.

        Args:
            jobs: Each a profile, or the id or name of a job, or a signature or the beginning of one; two at least.
            gpu_model: As users write products; None for that of the profiles, else of the first GPU.
            tolerance: How many times longer than alone the slowest may take; None for jobs without a deadline.
            simulate: As of `Ask`.

        Raises:
            RequestError: There is no profile of one of them on this kind of GPU.
        """
        if tolerance is not None and not (math.isfinite(tolerance) and tolerance >= 1):
            raise RequestError("no job gets faster by company: a tolerance is 1 or more")
        from pgpu.engine.history.sharing_advice import advise_jobs

        engine, sees_uid = self.engines.simulated(simulate), self.caller.sees_uid
        return advise_jobs(engine, jobs, gpu_model=gpu_model, tolerance=tolerance, owner_uid=sees_uid)

    def history(self, word: str | None = None) -> Sequence[CallHistory]:
        """Return the memory use of the caller's programs and what `--memory auto` would reserve for each, newest run first.

        Args:
            word: A signature, the beginning of one, or the id or name of a job; None for all.

        Raises:
            RequestError: No run matches.
        """
        from pgpu.engine.history.usage_history import read_history

        return read_history(self.engines.own, word, self.caller.sees_uid)

    def waste(self) -> Sequence[Waste]:
        """Return what the caller's jobs reserved and what they used of it."""
        from pgpu.engine.history.usage_history import read_waste

        return read_waste(self.engines.own, self.caller.sees_uid)

    def usage(self, since_seconds: float, uid: int | None = None, simulate: str | None = None) -> Sequence[UsageReport]:
        """Return what each user has used since a time, in whole hours, with the quota of GPU hours; of others only for administrators.

        Args:
            since_seconds: Seconds since the epoch.
            uid: Only of this user; None for every visible one that used anything.
            simulate: As of `Ask`; hours of simulated GPUs count apart.
        """
        if not 0 <= since_seconds <= _LAST_SECONDS:
            raise RequestError(f"{since_seconds} is no time", hint="in seconds since the epoch")
        if uid is not None and not self.caller.sees(uid):
            raise AccessError("the usage of other users is for administrators", hint="leave --user out")
        asked = uid if uid is not None else self.caller.sees_uid
        gpu_model = self.engines.simulated(simulate).settings.gpu_model
        with self.ledger.view() as view:
            found, quotas = view.charges.usage(gpu_model, since_seconds, asked), view.quotas(gpu_model)
        if asked is not None:
            found.setdefault(asked, UserUsage(asked))
        return [
            UsageReport(each, quotas[uid].gpu_hours if uid in quotas else None) for uid, each in sorted(found.items())
        ]

    def gpu_history(self, since_seconds: float, gpu_uuid: str | None = None) -> Sequence[GpuSeries]:
        """Return the minutes of each GPU, or of one, since a time of the last week; all queues of this state directory have one history."""
        if not 0 <= since_seconds <= _LAST_SECONDS:
            raise RequestError(f"{since_seconds} is no time", hint="in seconds since the epoch")
        return GpuHistory(self.engines.own.settings.state_directory).series(since_seconds, gpu_uuid)

    def gpus(self, simulate: str | None = None) -> Sequence[GpuReport]:
        """Report every GPU, in NVML index order; of its jobs and outsiders only those that the caller may see."""
        from pgpu.engine.watch.watchdog import find_outsiders_once

        engine = self.engines.simulated(simulate)
        with engine.ledger.view() as view:
            entries = engine.queue_of(view.holding())
        snapshot = engine.snapshot()
        rooms = {room.gpu.uuid: room for room in snapshot.rooms(entries, engine.headroom)}
        outsiders = [each for each in find_outsiders_once(engine) if self.caller.sees(each.uid)]
        reports = []
        for gpu in snapshot.gpus:
            room, enforcer = rooms[gpu.uuid], engine.enforcer.for_gpus([gpu])
            reports.append(
                GpuReport(
                    gpu=gpu,
                    used_bytes=snapshot.used_bytes[gpu.uuid],
                    granted_bytes=room.granted_bytes,
                    # Headroom counts as far as slices use it: a slice of an unknown size gets none of the rest.
                    capacity_bytes=max(
                        room.capacity_bytes, min(room.granted_bytes, room.capacity_bytes + room.yielded_bytes)
                    ),
                    enforcer=enforcer.name,
                    does_not_cover=enforcer.does_not_cover,
                    utilisation_percent=engine.gpus.utilisation_percent(gpu.uuid),
                    jobs=tuple(
                        entry.job.id
                        for entry in entries
                        if entry.job.lease is not None
                        and entry.is_counted
                        and self.caller.sees(entry.job.owner_uid)
                        and any(part.gpu_uuid == gpu.uuid for part in entry.job.lease.slices)
                    ),
                    outsiders=tuple(each for each in outsiders if each.gpu_uuid == gpu.uuid),
                    granted_compute=room.granted_compute,
                    sharing=room.tenancy.mode,
                    sensors=engine.gpus.sensors(gpu.uuid),
                )
            )
        return reports

    def outsiders(self, simulate: str | None = None) -> Sequence[Outsider]:
        """List the reported processes that compute outside of every lease: the caller's, or all for an administrator."""
        from pgpu.engine.watch.watchdog import read_reported_outsiders

        found = read_reported_outsiders(self.engines.simulated(simulate))
        return [each for each in found if self.caller.sees(each.uid)]

    def output(self, id_or_name: str) -> Iterator[tuple[str, bytes]]:
        """Return the stored output of a job as (stream, bytes)."""
        from pgpu.services.output_log import LogCursor

        path = self.engines.own.places(self.find(id_or_name).job.id).log
        return ((record.stream, record.payload) for record in LogCursor(0).read_stored(path))

    def output_tail(self, id_or_name: str, line_count: int) -> tuple[Sequence[tuple[str, bytes]], int]:
        """Return the last lines of the stored output, and the offset in the log at which they end."""
        from pgpu.services.output_log import LogCursor, last_lines

        cursor, path = LogCursor(0), self.engines.own.places(self.find(id_or_name).job.id).log
        return last_lines(cursor.read_stored(path), line_count), cursor.offset

    def output_since(self, id_or_name: str, offset: int) -> "LogPart":
        """Return the stored output from an offset on, or the newest part of it.

        Raises:
            RequestError: No record begins at this offset.
        """
        from pgpu.services.output_log import read_part

        try:
            return read_part(self.engines.own.places(self.find(id_or_name).job.id).log, offset)
        except ValueError as exc:
            raise RequestError(f"{offset} is no offset of this log") from exc

    def _note(self, action: str, jobs: Sequence[Job], **details: object) -> None:
        """Write what an administrator did to other users' jobs into the audit log; replicas end and start by themselves."""
        others: dict[str, list[str]] = {}
        for job in jobs if self.caller.is_admin else ():
            if job.owner_uid != self.caller.uid and job.spec.serves is None:
                others.setdefault(str(job.owner_uid), []).append(job.id)
        if others:
            from pgpu.host.audit_log import AuditLog

            log = AuditLog(self.engines.own.settings.state_directory)
            log.write(action, **self.caller.actor(), jobs_by_owner=others, **details)

    def _recover(self) -> None:
        # A server's maintenance thread recovers every second; a local client has no other process to rely on.
        if self.caller.is_local:
            recover(self.engines.own)


def _check_seconds(seconds: float | None) -> None:
    if seconds is not None and not (math.isfinite(seconds) and 0 <= seconds <= _MOST_SECONDS):
        raise RequestError(f"{seconds} is no time to wait", hint="0 to ten years, in seconds")
