"""The books of kept calls: given to their functions a few at a time, finished, and found again after this process's end.

A call that was only waiting is given again; one that a replica may have begun is given again where the function is
idempotent, and answered 502 where it is not. It refuses to hold bodies: those that wait lie in the store.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pgpu.functions.async_calls.async_call_database import AsyncCall, AsyncCallDatabase, AsyncCallRecord, StoredReply
from pgpu.functions.ipc.memory_files import map_body, split_body
from pgpu.functions.ipc.messages import Body, Chunk, Reply
from pgpu.functions.protocols import Refusal
from pgpu.functions.replica.worker_supervisor import log
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.routed_request import RoutedRequest
from pgpu.functions.router.router_table import RouterTable

_LONGEST_WAIT_SECONDS = 86400.0
_AGAIN_SECONDS = 1.0
_KEPT_SECONDS = 86400.0
_SWEEP_SECONDS = 600.0
_MOST_REPLY_BYTES = 64 << 20
_MOST_HELD_BYTES = 1 << 30
"""Of one function, answers included: the disk is everybody's."""

_MOST_OWNER_BYTES = 4 << 30
_MOST_ALL_BYTES = 16 << 30

MOST_WAITING = 10_000
"""Of one function."""

_NOT_NOW = {429, 503}
_T = TypeVar("_T")

_INTERRUPTED = Refusal(502, "interrupted", "the gateway ended while a replica may have served this call")
_TOO_LARGE = Refusal(502, "reply_too_large", "the answer is larger than what is kept")
_BROKEN = Refusal(502, "worker_died", "the answer broke off")


class AsyncCallStore:
    """All kept calls of one gateway; each is of one function, told by its identity, and never of the next of its name."""

    def __init__(
        self,
        store: AsyncCallDatabase,
        halls: RouterTable,
        most_owner_bytes: int = _MOST_OWNER_BYTES,
        most_all_bytes: int = _MOST_ALL_BYTES,
    ) -> None:
        self._store, self._halls = store, halls
        self._most_owner_bytes, self._most_all_bytes = most_owner_bytes, most_all_bytes
        self._thread = ThreadPoolExecutor(1, "calls")
        self._waiting: dict[str, deque[str]] = defaultdict(deque)
        self._running: dict[str, RoutedRequest] = {}
        self._given: dict[str, int] = defaultdict(int)
        self._finished: dict[str, asyncio.Event] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        halls.on_begun, halls.on_closed = self._begun, self._function_gone

    async def open(self) -> None:
        """Take up what an earlier gateway left, but of functions that are no more."""
        await self._do(self._store.forget_functions_but, [hall.function.identity for hall in self._halls])
        left, begun = await self._do(self._store.left)
        for call_id, function in left:
            hall = self._halls.of(function)
            is_harmless = call_id not in begun or (hall is not None and hall.declaration.is_idempotent)
            if is_harmless:
                self._waiting[function].append(call_id)
            else:
                await self._keep_refusal(call_id, function, _INTERRUPTED)
        for function in [*self._waiting]:
            self._pump(function)
        self._sweep()

    def close(self) -> None:
        """Write no more."""
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._store.close()

    def is_full(self, function: str) -> bool:
        """Say whether as many calls of a function are kept as may be."""
        is_much = self._store.held_bytes(function) >= _MOST_HELD_BYTES or self._holds_much(function)
        return is_much or len(self._waiting[function]) >= MOST_WAITING

    async def add(self, call: AsyncCall) -> AsyncCallRecord | None:
        """Keep a call and give it to its function; what was there under its id already, is returned and not given again."""
        known = await self._do(self._store.add, call)
        if known is None:
            self._waiting[call.function].append(call.id)
            self._pump(call.function)
        return known

    async def get(self, call_id: str) -> AsyncCallRecord | None:
        """Return what is known of a call."""
        return await self._do(self._store.get, call_id)

    def state(self, call_id: str) -> str:
        """Say what a call without an answer does: `queued` or `running`."""
        errand = self._running.get(call_id)
        return "running" if errand is not None and errand.link is not None else "queued"

    def running(self, call_id: str) -> RoutedRequest | None:
        """Return the errand of a call that was given to its function; None: it waits, or has its answer."""
        return self._running.get(call_id)

    async def forget(self, call_id: str) -> bool:
        """Cancel a call, and forget its answer; False if there was none."""
        errand = self._running.pop(call_id, None)
        if errand is not None and errand.hall is not None:
            errand.hall.abandon(errand)
            self._release(errand.hall.function.identity)
        is_known = await self._do(self._store.forget, call_id)
        self._tell_waiting(call_id)
        return is_known

    async def finished(self, call_id: str, timeout_seconds: float) -> AsyncCallRecord | None:
        """Wait until a call has its answer, at most so long, and return what is known of it then."""
        event = self._finished.setdefault(call_id, asyncio.Event())
        known = await self.get(call_id)
        if known is None or known.reply is not None:
            self._finished.pop(call_id, None)
            return known
        try:
            async with asyncio.timeout(timeout_seconds):
                await event.wait()
        except TimeoutError:
            return known
        return await self.get(call_id)

    def _function_gone(self, function: str) -> None:
        """Forget the calls of a function that was removed; those that it had were answered just before."""
        self._given.pop(function, None)
        self._start(self._forget_function(function, self._waiting.pop(function, deque())))

    async def _forget_function(self, function: str, waiting: Iterable[str]) -> None:
        await self._do(self._store.forget_function, function)
        for call_id in waiting:
            self._tell_waiting(call_id)

    def _begun(self, errand: RoutedRequest) -> None:
        if isinstance(errand.asker, _Keeping):
            self._store.begin(errand.asker.call_id)

    def _pump(self, function: str) -> None:
        """Give as many calls of a function as it may run at a time, and no more: the rest waits on the disk."""
        hall, waiting = self._halls.of(function), self._waiting.get(function)
        if not waiting:
            return
        if hall is None:
            self._function_gone(function)
            return
        room = hall.slots
        while waiting and self._given[function] < room:
            self._given[function] += 1
            self._start(self._give(hall, waiting.popleft()))

    async def _give(self, hall: FunctionRouter, call_id: str) -> None:
        call = await self._do(self._store.asked, call_id)
        if call is None:
            self._release(hall.function.identity)
            return
        now, seconds = time.monotonic(), hall.declaration.timeout_seconds
        body, file = split_body(call.body)
        errand = RoutedRequest(
            call_id, call.method, call.path, call.query, call.headers, body, file, now, now + _LONGEST_WAIT_SECONDS,
            seconds, _Keeping(self, call_id, hall.function.identity), hall=hall,
        )  # fmt: skip
        self._running[call_id] = errand
        hall.submit(errand)

    def take(self, call_id: str, function: str, reply: Reply, body: Body) -> None:
        """Take an answer; one that only says `not now` has the call given again."""
        if self._running.pop(call_id, None) is None:
            return
        if reply.status in _NOT_NOW and not reply.started_seconds:
            self._waiting[function].appendleft(call_id)
            self._loop.call_later(_AGAIN_SECONDS, self._release, function)
        else:
            kept = StoredReply(reply.status, reply.headers, bytes(body))
            self._start(self._keep(call_id, function, kept))
            self._release(function)

    async def _keep_refusal(self, call_id: str, function: str, refused: Refusal) -> None:
        reply = refused.reply(call_id)
        await self._keep(call_id, function, StoredReply(reply.status, reply.headers, bytes(reply.body)))

    async def _keep(self, call_id: str, function: str, reply: StoredReply) -> None:
        if self._halls.of(function) is None:
            await self._do(self._store.forget, call_id)
        else:
            await self._do(self._store.finish, call_id, reply)
        self._tell_waiting(call_id)

    def _tell_waiting(self, call_id: str) -> None:
        if (event := self._finished.pop(call_id, None)) is not None:
            event.set()

    def _release(self, function: str) -> None:
        if function in self._given:
            self._given[function] -= 1
        self._pump(function)

    def _holds_much(self, function: str) -> bool:
        """Say whether a function's owner, or everybody together, has as much kept as may be."""
        hall = self._halls.of(function)
        names = [
            each.function.identity
            for each in self._halls
            if hall and each.function.owner_uid == hall.function.owner_uid
        ]
        is_owners = sum(map(self._store.held_bytes, names)) >= self._most_owner_bytes
        return is_owners or self._store.all_held_bytes() >= self._most_all_bytes

    def _sweep(self) -> None:
        self._start(self._swept())
        self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    async def _swept(self) -> None:
        await self._do(self._store.forget_before, time.time() - _KEPT_SECONDS)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log(f"a kept call is left for the next start: {error!r}")

    async def _do(self, act: Callable[..., _T], *words: Any) -> _T:
        return await self._loop.run_in_executor(self._thread, act, *words)


class _Keeping:
    """Waits for the answer of a kept call, stream or not."""

    def __init__(self, books: AsyncCallStore, call_id: str, function: str) -> None:
        self.call_id = call_id
        self._books, self._function = books, function
        self._head: Reply | None = None
        self._pieces = bytearray()

    def reply(self, reply: Reply, file: int | None) -> None:
        """Take it whole, or its head."""
        body = reply.body if file is None else map_body(file)
        if not reply.is_last:
            self._head = reply
        elif len(body) > _MOST_REPLY_BYTES:
            self._refuse(_TOO_LARGE)
        else:
            self._books.take(self.call_id, self._function, reply, body)

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        """Collect it."""
        self._pieces += chunk.body if file is None else map_body(file)
        errand = self._books.running(self.call_id)
        if chunk.is_broken or len(self._pieces) > _MOST_REPLY_BYTES:
            if errand is not None and errand.hall is not None:
                errand.hall.abandon(errand)
            self._refuse(_BROKEN if chunk.is_broken else _TOO_LARGE)
        elif chunk.is_last and self._head is not None:
            self._books.take(self.call_id, self._function, self._head, self._pieces)
        elif errand is not None and errand.link is not None:
            errand.link.credit(errand)

    def _refuse(self, refused: Refusal) -> None:
        reply = refused.reply(self.call_id)
        self._books.take(self.call_id, self._function, reply, reply.body)
