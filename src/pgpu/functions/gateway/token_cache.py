"""What tokens are good for: asked of the server once each, however many show one, and a bounded number at a time.

What was good a moment ago is asked about apart, and remembered apart, so that a flood of made-up tokens is in its own way
alone. It refuses to keep a token: only its digest.
"""

import asyncio
import time
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pgpu.errors import CapacityError
from pgpu.functions.router.control_plane import ControlPlane
from pgpu.services.messages import Bearer

if TYPE_CHECKING:
    from pgpu.functions.gateway.gateway_access import Credentials

_REMEMBERED_SECONDS = 5.0
_MOST_REMEMBERED = 10_000
_MOST_WAITING = 64
"""Tokens in one lane that wait to be asked about; of one user over the socket, and of all callers over TCP, half as many."""

_THREADS = 2
"""Of each lane: the server has others to answer, too."""


class TokenCache:
    """Asks about tokens and remembers the answers for a moment."""

    def __init__(
        self,
        desk: ControlPlane,
        remembered_seconds: float = _REMEMBERED_SECONDS,
        most_remembered: int = _MOST_REMEMBERED,
    ) -> None:
        self._desk, self._seconds = desk, remembered_seconds
        self._good, self._bad = _Memory(most_remembered), _Memory(most_remembered)
        self._known_lane, self._new_lane = _Lane("good-tokens"), _Lane("new-tokens")
        self._asking: dict[bytes, asyncio.Task[None]] = {}

    def close(self) -> None:
        """End the threads."""
        self._known_lane.threads.shutdown(wait=False, cancel_futures=True)
        self._new_lane.threads.shutdown(wait=False, cancel_futures=True)

    def remembered(self, caller: "Credentials") -> Bearer | None:
        """Return what a caller's token is good for; None: they show none, or it was not asked for a while."""
        if caller.token is None:
            return None
        found = self._good.get(caller.digest) or self._bad.get(caller.digest)
        if found is None or time.monotonic() - found[1] > self._seconds:
            return None
        return found[0]

    async def learn(self, caller: "Credentials") -> None:
        """Ask what a caller's token is good for, unless that is known.

        Raises:
            CapacityError: Too many are being asked about.
            PgpuError: The server cannot say it now.
        """
        if caller.token is None or self.remembered(caller) is not None:
            return
        asking = self._asking.get(caller.digest)
        if asking is None:
            lane = self._new_lane if self._good.get(caller.digest) is None else self._known_lane
            lane.enter(caller.uid)
            asking = asyncio.get_running_loop().create_task(self._ask(lane, caller, caller.token))
            self._asking[caller.digest] = asking
            asking.add_done_callback(_look_at)
        await asyncio.shield(asking)

    async def _ask(self, lane: "_Lane", caller: "Credentials", token: str) -> None:
        try:
            bearer = await asyncio.get_running_loop().run_in_executor(lane.threads, self._desk.bearer, token)
        finally:
            lane.leave(caller.uid)
            del self._asking[caller.digest]
        kept, other = (self._bad, self._good) if bearer == Bearer() else (self._good, self._bad)
        kept.put(caller.digest, bearer)
        other.pop(caller.digest)


class _Lane:
    """Tokens that are being asked about."""

    def __init__(self, name: str) -> None:
        self.threads = ThreadPoolExecutor(_THREADS, name)
        self._waiting: Counter[int | None] = Counter()

    def enter(self, uid: int | None) -> None:
        if self._waiting[uid] >= _MOST_WAITING // 2 or self._waiting.total() >= _MOST_WAITING:
            raise CapacityError("too many tokens are being asked about")
        self._waiting[uid] += 1

    def leave(self, uid: int | None) -> None:
        self._waiting[uid] -= 1
        if not self._waiting[uid]:
            del self._waiting[uid]


class _Memory:
    """Answers by digest, and when they came; the oldest go first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[bytes, tuple[Bearer, float]] = OrderedDict()

    def get(self, digest: bytes) -> tuple[Bearer, float] | None:
        return self._known.get(digest)

    def put(self, digest: bytes, bearer: Bearer) -> None:
        self._known[digest] = (bearer, time.monotonic())
        self._known.move_to_end(digest)
        if len(self._known) > self._most:
            self._known.popitem(last=False)

    def pop(self, digest: bytes) -> None:
        self._known.pop(digest, None)


def _look_at(asking: "asyncio.Task[None]") -> None:
    """Everybody who waited may have left, and an error that nobody looks at is told as a bug."""
    if not asking.cancelled():
        asking.exception()
