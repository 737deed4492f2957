"""What whoever holds claims of a node must do: in memory for tests of node agents, and the engine's own on simulated GPUs."""

import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.clearing import clear
from tests.fakes.claims import FakeClaims, gpu

from pgpu.app.composition import make_engine
from pgpu.app.settings import Settings
from pgpu.engine.claims import Claims
from pgpu.engine.claims.engine_claims import EngineClaims
from pgpu.errors import CapacityError, NodeError, PgpuError, RequestError
from pgpu.model import Claim, SharingWish, Slice
from pgpu.structs import replace
from pgpu.units import GIB


@pytest.fixture(params=["in memory", pytest.param("engine", marks=pytest.mark.userns)])
def claims(request: pytest.FixtureRequest) -> Iterator[Claims]:
    root = Path(tempfile.mkdtemp(prefix="pgpu-c-", dir="/dev/shm"))
    try:
        yield FakeClaims(root, [gpu(0), gpu(1)]) if request.param == "in memory" else real_claims(root)
    finally:
        clear(root)


def real_claims(root: Path) -> EngineClaims:
    settings = Settings(state_dir=root / "state", runtime_dir=root, simulate="H100x2")
    return EngineClaims(make_engine(settings))


def claim(claims: Claims, uid: str, gib: int = 30, *, index: int = 0, **words: object) -> Claim:
    part = Slice(claims.gpus()[index].gpu.uuid, gib * GIB)
    return replace(Claim(uid, "default", f"claim-{uid}", (part,)), **words)  # type: ignore[arg-type]


def test_held_claims_sum_up_to_what_is_offered(claims: Claims) -> None:
    first, second = (claims.hold(claim(claims, uid)) for uid in ("one", "two"))
    assert claims.gpus()[0].held_bytes == 60 * GIB
    assert claims.gpus()[1].held_bytes == 0
    assert first.delivery.slice_directory != second.delivery.slice_directory
    with pytest.raises(CapacityError, match="do not fit on GPU"):
        claims.hold(claim(claims, "three"))
    claims.free("one")
    claims.hold(claim(claims, "three"))
    assert [each.claim.uid for each in claims.held()] == ["two", "three"]


def test_the_same_claim_again_is_the_same_slice(claims: Claims) -> None:
    asked = claim(claims, "one", note="what I said")
    assert claims.hold(asked) == claims.hold(asked)
    assert [each.claim for each in claims.held()] == [asked]
    assert [(uid, each.claim, each.is_freed) for uid, each in claims.records().items()] == [("one", asked, False)]
    assert claims.gpus()[0].held_bytes == 30 * GIB


def test_a_uid_is_held_with_one_size_only(claims: Claims) -> None:
    claims.hold(claim(claims, "one"))
    with pytest.raises(RequestError, match="held with other slices"):
        claims.hold(claim(claims, "one", 31))
    assert claims.gpus()[0].held_bytes == 30 * GIB


def test_freeing_is_done_once_and_asked_for_as_often_as_one_likes(claims: Claims) -> None:
    claims.hold(claim(claims, "one"))
    for _ in range(2):
        claims.free("one")
    claims.free("nobody")
    assert not claims.held()
    assert not claims.records()
    assert not claims.uses()
    assert not any(offer.held_bytes for offer in claims.gpus())


def test_a_claim_on_two_gpus_has_two_sizes(claims: Claims) -> None:
    uuids = [offer.gpu.uuid for offer in claims.gpus()]
    parts = (Slice(uuids[1], 50 * GIB), Slice(uuids[0], 2 * GIB))
    held = claims.hold(Claim("both", "default", "both", parts))
    assert held.delivery.gpu_uuids == (uuids[1], uuids[0])
    assert [offer.held_bytes for offer in claims.gpus()] == [2 * GIB, 50 * GIB]
    assert [use.gpu_uuid for use in claims.uses()["both"]] == [uuids[1], uuids[0]]


def test_a_whole_gpu_is_for_one(claims: Claims) -> None:
    whole = claim(claims, "whole", 70, sharing=SharingWish.EXCLUSIVE)
    claims.hold(claim(claims, "part", 1))
    with pytest.raises(CapacityError):
        claims.hold(whole)
    claims.free("part")
    claims.hold(whole)
    with pytest.raises(CapacityError):
        claims.hold(claim(claims, "part", 1))


def test_more_than_a_gpu_and_a_gpu_that_is_not_there(claims: Claims) -> None:
    with pytest.raises(RequestError, match="never be granted"):
        claims.hold(claim(claims, "large", 81))
    absent = Claim("absent", "default", "absent", (Slice("GPU-not-here", GIB),))
    with pytest.raises(NodeError, match="is not on this node"):
        claims.hold(absent)
    assert not claims.held()


@pytest.mark.parametrize("slices", [(), (Slice("GPU-a", 0),), (Slice("GPU-a", GIB), Slice("GPU-a", GIB))])
def test_what_no_node_could_hold(claims: Claims, slices: tuple[Slice, ...]) -> None:
    with pytest.raises(RequestError):
        claims.hold(Claim("bad", "default", "bad", slices))
    assert not claims.held()


def test_many_at_once_are_never_more_than_there_is(claims: Claims) -> None:
    def hold(uid: str) -> bool:
        try:
            claims.hold(claim(claims, uid, 25))
        except PgpuError:
            return False
        return True

    uids = [f"claim-{index % 8}" for index in range(16)]
    with ThreadPoolExecutor(8) as threads:
        held = {uid for uid, is_held in zip(uids, threads.map(hold, uids), strict=True) if is_held}
    assert len(held) == 3
    assert {each.claim.uid for each in claims.held()} == held
    assert claims.gpus()[0].held_bytes == 75 * GIB


def test_a_claim_that_is_freed_while_all_are_read_stays_freed(claims: Claims) -> None:
    uids = [f"claim-{number}" for number in range(20)]
    for uid in uids:
        claims.hold(claim(claims, uid, 1))

    def free_all() -> None:
        for uid in uids:
            claims.free(uid)

    with eager_threads(), ThreadPoolExecutor(1) as threads:
        freed = threads.submit(free_all)
        while not freed.done():
            claims.held()
    freed.result()
    assert not claims.records()


@contextmanager
def eager_threads() -> Iterator[None]:
    """Let threads interrupt each other within microseconds instead of milliseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
