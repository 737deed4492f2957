"""What the bodies of all requests under way, and kept answers that are being sent, may take: of each caller, of what each owner's functions are sent, and together.

A body whose length was announced has its place before any of it is read, so that of many at once some come to their end; one
without a length takes it as it comes. It refuses to hold a body, and to wait for room: who finds none comes again.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from pgpu.functions.http.request_bodies import TOO_LARGE, Receive
from pgpu.functions.protocols import Refusal
from pgpu.units import MIB

_PATIENCE_SECONDS = 30.0
"""With a client that sends nothing of its body."""

_LEAST_BYTES = 256 * MIB
_PART_OF_MEMORY = 4

_NO_ROOM = Refusal(
    503,
    "busy",
    "too much is being sent to functions already; come again",
    {"retry-after": "1", "connection": "close"},
)
_LATE = Refusal(408, "body_timeout", "the body did not come in time", {"connection": "close"})


class NotTakenError(Exception):
    """A body is not read to its end."""

    def __init__(self, refused: Refusal) -> None:
        super().__init__(refused.error)
        self.refused = refused


def room_bytes() -> int:
    """Return what bodies may take on this machine: a quarter of its memory."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(_LEAST_BYTES, memory_bytes // _PART_OF_MEMORY)


class BodyBudget:
    """The account of one gateway."""

    def __init__(self, most_bytes: int, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._most_bytes, self.patience_seconds = most_bytes, patience_seconds
        self._held_bytes: Counter[str] = Counter()

    def of(self, owner_uid: int | None, caller: str, receive: Receive) -> "BodyReservation":
        """Begin the body of a request, or of an answer that was kept.

        Args:
            owner_uid: Whose function is called: their functions together may be sent half of all; None: none is.
            caller: Who calls; each may send a quarter of all. Either may go over where this body is their only one.
            receive: ASGI's.
        """
        most = self._most_bytes
        owner = () if owner_uid is None else ((f"owner {owner_uid}", most // 2),)
        return BodyReservation(self, (("", most), *owner, (f"caller {caller}", most // 4)), receive)

    def take(self, accounts: Sequence[tuple[str, int]], more_bytes: int, own_bytes: int) -> None:
        """Hold more for one body.

        Raises:
            NotTakenError: There is no room.
        """
        if own_bytes + more_bytes > self._most_bytes:
            raise NotTakenError(TOO_LARGE)
        for index, (name, most_bytes) in enumerate(accounts):
            held = self._held_bytes[name]
            is_alone = index > 0 and held == own_bytes
            if held + more_bytes > most_bytes and not is_alone:
                raise NotTakenError(_NO_ROOM)
        self._change(accounts, more_bytes)

    def give_back(self, accounts: Sequence[tuple[str, int]], size_bytes: int) -> None:
        """Hold so much less."""
        self._change(accounts, -size_bytes)

    def _change(self, accounts: Sequence[tuple[str, int]], by_bytes: int) -> None:
        for name, _ in accounts:
            self._held_bytes[name] += by_bytes
            if not self._held_bytes[name]:
                del self._held_bytes[name]


class BodyReservation:
    """One request's body: a context that lasts as long as its request."""

    def __init__(self, uploads: BodyBudget, accounts: Sequence[tuple[str, int]], receive: Receive) -> None:
        self._uploads, self._accounts, self._receive = uploads, accounts, receive
        self._taken_bytes = self._read_bytes = 0
        self._is_whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._uploads.give_back(self._accounts, self._taken_bytes)

    def hold(self, size_bytes: int) -> None:
        """Take a place for so much, with what it has already.

        Raises:
            NotTakenError: There is none.
        """
        if size_bytes > self._taken_bytes:
            self._uploads.take(self._accounts, size_bytes - self._taken_bytes, self._taken_bytes)
            self._taken_bytes = size_bytes

    def announce(self, length: str) -> None:
        """Take a place for a body of this `Content-Length`.

        Raises:
            NotTakenError: There is none.
        """
        if length.isdecimal():
            self.hold(int(length))

    async def receive(self) -> Any:
        """Receive one more piece; see ASGI.

        Raises:
            NotTakenError: There is no room for it, or it does not come.
        """
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._uploads.patience_seconds):
                message = await self._receive()
        except TimeoutError:
            raise NotTakenError(_LATE) from None
        self._read_bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        self.hold(self._read_bytes)
        return message
