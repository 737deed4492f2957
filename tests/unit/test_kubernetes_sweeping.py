"""Slices whose claims the cluster has forgotten go in the end, and no others."""

from collections.abc import Mapping, Sequence

import pytest
from tests.fakes.claims import gpu
from tests.kubernetes_log import logged

from pgpu.enforcement import SliceUse
from pgpu.errors import ClusterUnavailableError, NodeError, ObjectNotFoundError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import AllocatedDevice, ResourceClaim
from pgpu.kubernetes.dra.orphaned_claims import SWEEP_SECONDS, OrphanCollector
from pgpu.model import Claim, Slice
from pgpu.structs import replace

HELD = Claim("u-1", "default", "c", (Slice(gpu(0).uuid, 1 << 30),))
DEVICE = AllocatedDevice("gpu", names.DRIVER, "node1", "gpu-1")


class Node:
    """One claim is held here; what the cluster knows of it is the test's."""

    def __init__(self) -> None:
        self.claims = {HELD.uid: HELD}
        self.found: ResourceClaim | Exception = ResourceClaim("default", "c", "u-1", (DEVICE,))
        self.used_bytes = 0
        self.now_seconds = 0.0
        self.stuck: set[str] = set()
        self.sweeper = OrphanCollector(self, self, self.uses, lambda: self.now_seconds)

    def known(self) -> Sequence[Claim]:
        return list(self.claims.values())

    def unprepare(self, uid: str) -> None:
        if uid in self.stuck:
            raise NodeError("somebody still holds memory of it")
        del self.claims[uid]

    def claim(self, namespace: str, name: str) -> ResourceClaim:
        assert (namespace, name) == ("default", "c")
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    def uses(self) -> Mapping[str, Sequence[SliceUse]]:
        return {HELD.uid: [SliceUse(gpu(0).uuid, self.used_bytes, self.used_bytes, 0)]}

    def sweep(self) -> None:
        self.now_seconds += SWEEP_SECONDS
        self.sweeper.collect()


@pytest.mark.parametrize(
    "found",
    [
        ObjectNotFoundError("gone"),
        ResourceClaim("default", "c", "u-2", (DEVICE,)),
        ResourceClaim("default", "c", "u-1"),
    ],
)
def test_a_forgotten_claim_goes_at_the_second_look(found: ResourceClaim | Exception) -> None:
    node = Node()
    node.found = found
    with logged() as said:
        node.sweep()
        assert node.claims
        node.sweep()
    assert not node.claims
    assert "has forgotten claim default/c" in said[0]


def test_it_takes_its_time() -> None:
    node = Node()
    node.found = ObjectNotFoundError("gone")
    for _ in range(10):
        node.sweeper.collect()
    assert node.claims


def test_what_the_cluster_knows_stays() -> None:
    node = Node()
    for _ in range(3):
        node.sweep()
    assert node.claims


def test_what_is_used_stays() -> None:
    node = Node()
    node.found, node.used_bytes = ObjectNotFoundError("gone"), 1
    for _ in range(3):
        node.sweep()
    assert node.claims
    node.used_bytes = 0
    node.sweep()
    assert node.claims, "its use ended a moment ago"
    node.sweep()
    assert not node.claims


def test_one_that_cannot_be_taken_back_keeps_no_other() -> None:
    node = Node()
    second = replace(HELD, uid="u-2")
    node.claims[second.uid] = second
    node.found = ObjectNotFoundError("gone")
    node.stuck.add(HELD.uid)
    node.sweep()
    with pytest.raises(NodeError, match="still holds memory"):
        node.sweep()
    assert list(node.claims) == [HELD.uid]


def test_while_the_cluster_says_nothing_all_stays_and_counts_anew() -> None:
    node = Node()
    node.found = ObjectNotFoundError("gone")
    node.sweep()
    node.found = ClusterUnavailableError("away")
    with pytest.raises(ClusterUnavailableError):
        node.sweep()
    node.found = ObjectNotFoundError("gone")
    node.sweep()
    assert node.claims
    node.sweep()
    assert not node.claims
