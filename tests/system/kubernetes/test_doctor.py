"""`pgpu doctor --kubernetes` against clusters that lack this or that."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.api_objects import KINDS
from tests.fakes.api_server import NODES, PODS, SLICES, ApiServer, User, running
from tests.forked_commands import run_command
from tests.manifests import KUSTOMIZE, written
from tests.unit.test_cli import validate

from pgpu.kubernetes.api.api_connection import connect
from pgpu.kubernetes.api.cluster import ClusterInspector
from pgpu.kubernetes.doctor import check_cluster, explain_pending_pod
from pgpu.model.finding import Finding, Result

TEMPLATES = next(kind for kind in KINDS if kind.plural == "resourceclaimtemplates")
BINDINGS = next(kind for kind in KINDS if kind.plural == "validatingadmissionpolicybindings")
ACCOUNT = "system:serviceaccount:pgpu-system:pgpu-driver"
GIB = 1 << 30


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A cluster of one node that lacks nothing."""
    with running() as served:
        install(served)
        served.objects.create(NODES, "", node("node1"))
        served.objects.create(PODS, "pgpu-system", driver_pod("node1"))
        served.objects.create(SLICES, "", published("node1", "gpu-a", "gpu-b"))
        yield served


def install(server: ApiServer) -> None:
    for (kind, namespace, _), found in written(KUSTOMIZE).items():
        known = [each for each in KINDS if each.name == kind]
        if known:
            server.objects.create(known[0], namespace, found)
        if kind == "ClusterRole":
            server.accounts[ACCOUNT] = found["rules"]


def node(name: str, runtime: str = "containerd://2.1.9") -> dict[str, Any]:
    info: dict[str, str] = {"containerRuntimeVersion": runtime, "kubeletVersion": "v1.36.2"}
    told = ("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "kubeProxyVersion")
    info |= dict.fromkeys((*told, "operatingSystem", "architecture"), "")
    return {"metadata": {"name": name}, "spec": {}, "status": {"nodeInfo": info}}


def labelled(name: str, labels: dict[str, str]) -> dict[str, Any]:
    found = node(name)
    found["metadata"]["labels"] = labels
    return found


def driver_pod(on: str, **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": "pgpu", "app.kubernetes.io/component": "driver"}
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "metadata": {"name": f"pgpu-driver-{on}", "labels": labels},
        "spec": {"nodeName": on, "serviceAccountName": "pgpu-driver", "containers": [{"name": "driver"}]},
        "status": status or ready,
    }


def published(on: str, *gpus: str, **more: Any) -> dict[str, Any]:
    policy = {"default": "4Gi", "validRange": {"min": "256Mi", "max": "80Gi", "step": "256Mi"}}
    capacity = {"memory": {"value": "80Gi", "requestPolicy": policy}, "compute": {"value": "100"}}
    devices = [{"name": name, "allowMultipleAllocations": True, "capacity": capacity, **more} for name in gpus]
    pool = {"name": on, "generation": 1, "resourceSliceCount": 1}
    return {
        "metadata": {"name": f"{on}-gpus"},
        "spec": {"driver": "gpu.pgpu.io", "nodeName": on, "pool": pool, "devices": devices},
    }


def claim(name: str, amount: str, *, on: str | None = None, consumed: str | None = None) -> dict[str, Any]:
    exactly = {"deviceClassName": "gpu.pgpu.io", "capacity": {"requests": {"memory": amount}}}
    found: dict[str, Any] = {
        "metadata": {"name": name},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {},
    }
    if on is not None:
        result: dict[str, Any] = {"request": "gpu", "driver": "gpu.pgpu.io", "pool": "node1", "device": on}
        result |= {"consumedCapacity": {"memory": consumed or amount}}
        found["status"] = {"allocation": {"devices": {"results": [result]}}}
    return found


def pod(name: str, **spec: Any) -> dict[str, Any]:
    words = "0/1 nodes are available: 1 cannot allocate all claims."
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": words}
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main"}], **spec},
        "status": {"phase": "Pending", "conditions": [waiting]},
    }


def pod_of_claim(name: str, claimed: str) -> dict[str, Any]:
    return pod(name, resourceClaims=[{"name": "gpu", "resourceClaimName": claimed}])


def looked_at(server: ApiServer, directory: Path, token: str = "") -> list[Finding]:
    with closing(ClusterInspector(connect(server.kubeconfig(directory, token)))) as cluster:
        return list(check_cluster(cluster))


def explained(server: ApiServer, directory: Path, name: str) -> list[Finding]:
    with closing(ClusterInspector(connect(server.kubeconfig(directory)))) as cluster:
        return list(explain_pending_pod(cluster, "team", name))


def complaints(found: list[Finding]) -> dict[str, Finding]:
    return {each.name: each for each in found if each.result is not Result.OK}


def test_where_nothing_is_missing_all_is_fine(server: ApiServer, tmp_path: Path) -> None:
    found = looked_at(server, tmp_path)
    assert complaints(found) == {}
    assert [each.finding for each in found if each.name == "slices"] == ["node1: gpu-a of 80Gi, gpu-b of 80Gi"]


def test_it_changes_nothing(server: ApiServer, tmp_path: Path) -> None:
    looked_at(server, tmp_path)
    writes = [each for each in server.asked if each.verb not in {"get", "list"} and not each.dry_run]
    assert {each.kind.plural for each in writes} == {"subjectaccessreviews"}


@pytest.mark.parametrize(
    ("version", "result"),
    [
        ("v1.33.9", Result.FAILURE),
        ("v1.34.1-eks-1", Result.WARNING),
        ("v1.35.0", Result.WARNING),
        ("v2.0.0", Result.OK),
    ],
)
def test_versions_that_cannot_share_are_told(server: ApiServer, tmp_path: Path, version: str, result: Result) -> None:
    server.version = version
    first = looked_at(server, tmp_path)[0]
    assert first.result is result
    assert version in first.finding


@pytest.mark.parametrize(
    ("gate", "name", "result"),
    [
        ("DRAConsumableCapacity", "shared devices", Result.FAILURE),
        ("DRAPartitionableDevices", "shared counters", Result.WARNING),
        ("DRADeviceTaints", "device taints", Result.WARNING),
        ("DRAExtendedResource", "extended resources", Result.WARNING),
    ],
)
def test_a_gate_that_is_off_is_seen_by_what_the_server_leaves_out(
    server: ApiServer, tmp_path: Path, gate: str, name: str, result: Result
) -> None:
    server.gates.remove(gate)
    found = complaints(looked_at(server, tmp_path))
    assert list(found) == [name]
    assert found[name].result is result
    assert f"--feature-gates={gate}=true" in (found[name].remedy or "")


def test_a_cluster_without_dynamic_resources_is_told_of_the_device_plugin(tmp_path: Path) -> None:
    kinds = [each for each in KINDS if each.group != "resource.k8s.io"]
    with running(ApiServer(kinds=kinds, version="v1.30.0")) as server:
        found = looked_at(server, tmp_path)
    told = [each for each in found if each.name == "API server"]
    assert [each.result for each in told] == [Result.FAILURE, Result.FAILURE]
    assert all("device-plugin" in (each.remedy or "") for each in told)


def test_an_empty_cluster_lacks_the_installation(tmp_path: Path) -> None:
    with running() as server:
        found = complaints(looked_at(server, tmp_path))
    assert set(found) == {"device classes", "admission policy", "rights of the driver", "driver"}
    assert "kubectl apply -k" in (found["driver"].remedy or "")


def test_a_policy_about_another_account_is_told(server: ApiServer, tmp_path: Path) -> None:
    moved = driver_pod("node2")
    for each in list(server.objects.all(PODS)):
        server.objects.delete(PODS, "pgpu-system", each["metadata"]["name"])
    server.objects.create(PODS, "gpus", moved)
    server.accounts["system:serviceaccount:gpus:pgpu-driver"] = server.accounts[ACCOUNT]

    told = complaints(looked_at(server, tmp_path))["admission policy"]
    assert "is not about system:serviceaccount:gpus:pgpu-driver" in told.finding


def test_a_policy_that_refuses_nothing_is_told(server: ApiServer, tmp_path: Path) -> None:
    (binding,) = server.objects.all(BINDINGS)
    server.objects.delete(BINDINGS, "", binding["metadata"]["name"])
    spec = {**binding["spec"], "validationActions": ["Audit"]}
    server.objects.create(BINDINGS, "", {"metadata": {"name": binding["metadata"]["name"]}, "spec": spec})

    assert "refuses nothing" in complaints(looked_at(server, tmp_path))["admission policy"].finding


def test_each_verb_that_the_driver_lacks_is_named(server: ApiServer, tmp_path: Path) -> None:
    server.accounts[ACCOUNT] = [
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list", "watch", "update"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get"]},
        {"apiGroups": ["events.k8s.io"], "resources": ["events"], "verbs": ["create"]},
    ]
    found = complaints(looked_at(server, tmp_path))
    assert f"{ACCOUNT} may not create, delete resourceslices" in found["rights of the driver"].finding


@pytest.mark.parametrize(
    ("runtime", "result"),
    [
        ("containerd://1.6.33", Result.FAILURE),
        ("containerd://1.7.22", Result.WARNING),
        ("docker://26.1.0", Result.WARNING),
    ],
)
def test_a_runtime_that_may_ignore_slices_is_told(
    server: ApiServer, tmp_path: Path, runtime: str, result: Result
) -> None:
    server.objects.update(NODES, "", node("node1", runtime))
    found = complaints(looked_at(server, tmp_path))
    assert found["container runtimes"].result is result
    assert runtime in found["container runtimes"].finding


def test_a_driver_that_does_not_run_is_told_with_its_reason(server: ApiServer, tmp_path: Path) -> None:
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    container = {"name": "driver", "image": "", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    server.objects.create(PODS, "pgpu-system", driver_pod("node2", phase="Pending", containerStatuses=[container]))
    found = complaints(looked_at(server, tmp_path))
    assert "pgpu-driver-node2 on node2 is not ready: ImagePullBackOff" in found["driver"].finding
    assert "node2 has none" in found["slices"].finding


def test_a_driver_outside_of_pods_is_seen_by_what_it_publishes(server: ApiServer, tmp_path: Path) -> None:
    server.objects.delete(PODS, "pgpu-system", "pgpu-driver-node1")
    found = complaints(looked_at(server, tmp_path))
    assert list(found) == ["driver"]
    assert found["driver"].result is Result.WARNING


def test_a_slice_that_lost_its_sharing_is_told(server: ApiServer, tmp_path: Path) -> None:
    server.objects.update(SLICES, "", published("node1", "gpu-a", allowMultipleAllocations=False))
    assert "no GPU that can be shared" in complaints(looked_at(server, tmp_path))["slices"].finding


def test_what_the_asker_may_not_see_is_said_to_be_unseen(server: ApiServer, tmp_path: Path) -> None:
    nothing_but = [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"], "verbs": ["list"]}]
    server.users["someone"] = User(nothing_but)
    found = looked_at(server, tmp_path, "someone")
    unseen = {each.name for each in found if "not looked at" in each.finding}
    assert {"shared devices", "extended resources", "device classes", "driver", "slices"} <= unseen


def test_a_server_that_does_not_answer_is_one_failure(tmp_path: Path) -> None:
    with running() as server:
        kubeconfig = server.kubeconfig(tmp_path)
    with closing(ClusterInspector(connect(kubeconfig))) as cluster:
        (found,) = check_cluster(cluster)
    assert found.result is Result.FAILURE
    assert "does not answer" in found.finding


def run(server: ApiServer, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    kubeconfig = str(server.kubeconfig(directory))
    return run_command(["doctor", "--kubernetes", "--kubeconfig", kubeconfig, *words], os.environ)


def test_the_command_exits_with_what_it_found(server: ApiServer, tmp_path: Path) -> None:
    healthy = run(server, tmp_path, "--json")
    assert healthy.returncode == 0, healthy.stderr
    assert validate("doctor", healthy.stdout)["is_healthy"]
    server.gates.remove("DRAConsumableCapacity")
    broken = run(server, tmp_path)
    assert broken.returncode == 1
    assert "FAIL  shared devices" in broken.stdout
    assert "mend it: on kube-apiserver" in broken.stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--pod", "team/waits"], "--pod and --kubeconfig are for a cluster"),
        (["--kubernetes", "--image", "x"], "--image is tried on this machine"),
        (["--kubernetes", "--kubeconfig", "/no/such/file"], "no way to Kubernetes' API server"),
    ],
)
def test_words_that_do_not_go_together_are_refused(words: list[str], complaint: str) -> None:
    done = run_command(["doctor", *words], os.environ)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
