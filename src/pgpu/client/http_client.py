"""The client of a server, over HTTP, for one user of the machine.

Most operations are rows of `route_table`; this module adds those with pages, waits and streams. Environment, umask and
limits of the submitting process are read here and sent along; the server asks the kernel for the user. A job's output comes
over a WebSocket: while a server restarts, the stream reconnects and resumes behind the last byte.
"""

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import urlencode

from pgpu.advising.contention import Constants
from pgpu.client.http_transport import HttpTransport, server_unavailable
from pgpu.client.job_stream import JobStream, require_grant
from pgpu.client.protocol import Client
from pgpu.client.remote_service import RemoteService, path_segment
from pgpu.engine.streams.records import Record
from pgpu.engine.submitter import this_process
from pgpu.errors import NodeError, PgpuError, RequestError, ServerUnavailableError
from pgpu.model import Bandwidths, Job, JobState, Request, Submission
from pgpu.services import wire
from pgpu.services.messages import (
    END_HEADER,
    MOST_WAITED,
    Ask,
    Cancel,
    JobReport,
    QueueReport,
    Signal,
    Stop,
    Wait,
    Window,
)
from pgpu.services.route_table import GPU_ROUTES, JOB_ROOT, JOB_ROUTES

if TYPE_CHECKING:
    from pgpu.client.websocket import WebSocketChannel

_WAIT_SECONDS = 50
_PAGE = 2500
"""A compromise: the server answers others between two pages, and computes the reasons of waiting jobs once for each page."""

_STREAMS = {1: "stdout", 2: "stderr"}
_HEADER_BYTES = 8
"""Of each piece of multiplexed output. Source: Docker Engine API, ContainerAttach."""

_FIRST_SECONDS = 0.2
"""Before a reason is requested, which costs the server a forecast: most jobs start at once."""

_SHORTEST_SECONDS = 2.0
_LONGEST_SECONDS = 16.0
"""Between two requests for a reason that has not changed for long."""

_RECONNECT_SECONDS = 0.02


class HttpClient(RemoteService, Client, routes=(*JOB_ROUTES, *GPU_ROUTES)):
    """The `Client` of one server."""

    def __init__(self, transport: HttpTransport, simulate: str | None = None) -> None:
        """Send nothing yet; `simulate` names simulated GPUs, None stands for the server's own."""
        RemoteService.__init__(self, transport, simulate)
        self._watches: dict[str, GrantWatch] = {}

    def submit_all(self, submissions: Sequence[Submission]) -> Sequence[Job]:
        """Accept several jobs, all or none; see `Client.submit_all`.

        Raises:
            NodeError: An older server skipped fields that it does not know; the jobs are cancelled.
        """
        # The key makes the request repeatable: after a lost answer it is sent again and returns the jobs of the first try.
        sender = this_process()
        key = secrets.token_hex(16)
        ask = Ask(tuple(submissions), key, sender.environment, sender.inherited, self._simulate)
        jobs = self.submit_batch(ask)
        # A server skips fields that it does not have. Jobs without these would run in a way, or at a time, that was not requested.
        wanted = {(*_binding_fields(each.request), each.begin_at_seconds, each.is_held) for each in submissions}
        got = {(*_binding_fields(job.request), job.begin_at_seconds, job.held_by_uid is not None) for job in jobs}
        if wanted != got:
            self._transport.ask("POST", f"{JOB_ROOT}/cancel", Cancel(tuple(job.id for job in jobs), 0.0))
            raise NodeError(
                "the server is older than this command and does not know one of its options; nothing was submitted",
                hint="update the server, or leave out --strict, --sharing, --oversubscribe, --preempt, --time-limit, --begin"
                " and --hold",
            )
        return jobs

    def dry_run(self, submissions: Sequence[Submission]) -> Sequence[QueueReport]:
        """Forecast a submission; see `Client.dry_run`."""
        sender = this_process()
        return self.rehearse_batch(Ask(tuple(submissions), None, sender.environment, sender.inherited, self._simulate))

    def attach(self, job_id: str, stdin: BinaryIO | None, stdout: BinaryIO, stderr: BinaryIO) -> Job:
        """Connect a terminal to a job until it ends; see `Client.attach`."""
        from pgpu.client.terminal import attach  # noqa: PLC0415 - most commands attach to nothing

        found = self.job(job_id).job
        stream = HttpJobStream(self._transport, found.id, holds_back=True)
        attach(stream, found.spec, stdin=stdin, stdout=stdout, stderr=stderr)
        return require_grant(self.job(found.id).job)

    def jobs(self, *, include_final: bool) -> Sequence[JobReport]:
        """List jobs; see `Client.jobs`."""
        pages = self._transport.pages(f"{JOB_ROOT}?include_final={str(include_final).lower()}&limit={_PAGE}")
        return [report for page in pages for report in wire.decode(tuple[JobReport, ...], page)]

    def still_waits(self, job_id: str, *, timeout_seconds: float) -> str | None:
        """Wait for a job's grant; see `Client.still_waits`."""
        if job_id not in self._watches:
            self._watches[job_id] = GrantWatch(partial(self._poll_grant, job_id))
        reason = self._watches[job_id].still_waits(timeout_seconds)
        if reason is None:
            del self._watches[job_id]
        return reason

    def _poll_grant(self, job_id: str, timeout_seconds: float, wants_reason: bool) -> Job:  # noqa: FBT001 - see `GrantWatch`
        query = urlencode({"timeout_seconds": timeout_seconds, "wants_reason": str(wants_reason).lower()})
        return wire.decode(Job, self._transport.ask("GET", job_path(job_id, f"/granted?{query}")))

    def wait(self, id_or_name: str) -> Job:
        """Wait for a job's end; see `Client.wait`."""
        while True:
            answer = self._transport.ask("GET", job_path(id_or_name, f"/wait?timeout_seconds={_WAIT_SECONDS}"))
            job = wire.decode(Job, answer)
            if job.state.is_final:
                return job
            id_or_name = job.id  # As above for names.

    def wait_all(self, job_ids: Sequence[str]) -> Iterator[Job]:
        """Wait for the ends of jobs; see `Client.wait_all`."""
        left = list(job_ids)
        while left:
            asked = Wait(tuple(left[:MOST_WAITED]), _WAIT_SECONDS)
            ended = wire.decode(tuple[Job, ...], self._transport.ask("POST", f"{JOB_ROOT}/wait", asked))
            yield from ended
            del left[: len(ended)]

    def logs(self, id_or_name: str, *, follow: bool, tail_lines: int | None = None) -> Iterator[tuple[str, bytes]]:
        """Read a job's output; see `Client.logs`."""
        # A name may belong to a newer job later: from here on the id is used.
        job_id = self.job(id_or_name).job.id
        stream = HttpJobStream(self._transport, job_id)
        if tail_lines is not None or not follow:
            query = "" if tail_lines is None else f"?tail_lines={tail_lines}"
            with self._transport.open_stream(job_path(job_id, f"/logs{query}")) as answer:
                # `follow` continues at the offset at which the stored lines end: nothing is missed or repeated.
                stream.reading.jump(int(answer.header(END_HEADER) or 0))
                while len(header := answer.read(_HEADER_BYTES)) == _HEADER_BYTES:
                    yield _STREAMS[header[0]], answer.read(int.from_bytes(header[4:], "big"))
        if follow:
            yield from ((record.stream, record.payload) for record in stream.records())

    def keep_constants(self, gpu_uuid: str, constants: Constants, bandwidths: Bandwidths) -> None:  # noqa: ARG002
        """Refuse; see `Client.keep_constants`."""
        self.check_calibration()

    def check_calibration(self) -> None:
        """Refuse; see `Client.check_calibration`."""
        raise RequestError(
            "these GPUs are a server's",
            hint="root calibrates them: PGPU_HOST=embedded pgpu calibrate, with its --state-dir",
        )


def _binding_fields(request: Request) -> tuple[object, ...]:
    sharing = (request.is_strict, request.sharing, request.oversubscribes, request.preempts, request.measures)
    return (*sharing, request.time_limit_seconds, request.on_time_limit)


class GrantWatch:
    """Waits for one job's grant in a daemon thread: one request at a time, however often `still_waits` is called.

    The server answers as soon as the job is granted, or after a timeout with the current reason.
    """

    def __init__(self, ask: Callable[[float, bool], Job]) -> None:
        """Start the thread.

        Args:
            ask: Returns the job once it is granted or a timeout in seconds is over, with its reason if the flag is set.
        """
        self._ask = ask
        self._is_over = threading.Event()
        self._error: PgpuError | None = None
        self._reason = ""
        threading.Thread(target=self._follow, daemon=True).start()

    def still_waits(self, timeout_seconds: float) -> str | None:
        """Block until the job is granted or the timeout is over; see `Client.still_waits`.

        Raises:
            PgpuError: The server refused, or cannot be reached.
        """
        if not self._is_over.wait(timeout_seconds):
            return self._reason
        if self._error is not None:
            raise self._error
        return None

    def _follow(self) -> None:
        try:
            job = self._ask(_FIRST_SECONDS, False)  # noqa: FBT003 - a callable's arguments have no names
            pause_seconds = 0.0
            while job.state is JobState.WAITING:
                job = self._ask(pause_seconds, True)  # noqa: FBT003 - likewise
                # Poll an unchanged reason at doubling intervals, a new one at the shortest.
                is_old = job.reason == self._reason
                pause_seconds = min(max(2 * pause_seconds, _SHORTEST_SECONDS), _LONGEST_SECONDS)
                pause_seconds = pause_seconds if is_old else _SHORTEST_SECONDS
                self._reason = job.reason or ""
        except PgpuError as exc:
            self._error = exc
        finally:
            self._is_over.set()


def job_path(id_or_name: str, rest: str = "") -> str:
    """Return the path of a job's route."""
    return f"{JOB_ROOT}/{path_segment(id_or_name)}{rest}"


class HttpJobStream(JobStream):
    """Follows one job until it is final; see `JobStream`."""

    def __init__(self, transport: HttpTransport, job_id: str, *, holds_back: bool = False) -> None:
        super().__init__(0, holds_back=holds_back)
        self._transport = transport
        self._job_id = job_id

    def records(self) -> Iterator[Record]:
        """Yield output until the job is final and all of it was yielded.

        Raises:
            ServerUnavailableError: The server has been away too long; the job continues.
        """
        while True:
            channel = self._open_channel()
            try:
                if (yield from self.read_connection(partial(self._receive, channel))):
                    return
            finally:
                channel.close()
            self.rest(_RECONNECT_SECONDS)

    def _open_channel(self) -> "WebSocketChannel":
        deadline = self._transport.retry_deadline()
        while True:
            try:
                return self._open_channel_once()
            except ServerUnavailableError as exc:
                deadline.pause_or_raise(exc, self.rest)

    def _open_channel_once(self) -> "WebSocketChannel":
        from pgpu.client.websocket import WebSocketChannel  # noqa: PLC0415 - most commands open no WebSocket

        connection = self._transport.connect()
        try:
            channel = WebSocketChannel(connection, job_path(self._job_id, "/attach"), self._transport.headers)
            channel.sendall(self.greeting())
        except OSError as exc:
            connection.close()
            raise server_unavailable(self._transport.address, exc) from exc
        except BaseException:  # KeyboardInterrupt, too: no other reference would close it.
            connection.close()
            raise
        self._transport.note_answer()
        self.on_connected(channel)
        return channel

    def _receive(self, channel: "WebSocketChannel") -> Sequence[bytes] | None:
        if not channel.is_ready:
            self.rest_until_readable(channel)
        return channel.receive()

    def state(self) -> JobState:
        """See `JobStream`."""
        return wire.decode(JobReport, self._transport.ask("GET", job_path(self._job_id))).job.state

    def cancel(self) -> None:
        """See `JobStream`."""
        self._transport.ask("POST", job_path(self._job_id, "/stop"), Stop(0.0))

    def send_signal(self, number: int) -> None:
        """See `JobStream`."""
        self._transport.ask("POST", job_path(self._job_id, "/signal"), Signal(number), is_repeatable=False)

    def send_window(self, columns: int, rows: int) -> None:
        """See `JobStream`."""
        self._transport.ask("POST", job_path(self._job_id, "/window"), Window(columns, rows))
