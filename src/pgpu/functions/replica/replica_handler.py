"""What the short way and the ordinary way have in common: from a request to the desk, and the function's own facts.

It refuses to read or write sockets.
"""

import re
import time
from typing import Any

from pgpu.functions.http.request_heads import request_id, timeout_seconds
from pgpu.functions.ipc.messages import Body, Reply
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.replica.request_queue import RequestQueue
from pgpu.functions.replica.worker_supervisor import WorkerSupervisor
from pgpu.functions.requests.pending_request import PendingRequest, ResponseSink
from pgpu.functions.requests.request_metrics import ReplicaMetrics

BAD_TIMEOUT = Refusal(400, "bad_timeout", "Request-Timeout is a positive number of seconds")


class ReplicaRequestHandler:
    """One function behind HTTP."""

    def __init__(self, name: str, desk: RequestQueue, keeper: WorkerSupervisor, metrics: ReplicaMetrics) -> None:
        self.name, self.desk, self.keeper, self.metrics = name, desk, keeper, metrics
        plain = re.escape(name)
        infer = rf"/v2/models/{plain}(?:/versions/[^/]+)?/infer"
        self._is_call_path = re.compile(rf"/|/functions/{plain}|{infer}").fullmatch

    def is_call(self, path: str) -> bool:
        """Say whether a POST to this path calls the function."""
        return path == "/" or self._is_call_path(path) is not None

    def ticket(self, method: str, path: str, query: str, headers: dict[str, str]) -> PendingRequest:
        """Begin a request; nothing is admitted yet and its deadline runs."""
        now = time.monotonic()
        declared = self.keeper.declaration.timeout_seconds
        known = timeout_seconds(headers, declared) or 0.0
        deadline = now + (known or declared)  # of a timeout that is none, for the body that comes before it is refused
        return PendingRequest(request_id(headers), method, path, query, headers, b"", None, now, deadline, known, None)

    def direct(self, scope: Any, headers: dict[str, str]) -> PendingRequest | None:
        """Begin a call on the short way."""
        return self.ticket(scope["method"], scope["path"], scope["query_string"].decode("latin-1"), headers)

    def abandon(self, ticket: PendingRequest) -> None:
        """Nobody waits for it any more."""
        self.desk.abandon(ticket)

    def warm(self, _ticket: PendingRequest) -> RequestQueue:
        """Return what answers: every request is the desk's."""
        return self.desk

    def submit(self, ticket: PendingRequest, body: Body, file: int | None, asker: ResponseSink) -> None:
        """Hand a request with its whole body to the desk."""
        ticket.body, ticket.file, ticket.asker = body, file, asker
        if ticket.timeout_seconds:
            self.desk.submit(ticket)
        else:
            asker.reply(self.refused(ticket, BAD_TIMEOUT), None)

    def refused(self, ticket: PendingRequest, refusal: Refusal) -> Reply:
        """Write a refusal."""
        return refusal.reply(ticket.request_id)
