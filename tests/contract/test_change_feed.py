"""A gateway that is told of changes looks at once and else hardly ever; one that is not told looks by itself."""

import asyncio
import queue
import threading
from collections.abc import Iterator, Sequence

import pytest
from tests.waiting import until

from pgpu.errors import NodeError
from pgpu.functions.control.replica_controller import ReplicaController
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import RouterTable
from pgpu.model import Function, Share, Version, VersionState


def function(name: str, made_at_seconds: float = 1.0) -> Function:
    version = Version(
        name, 1, 7, "a:F", "0", "{}", "process", None, None, VersionState.READY, None, made_at_seconds
    )  # fmt: skip
    return Function(name, 7, made_at_seconds, (version,), (Share(1, 100),))


class Desk:
    """Has functions, and tells what a test puts into its news: a change, or the end of telling."""

    def __init__(self, *functions: Function) -> None:
        self.known: Sequence[Function] = functions
        self.news: queue.Queue[str | None] = queue.Queue()
        self.asked = 0
        self.listeners = threading.Semaphore(0)

    def functions(self) -> Sequence[Function]:
        self.asked += 1
        return self.known

    def replica_jobs(self) -> Sequence[object]:
        return ()

    def changes(self) -> Iterator[str]:
        self.listeners.release()
        yield ""
        while (change := self.news.get()) is not None:
            yield change
        raise NodeError("it is gone")


def test_what_changes_is_known_when_it_is_told_and_not_asked_for_else() -> None:
    async def following() -> None:
        desk, halls = Desk(function("it")), RouterTable(GatewayMetrics())
        working = asyncio.create_task(ReplicaController(halls, desk, GatewayMetrics()).run())  # type: ignore[arg-type]
        await asyncio.to_thread(until, lambda: halls.get("it") is not None)
        for made_at_seconds in range(2, 22):
            desk.known = [function("it", float(made_at_seconds))]
            desk.news.put("")
            await asyncio.to_thread(until, lambda: halls.of(desk.known[0].identity) is not None)
        desk.known = []
        desk.news.put("a job of nobody's")
        desk.news.put("")
        await asyncio.to_thread(until, lambda: halls.get("it") is None)
        assert desk.asked <= 2 + 20 + 1  # at the start, when it begins to be told, and of each change once
        working.cancel()
        desk.news.put(None)
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(following())


def test_a_gateway_that_is_not_told_any_more_looks_by_itself_and_listens_again() -> None:
    async def following() -> None:
        desk, halls = Desk(), RouterTable(GatewayMetrics())
        working = asyncio.create_task(ReplicaController(halls, desk, GatewayMetrics()).run())  # type: ignore[arg-type]
        await asyncio.to_thread(desk.listeners.acquire)
        desk.news.put(None)
        desk.known = [function("it")]
        await asyncio.to_thread(until, lambda: halls.get("it") is not None)
        await asyncio.to_thread(desk.listeners.acquire)
        working.cancel()
        desk.news.put(None)
        with pytest.raises(asyncio.CancelledError):
            await working

    asyncio.run(following())
