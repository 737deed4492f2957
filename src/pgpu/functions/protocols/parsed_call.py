"""A call that was understood: the handler's arguments, and how the caller wants its answer.

It refuses to hold the caller's body: a big one is let go as soon as its arguments are read.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from pgpu.functions.ipc.messages import Reply
from pgpu.functions.protocols.call_refusal import Refusal


class StreamWriter(Protocol):
    """How the pieces of a stream are written."""

    @property
    def headers(self) -> dict[str, str]:
        """Of the reply's head; never change it."""

    @property
    def end(self) -> bytes:
        """What follows the last piece; may be empty."""

    def piece(self, item: Any) -> bytes:
        """Write one piece.

        Raises:
            RefusedError: The piece cannot be written; the stream is broken then.
        """

    def broken(self, refusal: Refusal, request_id: str) -> bytes:
        """Write what tells the reader that no more comes since the handler failed; may be empty."""


class ResultWriter(Protocol):
    """How an answer is written."""

    @property
    def streaming(self) -> StreamWriter | None:
        """How pieces are written; None: the caller takes no stream, so its pieces are collected to one list."""

    def write(self, result: Any) -> Reply | Refusal:
        """Write a result; a refusal where it cannot be written, with the reason in `detail`."""


class ParsedCall(msgspec.Struct, frozen=True):
    """What a call asks of the handler."""

    values: tuple[Any, ...]
    """Arguments in the order of the signature's parameters; after them the others, a dict, if it takes them."""

    form: ResultWriter
    """How the answer is written."""

    headers: Mapping[str, str]
    """For the context: the request's, and for an event in one body its attributes as `ce-…`."""
