"""What the gateway's store of kept calls promises, on a disk."""

import asyncio
from pathlib import Path

import pytest

from pgpu.functions.gateway.async_call_database import AsyncCall, AsyncCallDatabase, StoredReply
from pgpu.functions.gateway.async_calls import AsyncCallStore
from pgpu.functions.ipc.call_messages import Chunk, Reply
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics, metrics_text
from pgpu.functions.router.function_router import RouterTable
from pgpu.functions.router.replica_connection import RoutedRequest
from pgpu.model import Function, Share, Version, VersionState


def test_a_store_gives_back_what_it_keeps(tmp_path: Path) -> None:
    store = AsyncCallDatabase(tmp_path)
    call = AsyncCall("a", "it", "user 7", "d", "POST", "/functions/it", "", {"x": "y"}, b"body")
    assert store.add(call) is None
    assert store.get_unfinished("a") == call
    assert store.held_bytes("it") == len(b"body")
    store.begin("a")
    assert store.recover() == ([("a", "it")], {"a"})
    store.finish("a", StoredReply(200, {"h": "v"}, b"answer"))
    known = store.add(call)
    assert known is not None
    assert known.reply == StoredReply(200, {"h": "v"}, b"answer")
    assert store.recover() == ([], set())
    assert store.held_bytes("it") == len(b"answer")
    store.forget_before(0)
    assert store.get("a") is not None
    assert store.forget("a")
    assert not store.forget("a")
    assert store.held_bytes("it") == 0
    assert store.add(call) is None
    store.close()
    again = AsyncCallDatabase(tmp_path)
    assert (again.get_unfinished("a"), again.held_bytes("it")) == (call, len(b"body"))
    again.close()


def of(name: str, owner_uid: int) -> Function:
    version = Version(name, 1, owner_uid, "app:F", "0", "{}", "process", None, None, VersionState.READY, None, 1.0)
    return Function(name, owner_uid, 1.0, (version,), (Share(1, 100),))


def test_what_was_kept_of_a_function_goes_with_it_and_who_waits_is_told(tmp_path: Path) -> None:
    async def removing() -> None:
        one, two = of("one", 7), of("two", 7)
        halls, store = RouterTable(GatewayMetrics()), AsyncCallDatabase(tmp_path)
        halls.adopt([one, two])
        books = AsyncCallStore(store, halls)
        for each in (one, two):
            store.add(AsyncCall(f"old {each.name}", each.identity, "", "d", "POST", "/", "", {}, b"12345"))
            store.finish(f"old {each.name}", StoredReply(200, {}, b"answer"))
        await books.add(AsyncCall("new", one.identity, "", "d", "POST", "/", "", {}, b"1"))
        asker = asyncio.create_task(books.wait_finished("new", 60.0))
        await books.get("new")
        halls.adopt([two])
        assert await asker is None
        late = AsyncCall("late", one.identity, "", "d", "POST", "/", "", {}, b"1")
        assert await books.add(late) is None
        assert await books.wait_finished("late", 60.0) is None
        assert [await books.get(call) is None for call in ("old one", "new", "old two")] == [True, True, False]
        assert store.all_held_bytes() == len(b"answer")
        books.close()
        books = AsyncCallStore(AsyncCallDatabase(tmp_path), RouterTable(GatewayMetrics()))
        await books.open()
        assert await books.get("old two") is None
        books.close()

    asyncio.run(removing())


def test_a_call_of_a_function_that_was_just_removed_is_told_so_at_once() -> None:
    told: list[int] = []

    class Asks:
        def reply(self, reply: Reply, _file: int | None) -> None:
            told.append(reply.status)

        def chunk(self, _chunk: Chunk, _file: int | None) -> None: ...

    async def removing() -> None:
        one = of("one", 7)
        halls = RouterTable(GatewayMetrics())
        halls.adopt([one])
        hall = halls.get("one")
        assert hall is not None
        halls.adopt([])
        hall.submit(RoutedRequest("a", "POST", "/", "", {}, b"", None, 0.0, 1e12, 60.0, Asks(), router=hall))
        hall.submit(RoutedRequest("a", "POST", "/", "", {}, b"", None, 0.0, 1e12, 60.0, Asks(), router=hall, version=1))
        assert told == [404, 404]
        halls.adopt([one])
        halls.adopt([])
        assert b"one" not in metrics_text(halls.metrics)

    asyncio.run(removing())


@pytest.mark.parametrize(("limit", "is_others"), [("most_owner_bytes", False), ("most_all_bytes", True)])
def test_an_owner_s_functions_together_do_not_fill_the_disk(tmp_path: Path, limit: str, is_others: bool) -> None:
    async def asking() -> list[bool]:
        one, two, theirs = of("one", 7), of("two", 7), of("theirs", 8)
        halls, store = RouterTable(GatewayMetrics()), AsyncCallDatabase(tmp_path)
        halls.adopt([one, two, theirs])
        books = AsyncCallStore(store, halls, **{limit: 5})
        full = [books.is_full(two.identity)]
        store.add(AsyncCall("a", one.identity, "user 7", "d", "POST", "/functions/one", "", {}, b"12345"))
        full += [books.is_full(each.identity) for each in (two, theirs)]
        books.close()
        return full

    assert asyncio.run(asking()) == [False, True, is_others]
