"""What stands behind HTTP: something that takes requests and answers them. A replica's own desk, or a gateway's many.

It refuses to know which of them.
"""

from typing import Any, Protocol

from pgpu.functions.ipc.messages import Body
from pgpu.functions.requests.pending_request import PendingRequest, ResponseSink


class ReplicaInfo(Protocol):
    """What answered a request, as far as its answer tells of it."""

    @property
    def hot_since_seconds(self) -> float:
        """Since when it takes calls, on the monotonic clock."""

    @property
    def load_seconds(self) -> float:
        """How long its handler's constructor took."""

    def credit(self, ticket: PendingRequest) -> None:
        """Let it send one more piece of this stream."""


class RequestHandler(Protocol):
    """Where a connection hands in its requests."""

    def is_call(self, path: str) -> bool:
        """Say whether a POST to this path is a call."""

    def direct(self, scope: Any, headers: dict[str, str]) -> PendingRequest | None:
        """Begin a call that goes the short way; None: it takes the ordinary one."""

    def submit(self, ticket: PendingRequest, body: Body, file: int | None, asker: ResponseSink) -> None:
        """Hand in a request with its whole body."""

    def abandon(self, ticket: PendingRequest) -> None:
        """Nobody waits for it any more."""

    def warm(self, ticket: PendingRequest) -> ReplicaInfo:
        """Return what answers a request, once it does."""
