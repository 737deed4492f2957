"""What cannot be given is refused where the pod's owner looks, and no container runs without its limit."""

import pytest
from tests.kubernetes.cluster import Cluster, Gpu
from tests.kubernetes.manifests import claim, client, part, pod

pytestmark = pytest.mark.kubernetes

GIB = 1 << 30


def test_two_claims_in_one_container_are_refused_by_name(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(claim("one", part("2Gi"), selector=gpu.selector), claim("two", part("3Gi"), selector=gpu.selector))
    cluster.apply(pod(gpu.node, "greedy", client("client", "a", "b"), claims={"a": "one", "b": "two"}))

    cluster.wait_for_event("greedy", ".pgpu-one-claim-for-each-container")

    assert not cluster.has_started("greedy")


def test_parameters_that_nobody_knows_stop_the_pod(cluster: Cluster, gpu: Gpu) -> None:
    wish = {"apiVersion": "pgpu.io/v1alpha1", "kind": "SliceParameters", "waitForMemry": "30s"}
    cluster.apply(claim("misspelt", part("1Gi"), selector=gpu.selector, parameters=wish))
    cluster.apply(pod(gpu.node, "asker", client("client", "gpu"), claims={"gpu": "misspelt"}))

    assert "waitForMemry" in cluster.wait_for_event("asker", "waitForMemry")
    assert not cluster.has_started("asker")


def test_what_only_a_class_may_say_is_ignored_in_a_claim_and_told_there(cluster: Cluster, gpu: Gpu) -> None:
    wish = {"apiVersion": "pgpu.io/v1alpha1", "kind": "SliceParameters", "priority": 100}
    cluster.apply(claim("pushing", part("1Gi"), selector=gpu.selector, parameters=wish))
    cluster.apply(pod(gpu.node, "asker", client("client", "gpu"), claims={"gpu": "pushing"}))

    assert cluster.report("asker")["total_bytes"] == GIB
    assert "priority" in cluster.wait_for_event("pushing", "priority")


def test_more_than_a_gpu_has_never_runs(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(claim("huge", part("1Ti"), selector=gpu.selector))
    cluster.apply(pod(gpu.node, "asker", client("client", "gpu"), claims={"gpu": "huge"}))

    assert "cannot allocate all claims" in cluster.wait_until_unschedulable("asker")
