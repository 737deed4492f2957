"""A GPU after a fatal error: its pods are told and evicted, and nobody is sent there until it is well."""

from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from tests.kubernetes.cluster import Cluster, Gpu
from tests.kubernetes.manifests import DRIVER, claim, client, part, pod, template
from tests.kubernetes.nodes import Node
from tests.waiting import until

pytestmark = [pytest.mark.kubernetes, pytest.mark.kubernetes_nodes]

_FALLEN_OFF_THE_BUS = "79"


@pytest.fixture
def error_file(gpu: Gpu, node: Node) -> Iterator[str]:
    """Where somebody writes the number of a simulated GPU's fatal error; the GPU is well again afterwards."""
    (configuration,) = node.run("find", "/run/pgpu", "-name", "gpus.conf").split()
    path = str(PurePosixPath(configuration).with_name(f"xid-{gpu.uuid}"))
    yield path
    node.run("rm", "--force", path)


def _is_told(cluster: Cluster, name: str) -> bool:
    (status,) = cluster.get("pod", name)["status"]["containerStatuses"]
    found = [device for each in status.get("allocatedResourcesStatus", []) for device in each["resources"]]
    return any(each["health"] == "Unhealthy" and f"Xid {_FALLEN_OFF_THE_BUS}" in each["message"] for each in found)


def test_a_fatal_error_is_told_in_a_pods_status_and_evicts_who_does_not_tolerate_it(
    cluster: Cluster, gpu: Gpu, node: Node, error_file: str
) -> None:
    cluster.apply(claim("stoic", part("1Gi", tolerates=f"{DRIVER}/unhealthy"), selector=gpu.selector))
    cluster.apply(template("one", part("1Gi"), selector=gpu.selector))
    cluster.apply(pod(gpu.node, "patient", client("client", "gpu"), claims={"gpu": "stoic"}))
    cluster.apply(pod(gpu.node, "victim", client("client", "gpu"), templates={"gpu": "one"}))
    for name in ("patient", "victim"):
        cluster.wait_until_running(name)

    node.run("sh", "-c", f"echo {_FALLEN_OFF_THE_BUS} > {error_file}")

    until(lambda: "victim" not in cluster.phases(), lambda: cluster.story("victim"))
    until(lambda: _is_told(cluster, "patient"), lambda: cluster.story("patient"))
    cluster.apply(pod(gpu.node, "newcomer", client("client", "gpu"), templates={"gpu": "one"}))
    cluster.wait_until_unschedulable("newcomer")

    node.run("rm", error_file)

    cluster.wait_until_running("newcomer")
    assert cluster.phases()["patient"] == "Running"
