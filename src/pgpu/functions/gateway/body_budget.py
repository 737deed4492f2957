"""The memory budget for request bodies and for stored answers that are being sent: per caller, per owner, and in total.

A body with a `Content-Length` reserves its size before it is read, so that of many bodies at once some can complete; one
without grows its reservation as it arrives. A request that finds no room is refused at once.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from pgpu.functions.http.asgi_calls import TOO_LARGE, Receive
from pgpu.functions.protocols import Refusal
from pgpu.units import MIB

_PATIENCE_SECONDS = 30.0
"""Time in which a client must send the next piece of its body."""

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
    """A body is refused before its end."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


def room_bytes() -> int:
    """Return the budget of this machine: a quarter of its memory."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(_LEAST_BYTES, memory_bytes // _PART_OF_MEMORY)


class BodyBudget:
    """The budget of one gateway."""

    def __init__(self, most_bytes: int, patience_seconds: float = _PATIENCE_SECONDS) -> None:
        self._most_bytes, self.patience_seconds = most_bytes, patience_seconds
        self._held_bytes: Counter[str] = Counter()

    def reserve(self, owner_uid: int | None, caller: str, receive: Receive) -> "BodyReservation":
        """Begin the reservation of a request's body, or of a stored answer.

        Args:
            owner_uid: Owner of the called function: the functions of one owner may use half of the budget; None: no function.
            caller: Each caller may use a quarter. Owner and caller may exceed their part if this is their only body.
            receive: ASGI's.
        """
        most = self._most_bytes
        owner = () if owner_uid is None else ((f"owner {owner_uid}", most // 2),)
        return BodyReservation(self, (("", most), *owner, (f"caller {caller}", most // 4)), receive)

    def take(self, accounts: Sequence[tuple[str, int]], more_bytes: int, own_bytes: int) -> None:
        """Enlarge a reservation.

        Raises:
            NotTakenError: An account has no room.
        """
        if own_bytes + more_bytes > self._most_bytes:
            raise NotTakenError(TOO_LARGE)
        for index, (name, most_bytes) in enumerate(accounts):
            held = self._held_bytes[name]
            # The total (index 0) has no exception: it protects the machine's memory.
            is_alone = index > 0 and held == own_bytes
            if held + more_bytes > most_bytes and not is_alone:
                raise NotTakenError(_NO_ROOM)
        self.change(accounts, more_bytes)

    def change(self, accounts: Sequence[tuple[str, int]], by_bytes: int) -> None:
        """Add to all accounts of a reservation; a negative number frees room."""
        for name, _ in accounts:
            self._held_bytes[name] += by_bytes
            if not self._held_bytes[name]:
                del self._held_bytes[name]


class BodyReservation:
    """One body's reservation: a context that lasts as long as its request."""

    def __init__(self, budget: BodyBudget, accounts: Sequence[tuple[str, int]], receive: Receive) -> None:
        self._budget, self._accounts, self._receive = budget, accounts, receive
        self._taken_bytes = self._read_bytes = 0
        self._is_whole = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._budget.change(self._accounts, -self._taken_bytes)

    def hold(self, size_bytes: int) -> None:
        """Enlarge the reservation to a size.

        Raises:
            NotTakenError: There is no room.
        """
        if size_bytes > self._taken_bytes:
            self._budget.take(self._accounts, size_bytes - self._taken_bytes, self._taken_bytes)
            self._taken_bytes = size_bytes

    def announce(self, length: str) -> None:
        """Reserve the size in a `Content-Length`.

        Raises:
            NotTakenError: There is no room.
        """
        if length.isdecimal():
            self.hold(int(length))

    async def receive(self) -> Any:
        """ASGI's `receive` with a limit of time and size.

        Raises:
            NotTakenError: There is no room for the next piece, or it did not arrive in time.
        """
        if self._is_whole:
            return await self._receive()
        try:
            async with asyncio.timeout(self._budget.patience_seconds):
                message = await self._receive()
        except TimeoutError:
            raise NotTakenError(_LATE) from None
        self._read_bytes += len(message.get("body", b""))
        self._is_whole = not message.get("more_body", False)
        self.hold(self._read_bytes)
        return message
