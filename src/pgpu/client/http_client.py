"""The client of a server: the words of the `Client` protocol over HTTP, for one user of the machine.

What a job has of its asker, environment, umask and limits, is read here and sent along; who the asker is, is not: the
server asks the kernel. This module refuses to fall back to an engine of its own.
"""

import secrets
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlencode

from pgpu.advising.advice import Advice
from pgpu.advising.contention import Constants
from pgpu.client.connection import HttpTransport, StreamedResponse
from pgpu.client.grant_wait import GrantWatch, require_grant
from pgpu.client.http_stream import HttpJobControl, HttpJobStream, job_path
from pgpu.client.protocol import GpuReport, JobReport, QueueReport
from pgpu.client.terminal import attach
from pgpu.engine.history.usage_records import CallHistory, Findings, ProfiledJob, Waste
from pgpu.engine.submission.submitter import this_process
from pgpu.errors import NodeError, RequestError
from pgpu.model import Bandwidths, Job, JobSpec, Outsider, Profile, Request, Resize, Submission
from pgpu.services import wire
from pgpu.services.messages import END_HEADER, Ask, Cancel, LeaseOffer, Signal, Stop, Together

T = TypeVar("T")

_WAIT_SECONDS = 50
_PAGE = 2500
"""Few enough that the server works on others in between, and so many that ten thousand jobs need few rounds for their reasons."""
_STREAMS = {1: "stdout", 2: "stderr"}
_HEADER_BYTES = 8


class HttpClient:
    """The `Client` of one server."""

    def __init__(self, server: HttpTransport, simulate: str | None = None) -> None:
        """Ask nothing yet.

        Args:
            server: Whom to ask.
            simulate: The simulated GPUs that this caller asks for; None for the server's own GPUs.
        """
        self._server = server
        self._simulate = simulate
        self._watches: dict[str, GrantWatch] = {}

    def submit(self, spec: JobSpec, request: Request, *, wait_timeout_seconds: float | None) -> Job:
        """Accept a request; see `Client.submit`."""
        return self.submit_all([Submission(spec, request, wait_timeout_seconds=wait_timeout_seconds)])[0]

    def submit_all(self, submissions: Sequence[Submission]) -> Sequence[Job]:
        """Accept several jobs, all or none; see `Client.submit_all`."""
        asker = this_process()
        key = secrets.token_hex(16)
        ask = Ask(tuple(submissions), key, asker.environment, asker.inherited, self._simulate)
        jobs = self._asked(tuple[Job, ...], "POST", "/v1/jobs", ask)
        self._refuse_what_was_left_out(submissions, jobs)
        return jobs

    def _refuse_what_was_left_out(self, submissions: Sequence[Submission], jobs: Sequence[Job]) -> None:
        """A server that is older skips what it does not know: such jobs would run without it.

        Raises:
            NodeError: It did; the jobs are cancelled.
        """
        if {_sharing_words(each.request) for each in submissions} == {_sharing_words(job.request) for job in jobs}:
            return
        self._asked(tuple[Job, ...], "POST", "/v1/jobs/cancel", Cancel(tuple(job.id for job in jobs), 0.0))
        raise NodeError(
            "the server is older than this command and knows nothing of how jobs share a GPU; nothing was submitted",
            hint="update the server, or leave out --strict, --sharing, --oversubscribe and --preempt",
        )

    def attach(self, job_id: str, stdin: BinaryIO | None, stdout: BinaryIO, stderr: BinaryIO) -> Job:
        """Stay with a job to its end; see `Client.attach`."""
        found = self.job(job_id).job
        line = HttpJobStream(self._server, found.id, holds_back=True)
        attach(line, HttpJobControl(self._server, found.id), found.spec, stdin=stdin, stdout=stdout, stderr=stderr)
        return require_grant(self.job(found.id).job)

    def jobs(self, *, include_final: bool) -> Sequence[JobReport]:
        """List jobs; see `Client.jobs`."""
        pages = self._server.pages(f"/v1/jobs?include_final={str(include_final).lower()}&limit={_PAGE}")
        return [report for page in pages for report in wire.decode(tuple[JobReport, ...], page)]

    def job(self, id_or_name: str) -> JobReport:
        """Find one job; see `Client.job`."""
        return self._asked(JobReport, "GET", job_path(id_or_name))

    def members(self, id_or_name: str) -> Sequence[JobReport]:
        """Find an array's jobs, or one; see `Client.members`."""
        return self._asked(tuple[JobReport, ...], "GET", job_path(id_or_name, "/members"))

    def queue(self) -> Sequence[QueueReport]:
        """List the jobs that wait; see `Client.queue`."""
        return self._asked(tuple[QueueReport, ...], "GET", "/v1/queue" + self._simulated)

    def cancel(self, ids_or_names: Sequence[str], *, grace_seconds: float) -> Sequence[Job]:
        """End several jobs; see `Client.cancel`."""
        told = self._asked(tuple[Job, ...], "POST", "/v1/jobs/cancel", Cancel(tuple(ids_or_names), grace_seconds))
        return [self.wait(job.id) for job in told]

    def still_waits(self, job_id: str, *, timeout_seconds: float) -> str | None:
        """Rest until a job waits no longer; see `Client.still_waits`."""
        if job_id not in self._watches:
            self._watches[job_id] = GrantWatch(partial(self._granted, job_id))
        reason = self._watches[job_id].still_waits(timeout_seconds)
        if reason is None:
            del self._watches[job_id]
        return reason

    def _granted(self, job_id: str, timeout_seconds: float, wants_reason: bool) -> Job:  # noqa: FBT001 - see `GrantWatch`
        query = urlencode({"timeout_seconds": timeout_seconds, "wants_reason": str(wants_reason).lower()})
        return self._asked(Job, "GET", job_path(job_id, f"/granted?{query}"))

    def wait(self, id_or_name: str) -> Job:
        """Wait for a job's end; see `Client.wait`."""
        while True:
            job = self._asked(Job, "GET", job_path(id_or_name, f"/wait?timeout_seconds={_WAIT_SECONDS}"))
            if job.state.is_final:
                return job
            id_or_name = job.id

    def logs(self, id_or_name: str, *, follow: bool, tail_lines: int | None = None) -> Iterator[tuple[str, bytes]]:
        """Read a job's output; see `Client.logs`."""
        job_id = self.job(id_or_name).job.id
        line = HttpJobStream(self._server, job_id)
        if tail_lines is not None or not follow:
            query = "" if tail_lines is None else f"?tail_lines={tail_lines}"
            with self._server.streaming(job_path(job_id, f"/logs{query}")) as answer:
                line.reading.jump(int(answer.header(END_HEADER) or 0))
                yield from _demultiplexed(answer)
        if follow:
            yield from ((record.stream, record.payload) for record in line.records())

    def stop(self, id_or_name: str, *, grace_seconds: float) -> Job:
        """End a job; see `Client.stop`."""
        return self.wait(self._asked(Job, "POST", job_path(id_or_name, "/stop"), Stop(grace_seconds)).id)

    def signal(self, id_or_name: str, number: int) -> None:
        """Send a signal to a running job; see `Client.signal`."""
        self._server.ask("POST", job_path(id_or_name, "/signal"), Signal(number), is_repeatable=False)

    def resize(
        self,
        id_or_name: str,
        memory_bytes: int | None = None,
        *,
        compute_share: float | None = None,
        is_strict: bool | None = None,
    ) -> Job:
        """Change a job's slices; see `Client.resize`."""
        return self._asked(Job, "POST", job_path(id_or_name, "/resize"), Resize(memory_bytes, compute_share, is_strict))

    def offer(self, id_or_name: str, value: float) -> Job:
        """Let a lease be taken; see `Client.offer`."""
        return self._asked(Job, "POST", job_path(id_or_name, "/offer"), LeaseOffer(value))

    def park(self, id_or_name: str) -> Job:
        """Have a job do without its lease; see `Client.park`."""
        return self._asked(Job, "POST", job_path(id_or_name, "/park"))

    def claim(self, id_or_name: str) -> Job:
        """Keep an offered lease; see `Client.claim`."""
        return self._asked(Job, "POST", job_path(id_or_name, "/claim"))

    def history(self, word: str | None) -> Sequence[CallHistory]:
        """Tell what is known of calls; see `Client.history`."""
        query = "" if word is None else "?" + urlencode({"word": word}, errors="surrogateescape")
        return self._asked(tuple[CallHistory, ...], "GET", "/v1/history" + query)

    def profiled(self, id_or_name: str) -> ProfiledJob:
        """Return what a traced job did; see `Client.profiled`."""
        return self._asked(ProfiledJob, "GET", job_path(id_or_name, "/profile"))

    def add_findings(self, id_or_name: str, findings: Findings) -> Profile:
        """Add to a profile; see `Client.add_findings`."""
        return self._asked(Profile, "POST", job_path(id_or_name, "/profile"), findings)

    def waste(self) -> Sequence[Waste]:
        """Tell what was reserved for nothing; see `Client.waste`."""
        return self._asked(tuple[Waste, ...], "GET", "/v1/waste")

    def advise(
        self, jobs: Sequence[str | Profile], *, gpu_model: str | None = None, tolerance: float | None = None
    ) -> Advice:
        """Say how jobs should share a GPU; see `Client.advise`."""
        return self._asked(Advice, "POST", "/v1/advice" + self._simulated, Together(tuple(jobs), gpu_model, tolerance))

    def keep_constants(self, gpu_uuid: str, constants: Constants, bandwidths: Bandwidths) -> None:  # noqa: ARG002
        """Refuse; see `Client.keep_constants`."""
        self.check_calibration()

    def check_calibration(self) -> None:
        """Refuse; see `Client.check_calibration`."""
        raise RequestError(
            "these GPUs are a server's",
            hint="root calibrates them: PGPU_HOST=embedded pgpu calibrate, with its --state-dir",
        )

    def outsiders(self) -> Sequence[Outsider]:
        """Return who was told of; see `Client.outsiders`."""
        return self._asked(tuple[Outsider, ...], "GET", "/v1/outsiders" + self._simulated)

    def gpus(self) -> Sequence[GpuReport]:
        """Report every GPU; see `Client.gpus`."""
        return self._asked(tuple[GpuReport, ...], "GET", "/v1/gpus" + self._simulated)

    @property
    def _simulated(self) -> str:
        return "" if self._simulate is None else "?" + urlencode({"simulate": self._simulate}, errors="surrogateescape")

    def _asked(self, kind: type[T], method: str, path: str, body: Any = None) -> T:
        return wire.decode(kind, self._server.ask(method, path, body))


def _demultiplexed(answer: StreamedResponse) -> Iterator[tuple[str, bytes]]:
    """Read what Docker's multiplexed streams carry, as the server's route writes it."""
    while len(header := answer.read(_HEADER_BYTES)) == _HEADER_BYTES:
        yield _STREAMS[header[0]], answer.read(int.from_bytes(header[4:], "big"))


def _sharing_words(request: Request) -> tuple[object, ...]:
    return request.is_strict, request.sharing, request.oversubscribes, request.preempts, request.measures
