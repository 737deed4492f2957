"""What the driver's account may change in a cluster with pgpu's admission policy: its own node's slices, and nothing else."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.manifests import DRIVER, Manifest

from pgpu.kubernetes.names import slice_of

pytestmark = pytest.mark.kubernetes

_NAMESPACE = "pgpu-system"
_ACCOUNT = "pgpu-driver"


def _slice(node: str, driver: str = DRIVER, *, pool: str = "", named_as_of: str = "") -> Manifest:
    of_pool = {"name": pool or node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": of_pool, "devices": [{"name": "forged"}]}
    metadata = {"name": slice_of(named_as_of or node, "forged")}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class Accounts:
    """Makes kubeconfigs of the driver's account."""

    cluster: Cluster
    folder: Path

    def refusal_of(self, node: str, forged: Manifest) -> str:
        """Try to create a slice with a token that names a node, or none; return what is wrong with that, or nothing."""
        words = ("create", "--dry-run=server", "--filename", "-")
        return self.cluster.try_kubectl(*words, stdin=json.dumps(forged), kubeconfig=self._kubeconfig(node)).stderr

    def _kubeconfig(self, node: str) -> str:
        bound = ("--bound-object-kind", "Node", "--bound-object-name", node) if node else ()
        token = self.cluster.kubectl("create", "token", _ACCOUNT, "--namespace", _NAMESPACE, *bound).strip()
        view = json.loads(self.cluster.kubectl("config", "view", "--raw", "--minify", "--flatten", "--output", "json"))
        view["users"][0]["user"] = {"token": token}
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(view))
        return str(path)


@pytest.fixture
def accounts(cluster: Cluster, tmp_path: Path) -> Accounts:
    return Accounts(cluster, tmp_path)


@pytest.fixture
def node(cluster: Cluster) -> str:
    """The name of any node."""
    return str(cluster.get("nodes")["items"][0]["metadata"]["name"])


def test_a_driver_publishes_slices_of_its_own_node(accounts: Accounts, node: str) -> None:
    assert not accounts.refusal_of(node, _slice(node))


def test_a_driver_may_not_publish_another_nodes_gpus(accounts: Accounts, node: str) -> None:
    assert "may not change a ResourceSlice of node" in accounts.refusal_of(node, _slice(f"not-{node}"))


def test_a_token_that_names_no_node_publishes_nothing(accounts: Accounts, node: str) -> None:
    assert "names no node" in accounts.refusal_of("", _slice(node))


def test_a_driver_may_not_speak_for_another_driver(accounts: Accounts, node: str) -> None:
    assert "ResourceSlices of gpu.pgpu.io only" in accounts.refusal_of(node, _slice(node, "other.example"))


def test_a_driver_may_not_outdo_the_pool_of_another_node(accounts: Accounts, node: str) -> None:
    assert "of its own node's pool only" in accounts.refusal_of(node, _slice(node, pool=f"not-{node}"))


def test_a_driver_may_not_take_the_name_of_another_nodes_slice(accounts: Accounts, node: str) -> None:
    assert "names of other nodes' ResourceSlices" in accounts.refusal_of(node, _slice(node, named_as_of=f"not-{node}"))
