"""One request from its admission to its answer, whoever asked: an HTTP client or a gateway.

It refuses to know sockets: a `ResponseSink` is told what there is to say.
"""

from dataclasses import dataclass
from typing import Protocol

from pgpu.functions.ipc.messages import Body, Chunk, Reply


class ResponseSink(Protocol):
    """Who waits for a ticket's answer. Called on the event loop; never raises, never blocks."""

    def reply(self, reply: Reply, file: int | None) -> None:
        """Take the answer, or its head if chunks follow; a body's file is the asker's to close."""

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        """Take a piece of a stream; each is paid for with `ReplicaInfo.credit()` once it has left."""


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request that was admitted."""

    request_id: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: Body
    file: int | None
    """The body where it is large: the descriptor of a sealed memory file, open until the ticket is done."""

    admitted_seconds: float
    """On the monotonic clock, like all times here."""

    deadline_seconds: float
    timeout_seconds: float
    asker: ResponseSink | None
    """None once it was answered, or has left."""

    number: int = 0
    """In the worker that has it; 0 in the queue. Numbers grow in the order in which a worker gets calls."""

    attempts: int = 0
    """How often it was given to a worker."""

    is_streaming: bool = False
    """The head has left for the asker."""
