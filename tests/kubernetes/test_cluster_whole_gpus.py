"""A GPU is one pod's alone, or many pods': never both."""

import pytest
from tests.kubernetes.cluster import Cluster, Gpu
from tests.kubernetes.manifests import claim, client, part, pod, whole

pytestmark = pytest.mark.kubernetes

GIB = 1 << 30


def test_a_whole_gpu_waits_until_nobody_shares_it(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(claim("one", part("1Gi"), selector=gpu.selector), claim("all", whole(), selector=gpu.selector))
    cluster.apply(pod(gpu.node, "sharer", client("client", "gpu"), claims={"gpu": "one"}))
    cluster.wait_until_running("sharer")
    cluster.apply(pod(gpu.node, "owner", client("client", "gpu"), claims={"gpu": "all"}))
    cluster.wait_until_unschedulable("owner")

    cluster.delete("pod", "sharer")

    assert cluster.report("owner")["total_bytes"] >= gpu.memory_bytes


def test_a_slice_waits_until_the_owner_of_the_whole_gpu_has_gone(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(claim("one", part("1Gi"), selector=gpu.selector), claim("all", whole(), selector=gpu.selector))
    cluster.apply(pod(gpu.node, "owner", client("client", "gpu"), claims={"gpu": "all"}))
    cluster.wait_until_running("owner")
    cluster.apply(pod(gpu.node, "sharer", client("client", "gpu"), claims={"gpu": "one"}))
    cluster.wait_until_unschedulable("sharer")

    cluster.end("owner")

    assert cluster.report("sharer")["total_bytes"] == GIB
