"""What the gateway's store of kept calls promises, on a disk."""

from pathlib import Path

from pgpu.functions.gateway.keeping.store import KeptCall, KeptReply, Store


def test_a_store_gives_back_what_it_keeps(tmp_path: Path) -> None:
    store = Store(tmp_path)
    call = KeptCall("a", "it", "d", "POST", "/functions/it", "", {"x": "y"}, b"body")
    assert store.add(call) is None
    assert store.asked("a") == call
    store.begin("a")
    assert store.left() == ([("a", "it")], {"a"})
    store.finish("a", KeptReply(200, {"h": "v"}, b"answer"))
    known = store.add(call)
    assert known is not None
    assert known.reply == KeptReply(200, {"h": "v"}, b"answer")
    assert store.left() == ([], set())
    store.forget_before(0)
    assert store.get("a") is not None
    assert store.forget("a")
    assert not store.forget("a")
    store.close()
