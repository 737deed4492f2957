"""What the gateway's store of kept calls promises, on a disk."""

from pathlib import Path

from pgpu.functions.gateway.keeping.store import KeptCall, KeptReply, Store


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
