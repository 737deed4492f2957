"""What the gateway's store of kept calls promises, on a disk."""

import asyncio
from pathlib import Path

import pytest

from pgpu.functions.gateway.controlling.halls import Halls
from pgpu.functions.gateway.keeping.books import Books
from pgpu.functions.gateway.keeping.store import KeptCall, KeptReply, Store
from pgpu.functions.gateway.metrics import Metrics
from pgpu.model import Function, Share, Version, VersionState


def test_a_store_gives_back_what_it_keeps(tmp_path: Path) -> None:
    store = Store(tmp_path)
    call = KeptCall("a", "it", "d", "POST", "/functions/it", "", {"x": "y"}, b"body")
    assert store.add(call) is None
    assert store.asked("a") == call
    assert store.held_bytes("it") == len(b"body")
    store.begin("a")
    assert store.left() == ([("a", "it")], {"a"})
    store.finish("a", KeptReply(200, {"h": "v"}, b"answer"))
    known = store.add(call)
    assert known is not None
    assert known.reply == KeptReply(200, {"h": "v"}, b"answer")
    assert store.left() == ([], set())
    assert store.held_bytes("it") == len(b"answer")
    store.forget_before(0)
    assert store.get("a") is not None
    assert store.forget("a")
    assert not store.forget("a")
    assert store.held_bytes("it") == 0
    assert store.add(call) is None
    store.close()
    again = Store(tmp_path)
    assert (again.asked("a"), again.held_bytes("it")) == (call, len(b"body"))
    again.close()


@pytest.mark.parametrize(("limit", "is_others"), [("most_owner_bytes", False), ("most_all_bytes", True)])
def test_an_owner_s_functions_together_do_not_fill_the_disk(tmp_path: Path, limit: str, is_others: bool) -> None:
    def of(name: str, owner_uid: int) -> Function:
        version = Version(
            name, 1, owner_uid, "app:F", "0", "{}", "process", None, None, VersionState.READY, None, 1.0
        )  # fmt: skip
        return Function(name, owner_uid, 1.0, (version,), (Share(1, 100),))

    async def asking() -> list[bool]:
        one, two, theirs = of("one", 7), of("two", 7), of("theirs", 8)
        halls, store = Halls(Metrics()), Store(tmp_path)
        halls.adopt([one, two, theirs])
        books = Books(store, halls, **{limit: 5})
        full = [books.is_full(two.identity)]
        store.add(KeptCall("a", one.identity, "d", "POST", "/functions/one", "", {}, b"12345"))
        full += [books.is_full(each.identity) for each in (two, theirs)]
        books.close()
        return full

    assert asyncio.run(asking()) == [False, True, is_others]
