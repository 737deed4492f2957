"""One picture of the machine: GPUs and live jobs, in rows that a browser gets as JSON arrays.

Public is what every user may know: the GPUs, and of each job its state, its memory and its GPUs under a number that this process made
up. All else of a job (id, name, owner, use, command, reason) is in a row of its own, which its owner and administrators get.
"""

import itertools
import pwd
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache

from pgpu.engine.context import EngineContext
from pgpu.errors import NodeError, PgpuError
from pgpu.ledger import Entry
from pgpu.model import OWNER_NAMES, JobSpec, JobState
from pgpu.services.job_reports import report_job
from pgpu.services.job_service import JobService
from pgpu.services.messages import GpuReport, QueueReport
from pgpu.structs import Struct

Row = tuple[object, ...]

MOST_ENDED = 500
"""Jobs that ended while the page was open; older ones are forgotten."""

QUEUE_SECONDS = 5.0
"""Shortest time between two forecasts of the queue."""

SAME_QUEUE_SECONDS = 30.0
"""Longer pause while no job changes: expected starts move with time."""

RESTS = 100
"""A forecast is followed by a pause of so many times its processor time, so it takes at most 1 % of a core; a reading likewise, up to a
pause of `feed.MOST_PAUSE_SECONDS`."""

_MOST_COMMAND_CHARACTERS = 300


def printable(text: str) -> str:
    r"""Return text without characters that steer: each becomes its escape sequence, as `\\\\x1b` or `\\\\u202e`."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode("ascii") for each in text
    )


class Picture(Struct, frozen=True):
    """Rows by key. Their columns are named in `page/state.js`."""

    gpus: Mapping[str, Row]
    """By UUID."""

    jobs: Mapping[int, Row]
    """Of every job, its public row by its number."""

    own: Mapping[int, tuple[int, Row]]
    """Of every job the UID of its owner and the row for its owner."""

    simulated: bool = False
    problem: str = ""
    """One line about what cannot be read; empty if all can."""


class PictureReader:
    """Reads pictures; used by one thread at a time."""

    def __init__(self, service: JobService, most_ended: int = MOST_ENDED) -> None:
        """Read nothing yet.

        Args:
            service: Acts for an administrator, since `feed` decides which viewer gets which row.
            most_ended: Jobs that ended while the page was open and are still shown.
        """
        self._service, self._most_ended = service, most_ended
        self._engine: EngineContext = service.engines.own
        self._live = service.ledger.cached(lambda: service.ledger.entries(include_final=False))
        self._numbers: dict[str, int] = {}
        """By the id of each job of a picture."""

        # Pages that are open stay open over a restart: no number of an earlier process is given to another job. Microseconds of this
        # century are below 2^53, the largest whole number of JavaScript.
        self._next_number = itertools.count(time.time_ns() // 1000)
        self._ended: dict[str, tuple[int, int, Row, Row]] = {}
        """By id: number, UID of the owner and both rows."""

        self._live_ids: frozenset[str] = frozenset()
        self._rows: dict[int, tuple[Entry, QueueReport | None, Row]] = {}
        """Of jobs that do not run, with what each was made of."""

        self._waits: Mapping[str, QueueReport] = {}
        self._forecast = threading.Thread()
        self._forecast_due_seconds = 0.0
        self._forecast_of: Sequence[Entry] | None = None

    def read(self) -> Picture:
        """Read GPUs, jobs and meters; the queue's forecast where it is due.

        Raises:
            PgpuError: The ledger cannot be read.
        """
        entries = self._live.get()
        self._begin_forecast(entries)
        waits = self._waits
        problem, reports = "", list[GpuReport]()
        try:
            reports = [*self._service.gpus()]
        except NodeError as exc:
            problem = f"The GPUs cannot be read: {printable(str(exc))}"
        places = {report.gpu.uuid: report.gpu.place for report in reports}
        jobs: dict[int, Row] = {}
        own: dict[int, tuple[int, Row]] = {}
        slices: dict[str, list[tuple[int, int]]] = {}
        for entry in entries:
            number = self._number(entry.job.id)
            jobs[number] = _public_row(number, entry, places)
            own[number] = entry.job.owner_uid, self._own_row(number, entry, waits)
            if entry.job.lease is not None and entry.is_counted:
                for part in entry.job.lease.slices:
                    slices.setdefault(part.gpu_uuid, []).append((number, part.memory_bytes))
        self._note_ended(frozenset(entry.job.id for entry in entries), places)
        for number, uid, public, row in self._ended.values():
            jobs[number], own[number] = public, (uid, row)
        gpus = {report.gpu.uuid: _gpu_row(report, slices.get(report.gpu.uuid, ())) for report in reports}
        return Picture(gpus, jobs, own, any(report.gpu.is_simulated for report in reports), problem)

    def _number(self, job_id: str) -> int:
        # Its order alone says which job was seen first.
        if job_id not in self._numbers:
            self._numbers[job_id] = next(self._next_number)
        return self._numbers[job_id]

    def _begin_forecast(self, entries: Sequence[Entry]) -> None:
        """Forecast the queue in a thread, since this takes long where thousands of jobs wait; the last one is shown meanwhile."""
        pause_seconds = SAME_QUEUE_SECONDS if entries == self._forecast_of else 0.0
        if self._forecast.is_alive() or time.monotonic() < self._forecast_due_seconds + pause_seconds:
            return

        def forecast() -> None:
            began_seconds = time.thread_time()
            with suppress(PgpuError):  # the last forecast stays
                self._waits = {each.job.id: each for each in self._service.queue()}
            took_seconds = time.thread_time() - began_seconds
            self._forecast_due_seconds = time.monotonic() + max(QUEUE_SECONDS, RESTS * took_seconds)

        self._forecast_of = entries
        self._forecast = threading.Thread(target=forecast, name="queue forecast", daemon=True)
        self._forecast.start()

    def _note_ended(self, live_ids: frozenset[str], places: Mapping[str, str]) -> None:
        gone = self._live_ids - live_ids
        for entry in self._engine.ledger.entries_of(sorted(gone)) if gone else ():
            number = self._number(entry.job.id)
            row = self._own_row(number, entry, {})
            self._ended[entry.job.id] = number, entry.job.owner_uid, _public_row(number, entry, places), row
        self._live_ids = live_ids
        forgotten = gone - self._ended.keys()  # removed from the ledger meanwhile
        while len(self._ended) > self._most_ended:
            job_id = next(iter(self._ended))
            del self._ended[job_id]
            forgotten |= {job_id}
        for job_id in forgotten:
            self._rows.pop(self._numbers.pop(job_id), None)

    def _own_row(self, number: int, entry: Entry, waits: Mapping[str, QueueReport]) -> Row:
        job = entry.job
        wait = waits.get(job.id) if job.state is JobState.WAITING else None
        kept = self._rows.get(number)
        if kept is not None and kept[0] is entry and kept[1] is wait:
            return kept[2]
        waiting = job if wait is None else wait.job
        used_bytes, peak_bytes, share = self._use(entry)
        row = (
            number,
            job.id,
            printable(job.spec.name or ""),
            user_name(job.owner_uid),
            command_text(job.spec),
            int(job.created_at_seconds),
            _whole(job.started_at_seconds),
            _whole(job.finished_at_seconds),
            used_bytes,
            peak_bytes,
            share,
            job.request.compute_share,
            None if wait is None else wait.position,
            printable(waiting.reason or job.error or job.warning or ""),
            None if wait is None else _whole(wait.job.expected_start_seconds),
            job.exit_code,
            "" if wait is None else wait.rule,
            None if wait is None else _whole(wait.not_before_seconds),
            None if wait is None else _whole(wait.by_seconds),
            job.state is JobState.WAITING and job.held_by_uid is not None,
        )
        if job.state is JobState.RUNNING or job.state.is_final:
            self._rows.pop(number, None)
        else:
            self._rows[number] = entry, wait, row
        return row

    def _use(self, entry: Entry) -> tuple[int | None, int | None, float | None]:
        """Return the memory that a job uses and its peak, in bytes, and the share of the time that it got; None where it is unknown."""
        if entry.job.state is JobState.RUNNING:
            with suppress(NodeError):
                report = report_job(self._engine, entry)
                shares = [each.got_over_10_seconds for each in report.time if each.got_over_10_seconds is not None]
                return (
                    sum(use.used_bytes for use in report.use),
                    max((use.peak_bytes for use in report.use), default=entry.job.peak_bytes),
                    round(sum(shares) / len(shares), 3) if shares else None,
                )
        return None, entry.job.peak_bytes, None


@cache
def user_name(uid: int) -> str:
    """Return a user's name, or the number of a user without one; looked up once, since it may be a question of a network."""
    try:
        return OWNER_NAMES.get(uid) or printable(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return str(uid)


def command_text(spec: JobSpec) -> str:
    """Return the begin of a command, after its image, as a page shows it."""
    # A command has up to 2 MiB, and this is read each second: it is cut before it is joined, where each word has a space at least.
    most = _MOST_COMMAND_CHARACTERS
    words = itertools.islice(itertools.chain((spec.image,) if spec.image else (), spec.command), most)
    return printable(" ".join(word[:most] for word in words)[:most])[:most]


def _whole(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds)


def _public_row(number: int, entry: Entry, places: Mapping[str, str]) -> Row:
    job = entry.job
    parts = () if job.lease is None or job.state.is_final else job.lease.slices
    return (
        number,
        job.state.value,
        job.request.memory_bytes,
        job.request.gpu_count,
        tuple(places.get(part.gpu_uuid, "?") for part in parts),
    )


def _gpu_row(report: GpuReport, slices: Sequence[tuple[int, int]]) -> Row:
    gpu = report.gpu
    return (
        gpu.uuid,
        gpu.place,
        printable(gpu.name),
        gpu.memory_bytes,
        report.used_bytes,
        report.granted_bytes,
        report.capacity_bytes,
        report.utilisation_percent,
        round(report.granted_compute, 3),
        None if report.sharing is None else report.sharing.value,
        slices,
    )
