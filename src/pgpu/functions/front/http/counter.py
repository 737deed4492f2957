"""What stands behind HTTP: something that takes requests and answers them. A replica's own desk, or a gateway's many.

It refuses to know which of them.
"""

from typing import Any, Protocol

from pgpu.functions.calls.messages import Body
from pgpu.functions.front.tickets import Asker, Ticket


class Warm(Protocol):
    """What answered a request, as far as its answer tells of it."""

    @property
    def hot_since_seconds(self) -> float:
        """Since when it takes calls, on the monotonic clock."""

    @property
    def load_seconds(self) -> float:
        """How long its handler's constructor took."""

    def credit(self, ticket: Ticket) -> None:
        """Let it send one more piece of this stream."""


class Counter(Protocol):
    """Where a connection hands in its requests."""

    def is_call(self, path: str) -> bool:
        """Say whether a POST to this path is a call."""

    def direct(self, scope: Any, headers: dict[str, str]) -> Ticket | None:
        """Begin a call that goes the short way; None: it takes the ordinary one."""

    def submit(self, ticket: Ticket, body: Body, file: int | None, asker: Asker) -> None:
        """Hand in a request with its whole body."""

    def abandon(self, ticket: Ticket) -> None:
        """Nobody waits for it any more."""

    def warm(self, ticket: Ticket) -> Warm:
        """Return what answers a request, once it does."""
