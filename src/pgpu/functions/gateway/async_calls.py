"""The asynchronous calls of a gateway: sent to their functions a few at a time, answered, and recovered after a restart.

After a restart a call that only waited is sent again; one that a replica may have begun is sent again if its function is
idempotent, and answered 502 if not. The bodies of calls that wait are only in the database.
"""

import asyncio
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from pgpu.functions.gateway.async_call_database import AsyncCall, AsyncCallDatabase, AsyncCallRecord, StoredReply
from pgpu.functions.ipc.call_messages import Body, Chunk, Reply
from pgpu.functions.ipc.memory_files import map_body, split_body
from pgpu.functions.protocols import Refusal
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.functions.router.replica_connection import RoutedRequest
from pgpu.functions.router.router_table import RouterTable

_LONGEST_WAIT_SECONDS = 86400.0
_RETRY_SECONDS = 1.0
_KEPT_SECONDS = 86400.0
_SWEEP_SECONDS = 600.0
_MOST_REPLY_BYTES = 64 << 20
_MOST_HELD_BYTES = 1 << 30
"""Of one function, answers included; all functions share the disk."""

_MOST_OWNER_BYTES = 4 << 30
_MOST_ALL_BYTES = 16 << 30

MOST_WAITING = 10_000
"""Of one function."""

_NOT_NOW = {429, 503}
_T = TypeVar("_T")
_log = logging.getLogger(__name__)

_INTERRUPTED = Refusal(502, "interrupted", "the gateway ended while a replica may have served this call")
_TOO_LARGE = Refusal(502, "reply_too_large", "the answer is larger than what is kept")
_BROKEN = Refusal(502, "worker_died", "the answer broke off")


class AsyncCallStore:
    """All asynchronous calls of one gateway; on the event loop only, with the database in a thread of its own.

    A call belongs to one function by its identity, never to a later function of the same name.
    """

    def __init__(
        self,
        database: AsyncCallDatabase,
        routers: RouterTable,
        most_owner_bytes: int = _MOST_OWNER_BYTES,
        most_all_bytes: int = _MOST_ALL_BYTES,
    ) -> None:
        self._database, self._routers = database, routers
        self._most_owner_bytes, self._most_all_bytes = most_owner_bytes, most_all_bytes
        self._thread = ThreadPoolExecutor(1, "calls")
        self._waiting: dict[str, deque[str]] = defaultdict(deque)
        self._running: dict[str, RoutedRequest] = {}
        self._sent: dict[str, int] = defaultdict(int)
        self._finished: dict[str, asyncio.Event] = {}
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        routers.on_send, routers.on_closed = self._on_send, self._on_closed

    async def open(self) -> None:
        """Recover the calls of an earlier gateway; drop those of functions that were removed."""
        await self._in_thread(
            self._database.forget_functions_but, [router.function.identity for router in self._routers]
        )
        unfinished, begun = await self._in_thread(self._database.recover)
        for call_id, function in unfinished:
            router = self._routers.of(function)
            if call_id not in begun or (router is not None and router.declaration.is_idempotent):
                self._waiting[function].append(call_id)
            else:
                reply = _INTERRUPTED.reply(call_id)
                await self._finish(call_id, function, StoredReply(reply.status, reply.headers, bytes(reply.body)))
        for function in [*self._waiting]:
            self._pump(function)
        self._sweep()

    def close(self) -> None:
        """Close the database after its current operation."""
        for task in self._tasks:
            task.cancel()
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._database.close()

    def is_full(self, function: str) -> bool:
        """Whether a function, its owner or all functions together have as many calls as allowed."""
        if self._database.held_bytes(function) >= _MOST_HELD_BYTES or len(self._waiting[function]) >= MOST_WAITING:
            return True
        router = self._routers.of(function)
        owned = [
            each.function.identity
            for each in self._routers
            if router and each.function.owner_uid == router.function.owner_uid
        ]
        is_owner_full = sum(map(self._database.held_bytes, owned)) >= self._most_owner_bytes
        return is_owner_full or self._database.all_held_bytes() >= self._most_all_bytes

    async def add(self, call: AsyncCall) -> AsyncCallRecord | None:
        """Store a call and send it to its function; a call that is stored under its id already is returned instead."""
        known = await self._in_thread(self._database.add, call)
        if known is None:
            self._waiting[call.function].append(call.id)
            self._pump(call.function)
        return known

    async def get(self, call_id: str) -> AsyncCallRecord | None:
        return await self._in_thread(self._database.get, call_id)

    def state(self, call_id: str) -> str:
        """Return the state of a call without an answer: `queued` or `running`."""
        request = self._running.get(call_id)
        return "running" if request is not None and request.replica is not None else "queued"

    def running(self, call_id: str) -> RoutedRequest | None:
        """Return the request of a call that was sent to its function; None: it waits, or has its answer."""
        return self._running.get(call_id)

    async def forget(self, call_id: str) -> bool:
        """Cancel a call, and delete it with its answer; False: there was none."""
        request = self._running.pop(call_id, None)
        if request is not None and request.router is not None:
            request.router.abandon(request)
            self._release(request.router.function.identity)
        is_known = await self._in_thread(self._database.forget, call_id)
        self._notify_finished(call_id)
        return is_known

    async def wait_finished(self, call_id: str, timeout_seconds: float) -> AsyncCallRecord | None:
        """Wait until a call has its answer or the time is over, and return the call."""
        # Registered before the database is read: an answer in between sets the event.
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

    def on_answer(self, call_id: str, function: str, reply: Reply, body: Body) -> None:
        """Store an answer; after a refusal that no worker has seen send the call again."""
        # The call was cancelled, or has its answer already.
        if self._running.pop(call_id, None) is None:
            return
        if reply.status in _NOT_NOW and not reply.started_seconds:
            # The slot stays taken during the pause: a busy function is not flooded with retries.
            self._waiting[function].appendleft(call_id)
            self._loop.call_later(_RETRY_SECONDS, self._release, function)
        else:
            self._start(self._finish(call_id, function, StoredReply(reply.status, reply.headers, bytes(body))))
            self._release(function)

    def _on_send(self, request: RoutedRequest) -> None:
        if isinstance(request.sink, _StoreSink):
            self._database.begin(request.sink.call_id)

    def _on_closed(self, function: str) -> None:
        """Delete the calls of a removed function; those that it had were answered just before."""
        # Late releases of this function's calls are ignored without an entry here.
        self._sent.pop(function, None)
        self._start(self._forget_function(function, self._waiting.pop(function, deque())))

    async def _forget_function(self, function: str, waiting: Iterable[str]) -> None:
        await self._in_thread(self._database.forget_function, function)
        for call_id in waiting:
            self._notify_finished(call_id)

    def _pump(self, function: str) -> None:
        """Send as many calls of a function as it may run at a time; the others wait on disk."""
        router, waiting = self._routers.of(function), self._waiting.get(function)
        if not waiting:
            return
        if router is None:
            self._on_closed(function)
            return
        slots = router.slots
        while waiting and self._sent[function] < slots:
            self._sent[function] += 1
            self._start(self._send(router, waiting.popleft()))

    async def _send(self, router: FunctionRouter, call_id: str) -> None:
        call = await self._in_thread(self._database.get_unfinished, call_id)
        if call is None:
            self._release(router.function.identity)
            return
        now, seconds = time.monotonic(), router.declaration.timeout_seconds
        body, file = split_body(call.body)
        request = RoutedRequest(
            call_id, call.method, call.path, call.query, call.headers, body, file, now, now + _LONGEST_WAIT_SECONDS,
            seconds, _StoreSink(self, call_id, router.function.identity), router=router,
        )  # fmt: skip
        self._running[call_id] = request
        router.submit(request)

    async def _finish(self, call_id: str, function: str, reply: StoredReply) -> None:
        if self._routers.of(function) is None:
            await self._in_thread(self._database.forget, call_id)
        else:
            await self._in_thread(self._database.finish, call_id, reply)
        self._notify_finished(call_id)

    def _notify_finished(self, call_id: str) -> None:
        if (event := self._finished.pop(call_id, None)) is not None:
            event.set()

    def _release(self, function: str) -> None:
        if function in self._sent:
            self._sent[function] -= 1
        self._pump(function)

    def _sweep(self) -> None:
        self._start(self._in_thread(self._database.forget_before, time.time() - _KEPT_SECONDS))
        self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _start(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("an asynchronous call is left for the next start: %r", error)

    async def _in_thread(self, operation: Callable[..., _T], *arguments: Any) -> _T:
        return await self._loop.run_in_executor(self._thread, operation, *arguments)


class _StoreSink:
    """The sink of an asynchronous call; collects a stream."""

    def __init__(self, store: AsyncCallStore, call_id: str, function: str) -> None:
        self.call_id = call_id
        self._store, self._function = store, function
        self._head: Reply | None = None
        self._pieces = bytearray()

    def reply(self, reply: Reply, file: int | None) -> None:
        body = reply.body if file is None else map_body(file)
        if not reply.is_last:
            self._head = reply
        elif len(body) > _MOST_REPLY_BYTES:
            self._refuse(_TOO_LARGE)
        else:
            self._store.on_answer(self.call_id, self._function, reply, body)

    def chunk(self, chunk: Chunk, file: int | None) -> None:
        self._pieces += chunk.body if file is None else map_body(file)
        request = self._store.running(self.call_id)
        if chunk.is_broken or len(self._pieces) > _MOST_REPLY_BYTES:
            if request is not None and request.router is not None:
                request.router.abandon(request)
            self._refuse(_BROKEN if chunk.is_broken else _TOO_LARGE)
        elif chunk.is_last and self._head is not None:
            self._store.on_answer(self.call_id, self._function, self._head, self._pieces)
        elif request is not None and request.replica is not None:
            request.replica.credit(request)

    def _refuse(self, refusal: Refusal) -> None:
        reply = refusal.reply(self.call_id)
        self._store.on_answer(self.call_id, self._function, reply, reply.body)
