"""A namespace and a free simulated GPU for each test, and a shell on the GPU's node where there is one."""

from collections.abc import Iterator

import pytest
from tests.kubernetes.cluster import Cluster, Gpu, new_namespace
from tests.kubernetes.nodes import Node
from tests.waiting import until

_GIB = 1 << 30


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with new_namespace() as made:
        yield made


@pytest.fixture
def gpu(cluster: Cluster) -> Gpu:
    """A simulated GPU that holds two slices of 30 GiB and not three, when nobody uses it any more."""
    chosen, *_ = until(lambda: _fitting(cluster), lambda: f"no simulated GPU of 60 to 90 GiB is among {cluster.gpus()}")
    until(lambda: cluster.consumed_bytes(chosen) == 0, lambda: f"others use {chosen}")
    return chosen


def _fitting(cluster: Cluster) -> list[Gpu]:
    return [each for each in cluster.gpus() if 60 * _GIB <= each.memory_bytes < 90 * _GIB]


@pytest.fixture
def node(gpu: Gpu) -> Node:
    """The GPU's node."""
    return Node(gpu.node)
