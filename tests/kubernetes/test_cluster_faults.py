"""Deaths of the driver, of the kubelet and of the node, and a CDI file that is gone: nothing is over-committed, no pod hangs."""

import pytest
from tests.kubernetes.cluster import Cluster, Gpu
from tests.kubernetes.manifests import claim, client, part, pod, template
from tests.kubernetes.nodes import CDI_DIRECTORY, Node
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.kubernetes_nodes]

GIB = 1 << 30


@pytest.fixture
def thirty(cluster: Cluster, gpu: Gpu) -> str:
    """A template of claims of 30 GiB on one GPU, of which one pod has a slice."""
    cluster.apply(template("thirty", part("30Gi"), selector=gpu.selector))
    _start(cluster, gpu, "steady")
    assert cluster.report("steady")["total_bytes"] == 30 * GIB
    return "thirty"


def _start(cluster: Cluster, gpu: Gpu, name: str) -> None:
    cluster.apply(pod(gpu.node, name, client("client", "gpu"), templates={"gpu": "thirty"}, restarts=True))


def _assert_all_is_well(cluster: Cluster, gpu: Gpu, *pods: str) -> None:
    for name in pods:
        cluster.wait_until_running(name)
        report = cluster.report(name)
        assert report["total_bytes"] == 30 * GIB
        assert report["granted_bytes"] <= 30 * GIB
    assert cluster.consumed_bytes(gpu) == len(pods) * 30 * GIB <= gpu.memory_bytes


@pytest.mark.usefixtures("thirty")
def test_a_driver_that_is_killed_costs_no_pod_its_slice_and_makes_new_ones_wait(
    cluster: Cluster, gpu: Gpu, node: Node
) -> None:
    killed = node.kill_the_driver()
    _start(cluster, gpu, "newcomer")

    _assert_all_is_well(cluster, gpu, "steady", "newcomer")

    assert cluster.restarts("steady") == 0
    assert not set(killed) & set(node.driver_processes())


@pytest.mark.usefixtures("thirty")
def test_a_pod_that_is_deleted_while_the_driver_is_dead_goes_and_gives_its_memory_back(
    cluster: Cluster, gpu: Gpu, node: Node
) -> None:
    node.kill_the_driver()

    cluster.delete("pod", "steady")

    until(lambda: cluster.consumed_bytes(gpu) == 0, lambda: "the slice was never given back")
    until(lambda: not node.cdi_files(), node.cdi_files)


@pytest.mark.usefixtures("thirty")
def test_a_kubelet_that_is_killed_costs_no_pod_its_slice_and_what_it_wiped_is_offered_again(
    cluster: Cluster, gpu: Gpu, node: Node
) -> None:
    wiped = cluster.slice_uids(gpu)
    node.run("systemctl", "kill", "--signal=KILL", "kubelet")
    _start(cluster, gpu, "newcomer")

    _assert_all_is_well(cluster, gpu, "steady", "newcomer")

    assert cluster.restarts("steady") == 0
    until(lambda: gpu in cluster.gpus() and not wiped & cluster.slice_uids(gpu), cluster.gpus)


@pytest.mark.usefixtures("thirty")
def test_a_container_whose_cdi_file_was_deleted_starts_again_in_its_slice(
    cluster: Cluster, gpu: Gpu, node: Node
) -> None:
    uid = cluster.claim_of("steady")["metadata"]["uid"]
    node.run("rm", f"{CDI_DIRECTORY}/pgpu.io-claim-{uid}.json")

    cluster.ask_to_leave("steady")

    cluster.wait_until_restarted("steady", 1)
    _assert_all_is_well(cluster, gpu, "steady")


@pytest.mark.kubernetes_power
@pytest.mark.usefixtures("thirty")
def test_after_a_nodes_power_was_cut_its_pods_have_their_slices_again(cluster: Cluster, gpu: Gpu, node: Node) -> None:
    _start(cluster, gpu, "other")
    cluster.wait_until_running("other")
    _start(cluster, gpu, "waiting")
    cluster.wait_until_unschedulable("waiting")

    node.restart()

    for name in ("steady", "other"):
        cluster.wait_until_restarted(name, 1)
    _assert_all_is_well(cluster, gpu, "steady", "other")
    cluster.delete("pod", "steady")
    _assert_all_is_well(cluster, gpu, "other", "waiting")


@pytest.mark.usefixtures("thirty")
def test_a_claim_that_is_kept_between_two_pods_is_the_same_memory(cluster: Cluster, gpu: Gpu, node: Node) -> None:
    cluster.apply(claim("kept", part("2Gi"), selector=gpu.selector))
    for name in ("first", "second"):
        cluster.apply(pod(gpu.node, name, client("client", "gpu"), claims={"gpu": "kept"}))
        assert cluster.report(name)["total_bytes"] == 2 * GIB
        cluster.delete("pod", name)
        node.kill_the_driver()
    until(lambda: cluster.consumed_bytes(gpu) == 30 * GIB, lambda: "the claim was never given back")
