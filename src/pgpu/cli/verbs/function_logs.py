"""`pgpu logs NAME` of a function: what its replicas write, line by line, each behind the id of its job.

Those that have ended are asked, too, the last few of them: why one did not start is in its log. Who follows hears of a new one
within a second. It refuses to keep anything: the logs are the jobs'.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pgpu.client import Client
from pgpu.errors import JobNotFoundError, PgpuError

_LOOK_SECONDS = 1.0
_MOST_ENDED = 10
"""Of the replicas that have ended the last ones; the others' logs are found by their jobs' ids."""

_MOST_HELD = 1000
"""Pieces that wait to be printed: a job that writes faster than the terminal reads is held up here."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Output of one replica."""

    job_id: str
    stream: str
    data: bytes


def serving(client: Client, name: str, *, include_final: bool = True) -> list[str]:
    """Return the ids of the jobs that serve a function, or did last, oldest first."""
    jobs = [report.job for report in client.jobs(include_final=include_final)]
    found = [job for job in jobs if job.spec.serves == name and not job.is_anonymous]
    ended = {job.id for job in found if job.state.is_final}
    left_out = {job.id for job in [job for job in found if job.id in ended][:-_MOST_ENDED]}
    return [job.id for job in found if job.id not in left_out]


def function_logs(client: Client, name: str, *, follow: bool, tail_lines: int | None) -> Iterator[Piece]:
    """Yield whole lines of a function's replicas; who follows ends it."""
    job_ids = serving(client, name)
    if follow:
        yield from _Following(client, name, tail_lines).pieces(job_ids)
        return
    for job_id in job_ids:
        yield from _lines(client, job_id, follow=False, tail_lines=tail_lines)


def _lines(client: Client, job_id: str, *, follow: bool, tail_lines: int | None) -> Iterator[Piece]:
    begun = {"stdout": b"", "stderr": b""}
    for stream, data in client.logs(job_id, follow=follow, tail_lines=tail_lines):
        *whole, begun[stream] = (begun[stream] + data).split(b"\n")
        yield from (Piece(job_id, stream, line + b"\n") for line in whole)
    yield from (Piece(job_id, stream, rest + b"\n") for stream, rest in begun.items() if rest)


class _Following:
    """One thread for each replica, since each is waited for; they end with this process."""

    def __init__(self, client: Client, name: str, tail_lines: int | None) -> None:
        self._client = client
        self._name = name
        self._tail_lines = tail_lines
        self._pieces: queue.Queue[Piece] = queue.Queue(_MOST_HELD)
        self._seen: set[str] = set()

    def pieces(self, job_ids: Sequence[str]) -> Iterator[Piece]:
        while True:
            for job_id in job_ids:
                self._follow(job_id)
            yield from self._until(time.monotonic() + _LOOK_SECONDS)
            job_ids = serving(self._client, self._name, include_final=False)

    def _until(self, deadline_seconds: float) -> Iterator[Piece]:
        while (left_seconds := deadline_seconds - time.monotonic()) > 0:
            with suppress(queue.Empty):
                yield self._pieces.get(timeout=left_seconds)

    def _follow(self, job_id: str) -> None:
        if job_id not in self._seen:
            self._seen.add(job_id)
            threading.Thread(target=self._read, args=(job_id,), daemon=True).start()

    def _read(self, job_id: str) -> None:
        try:
            for piece in _lines(self._client, job_id, follow=True, tail_lines=self._tail_lines):
                self._pieces.put(piece)
        except JobNotFoundError:
            pass  # It was never more than asked for.
        except PgpuError as exc:
            self._pieces.put(Piece(job_id, "stderr", f"pgpu: {exc}\n".encode()))
