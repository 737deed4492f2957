"""A server's shelves: what is on them is what its address says, and each user's own."""

import hashlib
import io
import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from pgpu.errors import CapacityError, RequestError
from pgpu.functions.deploy.bundle_store import BundleStore
from pgpu.functions.deploy.source_bundle import MOST_BYTES, pack_tree

ALICE, BOB = 61001, 61002


@pytest.fixture
def bundle(tmp_path: Path) -> tuple[str, bytes]:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "app.py").write_text("x = 1")
    out = io.BytesIO()
    return pack_tree(tmp_path / "in", out).digest, out.getvalue()


@pytest.fixture
def store(tmp_path: Path) -> BundleStore:
    return BundleStore(tmp_path / "functions")


def send(store: BundleStore, data: bytes, digest: str, uid: int = ALICE) -> None:
    with store.receive(uid) as incoming:
        for place in range(0, len(data), 1000):
            incoming.write(data[place : place + 1000])
        incoming.keep(digest)


def test_a_bundle_is_found_at_its_digest_by_who_sent_it_alone(store: BundleStore, bundle: tuple[str, bytes]) -> None:
    digest, data = bundle
    for _ in range(2):
        send(store, data, digest)
        assert (store.tree(ALICE, digest) / "app.py").read_text() == "x = 1"
    assert store.has(ALICE, digest)
    assert not store.has(BOB, digest)
    with pytest.raises(RequestError, match="not here"):
        store.tree(BOB, digest)


def test_nothing_is_left_of_what_was_not_kept(store: BundleStore, bundle: tuple[str, bytes], tmp_path: Path) -> None:
    digest, data = bundle
    garbage = b"no archive" * 100
    for sent, said in ((data, "0" * 64), (garbage, hashlib.sha256(garbage).hexdigest()), (data[:-1], digest)):
        with pytest.raises(RequestError):
            send(store, sent, said)
    shelf = tmp_path / "functions" / "bundles" / str(ALICE)
    assert list(shelf.iterdir()) == []
    assert stat.S_IMODE(shelf.stat().st_mode) == 0o700


@pytest.mark.parametrize("digest", ["", "../../etc", "A" * 64, "0" * 63, "0" * 65, "é" * 64])
def test_only_a_digest_is_an_address(store: BundleStore, digest: str) -> None:
    for ask in (store.has, store.tree, store.layer):
        with pytest.raises(RequestError):
            ask(ALICE, digest)


def test_what_is_too_long_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    store = BundleStore(tmp_path / "functions", most_sent_bytes=1500)
    with pytest.raises(RequestError, match="longer"):
        send(store, b"x" * 3000, "0" * 64)


def test_a_user_s_shelf_has_an_end(bundle: tuple[str, bytes], tmp_path: Path) -> None:
    digest, data = bundle
    store = BundleStore(
        tmp_path / "functions", most_owner_bytes=MOST_BYTES + 10_000
    )  # five bytes, and blocks for five files
    send(store, data, digest)
    with pytest.raises(CapacityError):
        send(store, data, digest)
    send(store, data, digest, BOB)


def test_what_no_version_names_is_thrown_away_unless_it_came_just_now(
    store: BundleStore, bundle: tuple[str, bytes]
) -> None:
    digest, data = bundle
    send(store, data, digest)
    layer = store.layer(ALICE, "b" * 64)
    (layer / "numpy").mkdir(parents=True)
    store.sweep(ALICE, (), ())
    assert store.has(ALICE, digest)
    for path in (store.tree(ALICE, digest).parent / "bytes", layer):
        os.utime(path, (0, 0))
    store.sweep(ALICE, {digest}, {layer.name})
    assert (store._bundle(ALICE, digest) / "tree").is_dir()
    assert layer.is_dir()
    store.sweep(ALICE, (), ())
    assert not store.has(ALICE, digest)
    assert not layer.exists()


def test_what_a_deployment_was_promised_just_now_is_not_swept(store: BundleStore, bundle: tuple[str, bytes]) -> None:
    digest, data = bundle
    send(store, data, digest)
    layer = store.layer(ALICE, "b" * 64)
    layer.mkdir(parents=True)
    for path in (store.tree(ALICE, digest).parent / "bytes", layer):
        os.utime(path, (0, 0))

    class Kept(list[str]):
        """Is looked at while somebody deploys."""

        def __contains__(self, _name: object) -> bool:
            assert store.has(ALICE, digest)
            assert store.has_layer(ALICE, layer.name)
            return False

    store.sweep(ALICE, Kept(), Kept())
    assert store.tree(ALICE, digest).is_dir()
    assert layer.is_dir()


def test_one_user_sends_few_bundles_at_a_time(store: BundleStore) -> None:
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(store.receive(ALICE))
        with pytest.raises(CapacityError, match="being sent"):
            stack.enter_context(store.receive(ALICE))
        stack.enter_context(store.receive(BOB))
    with store.receive(ALICE):
        pass
