"""What an HTTP connection calls, a replica's queue or a gateway's router, and how both read a request's head."""

import itertools
import os
import re
import time
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from pgpu.functions.ipc.call_messages import Body
from pgpu.functions.protocols.call_refusal import Refusal
from pgpu.functions.requests.request_queue import PendingRequest, ResponseSink

BAD_TIMEOUT = Refusal(400, "bad_timeout", "Request-Timeout is a positive number of seconds")
NOT_FOUND = Refusal(404, "not_found", "there is nothing at this path")

_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_prefix = os.urandom(6).hex()
_count = itertools.count(1)


class ReplicaInfo(Protocol):
    """The replica that answers a request, as far as the answer's headers report it."""

    @property
    def hot_since_seconds(self) -> float:
        """When it began to take calls, on the monotonic clock."""

    @property
    def load_seconds(self) -> float:
        """Duration of its handler's construction."""

    def credit(self, request: PendingRequest) -> None:
        """Allow one more piece of this stream."""


class RequestHandler(Protocol):
    """Takes the requests of HTTP connections."""

    def is_call(self, path: str) -> bool:
        """Whether a POST to this path is a call."""

    def accept_direct(self, scope: Any, headers: dict[str, str]) -> PendingRequest | None:
        """Begin a call that goes the direct way; None: it goes through the ASGI application."""

    def submit(self, request: PendingRequest, body: Body, file: int | None, sink: ResponseSink) -> None:
        """Submit a request with its whole body."""

    def abandon(self, request: PendingRequest) -> None:
        """Cancel a request after its caller has left."""

    def replica_of(self, request: PendingRequest) -> ReplicaInfo:
        """Return the replica that answers a request."""


class RequestTimes(NamedTuple):
    """Times of one request, on the monotonic clock."""

    admitted_seconds: float
    deadline_seconds: float
    timeout_seconds: float
    """0: `Request-Timeout` is invalid; the deadline is the function's, for the body that is read before the refusal."""


def request_times(headers: dict[str, str], declared_seconds: float) -> RequestTimes:
    """Return the times of a request that begins now, with the function's own timeout as the upper limit."""
    now = time.monotonic()
    known = timeout_seconds(headers, declared_seconds) or 0.0
    return RequestTimes(now, now + (known or declared_seconds), known)


def timeout_seconds(headers: dict[str, str], declared_seconds: float) -> float | None:
    """Return `Request-Timeout`, at most the function's own timeout; None: it is not a positive number of seconds."""
    given = headers.get("request-timeout")
    if given is None:
        return declared_seconds
    try:
        seconds = float(given)
    except ValueError:
        return None
    return min(seconds, declared_seconds) if seconds > 0 else None


def request_id(headers: dict[str, str]) -> str:
    """Return the caller's `X-Request-Id` if it is safe in a log and in a header, else a new id."""
    given = headers.get("x-request-id")
    return given if given is not None and _ID.fullmatch(given) else f"{_prefix}-{next(_count):x}"


def plain_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Decode headers; names are in lower case already, several of one name are joined as HTTP allows."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers
