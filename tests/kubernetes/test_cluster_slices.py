"""Slices of one GPU for pods of a real cluster: how many, how large, who waits."""

import pytest
from tests.kubernetes.cluster import Cluster, Gpu
from tests.kubernetes.manifests import claim, client, part, pod, template

pytestmark = pytest.mark.kubernetes

GIB = 1 << 30
OUT_OF_MEMORY = 2
_CONTEXT_BYTES = GIB
"""More than a CUDA context, which counts, takes of a slice."""


def _assert_is_bound_by(report: dict[str, int], limit_bytes: int) -> None:
    assert report["total_bytes"] == limit_bytes
    assert report["refusal"] == OUT_OF_MEMORY
    assert limit_bytes - _CONTEXT_BYTES < report["granted_bytes"] <= limit_bytes


def test_of_three_pods_of_30_gib_two_share_a_gpu_of_80_and_the_third_starts_when_one_ends(
    cluster: Cluster, gpu: Gpu
) -> None:
    cluster.apply(template("thirty", part("30Gi"), selector=gpu.selector))
    for name in ("first", "second"):
        cluster.apply(pod(gpu.node, name, client("client", "gpu"), templates={"gpu": "thirty"}))
        cluster.wait_until_running(name)
    cluster.apply(pod(gpu.node, "third", client("client", "gpu"), templates={"gpu": "thirty"}))

    assert "cannot allocate all claims" in cluster.wait_until_unschedulable("third")
    for name in ("first", "second"):
        _assert_is_bound_by(dict(cluster.report(name)), 30 * GIB)
    assert cluster.consumed_bytes(gpu) == 60 * GIB

    cluster.end("first")

    cluster.wait_until_running("third")
    _assert_is_bound_by(dict(cluster.report("third")), 30 * GIB)
    assert cluster.consumed_bytes(gpu) == 60 * GIB


def test_a_pod_that_is_deleted_makes_room_for_one_that_waits(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(template("fifty", part("50Gi"), selector=gpu.selector))
    cluster.apply(pod(gpu.node, "first", client("client", "gpu"), templates={"gpu": "fifty"}))
    cluster.wait_until_running("first")
    cluster.apply(pod(gpu.node, "second", client("client", "gpu"), templates={"gpu": "fifty"}))
    cluster.wait_until_unschedulable("second")

    cluster.delete("pod", "first")

    cluster.wait_until_running("second")
    _assert_is_bound_by(dict(cluster.report("second")), 50 * GIB)


def test_a_pod_that_the_cluster_forgot_before_its_node_did_gives_no_byte_twice(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(template("fifty", part("50Gi"), selector=gpu.selector))
    cluster.apply(pod(gpu.node, "first", client("client", "gpu"), templates={"gpu": "fifty"}))
    assert cluster.report("first")["total_bytes"] == 50 * GIB
    cluster.apply(pod(gpu.node, "second", client("client", "gpu"), templates={"gpu": "fifty"}))
    cluster.wait_until_unschedulable("second")

    cluster.delete("pod", "first", "--grace-period=0", "--force")

    cluster.wait_until_running("second")
    assert not [line for line in cluster.events("second") if line.startswith("FailedPrepareDynamicResources")]
    _assert_is_bound_by(dict(cluster.report("second")), 50 * GIB)


def test_what_was_consumed_binds_and_not_what_was_asked(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(claim("odd", part("1000Mi"), selector=gpu.selector))
    cluster.apply(pod(gpu.node, "asker", client("client", "gpu"), claims={"gpu": "odd"}))

    assert cluster.report("asker")["total_bytes"] == GIB
    assert cluster.consumed_bytes(gpu) == GIB


def test_two_containers_with_one_claim_have_its_memory_together(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(claim("shared", part("8Gi"), selector=gpu.selector))
    greedy, modest = client("client", "gpu", most_bytes=5 * GIB), client("other", "gpu", most_bytes=5 * GIB)
    cluster.apply(pod(gpu.node, "pair", greedy, modest, claims={"gpu": "shared"}))

    reports = [dict(cluster.report("pair", name)) for name in ("client", "other")]

    assert [each["total_bytes"] for each in reports] == [8 * GIB, 8 * GIB]
    assert sum(each["granted_bytes"] for each in reports) <= 8 * GIB
    assert sorted(each["refusal"] for each in reports) == [0, OUT_OF_MEMORY]
    assert cluster.consumed_bytes(gpu) == 8 * GIB


def test_two_pods_with_one_claim_have_its_memory_together(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(claim("shared", part("8Gi"), selector=gpu.selector))
    for name in ("first", "second"):
        cluster.apply(pod(gpu.node, name, client("client", "gpu", most_bytes=5 * GIB), claims={"gpu": "shared"}))

    reports = [dict(cluster.report(name)) for name in ("first", "second")]

    assert sum(each["granted_bytes"] for each in reports) <= 8 * GIB
    assert cluster.consumed_bytes(gpu) == 8 * GIB


def test_a_limit_of_one_gpu_slice_is_a_slice_of_the_usual_size(cluster: Cluster, gpu: Gpu) -> None:
    container = client("client", limits={"pgpu.io/gpu-slice": "1"})
    cluster.apply(pod(gpu.node, "adopter", container))

    report = cluster.report("adopter")

    assert (report["total_bytes"], report["refusal"]) == (4 * GIB, OUT_OF_MEMORY)


def test_a_container_that_is_started_again_in_its_pod_has_its_slice_again(cluster: Cluster, gpu: Gpu) -> None:
    cluster.apply(claim("mine", part("6Gi"), selector=gpu.selector))
    cluster.apply(pod(gpu.node, "phoenix", client("client", "gpu"), claims={"gpu": "mine"}, restarts=True))
    _assert_is_bound_by(dict(cluster.report("phoenix")), 6 * GIB)

    cluster.ask_to_leave("phoenix")

    cluster.wait_until_restarted("phoenix", 1)
    _assert_is_bound_by(dict(cluster.report("phoenix")), 6 * GIB)
