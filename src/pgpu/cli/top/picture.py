"""What the view shows at one moment, and the thread that reads it.

A reading that fails leaves the last picture with the error beside it, and the next one is tried a second later: a server may be
restarted, and a driver may answer again. A reading that takes long is followed by a longer pause, so that it takes a fifth of the
time at most. What a job used before is known from the moment on at which the view was opened.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from pgpu.client import Client, GpuReport, JobReport, QueueReport
from pgpu.errors import PgpuError
from pgpu.model import GpuSeries, JobState
from pgpu.structs import Struct, replace

PERIOD_SECONDS = 1.0
_PAUSES = 4
"""A reading is followed by a pause of so many times its length, `PERIOD_SECONDS` at least."""

_QUEUE_SECONDS = 5.0
_QUEUE_PAUSES = 20
"""Between two forecasts of the queue: so many seconds, and so many times the time that one took."""

_HISTORY_SECONDS = 30.0
"""Between two readings of the recorded history, which has a row a minute."""

MOST_SAMPLES = 120

Sample = tuple[float | None, float | None]
"""Of a job: used part of its slices and received part of the time, 0 to 1."""


class Span(Struct, frozen=True):
    """A period of the recorded history of one GPU, which the view asks for."""

    gpu_uuid: str
    seconds: float


class Picture(Struct, frozen=True):
    """The machine at one moment."""

    gpus: Sequence[GpuReport]
    jobs: Sequence[JobReport]
    """Those that live, oldest first."""

    at_seconds: float
    samples: Mapping[str, Sequence[Sample]] = {}
    """Of each job by its id, oldest first."""

    history: GpuSeries | None = None
    waits: Mapping[str, QueueReport] = {}
    """Of the jobs that wait, by id, as of the last forecast; empty in the first picture, which is not to wait for one."""

    problem: str = ""
    """Why the last reading failed; the rest is then of the one before."""


class PictureReader:
    """Reads pictures; used by one thread at a time."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._samples: dict[str, deque[Sample]] = {}
        self._last: Picture | None = None
        self._history_of: Span | None = None
        self._history_due_seconds = 0.0
        self._waits: Mapping[str, QueueReport] = {}
        self._waits_due_seconds = 0.0
        self.wanted: Span | None = None
        """The history to read; set by the view."""

    def read(self) -> Picture:
        """Read GPUs and jobs, and the history where it is wanted and due.

        Raises:
            PgpuError: The ledger, the driver or the server cannot be read.
        """
        client, wanted = self._client, self.wanted
        gpus, jobs = client.gpus(), client.jobs(include_final=False)
        self._samples = {
            report.job.id: self._samples.get(report.job.id, deque(maxlen=MOST_SAMPLES))
            for report in jobs
            if report.job.lease is not None and not report.job.is_anonymous
        }
        for report in jobs:
            if report.job.id in self._samples:
                self._samples[report.job.id].append(_sample(report))
        history = None if self._last is None else self._last.history
        if wanted is not None and (wanted != self._history_of or time.monotonic() >= self._history_due_seconds):
            found = client.gpu_history(time.time() - wanted.seconds, wanted.gpu_uuid)
            history = found[0] if found else None
            self._history_of, self._history_due_seconds = wanted, time.monotonic() + _HISTORY_SECONDS
        samples = {job_id: tuple(each) for job_id, each in self._samples.items()}
        waiting = {report.job.id for report in jobs if report.job.state is JobState.WAITING}
        if self._last is not None and waiting:
            self._forecast()
        # The forecast is older than the jobs, some of which may run by now.
        waits = {job_id: wait for job_id, wait in self._waits.items() if job_id in waiting}
        self._last = Picture(gpus, jobs, time.time(), samples, None if wanted is None else history, waits)
        return self._last

    def _forecast(self) -> None:
        began_seconds = time.monotonic()
        if began_seconds >= self._waits_due_seconds:
            with suppress(PgpuError):  # the last forecast stays
                self._waits = {each.job.id: each for each in self._client.queue()}
            now_seconds = time.monotonic()
            pause_seconds = max(_QUEUE_SECONDS, _QUEUE_PAUSES * (now_seconds - began_seconds))
            self._waits_due_seconds = now_seconds + pause_seconds

    def try_read(self) -> Picture:
        """Read, or return the last picture with the error of this reading."""
        try:
            return self.read()
        except PgpuError as exc:
            last = self._last or Picture((), (), time.time())
            return replace(last, problem=" ".join(str(exc).split()))


def _sample(report: JobReport) -> Sample:
    limit_bytes = 0 if report.job.lease is None else sum(part.memory_bytes for part in report.job.lease.slices)
    got = [each.got_over_1_second for each in report.time if each.got_over_1_second is not None]
    return (
        sum(use.used_bytes for use in report.use) / limit_bytes if report.use and limit_bytes else None,
        sum(got) / len(got) if got else None,
    )


class PictureThread:
    """Reads in a daemon thread, and passes each picture on."""

    def __init__(self, reader: PictureReader, show: Callable[[Picture], object]) -> None:
        """Start the thread; `show` is called in it."""
        self._reader, self._show = reader, show
        self._is_hurried = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def hurry(self) -> None:
        """End the present pause, as after a change that the user made."""
        self._is_hurried.set()

    def _run(self) -> None:
        pause_seconds = PERIOD_SECONDS
        while True:
            self._is_hurried.wait(pause_seconds)
            self._is_hurried.clear()
            began_seconds = time.monotonic()
            picture = self._reader.try_read()
            took_seconds = time.monotonic() - began_seconds
            self._show(picture)
            pause_seconds = max(PERIOD_SECONDS - took_seconds, _PAUSES * took_seconds)
