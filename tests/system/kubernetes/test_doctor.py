"""`pgpu doctor --kubernetes` against clusters that lack this or that, and why pods of them wait."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.api_objects import KINDS
from tests.fakes.api_server import CLAIMS, NODES, SLICES, ApiServer, User, running
from tests.manifests import KUSTOMIZE, written
from tests.system.conftest import PGPU
from tests.unit.test_cli import validate

from pgpu.errors import RequestError
from pgpu.kubernetes.api.connecting import connected
from pgpu.kubernetes.api.looking import Onlooker
from pgpu.kubernetes.doctor import examine, explain
from pgpu.model.finding import Finding, Result

PODS = next(kind for kind in KINDS if kind.plural == "pods")
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
    with closing(Onlooker(connected(server.kubeconfig(directory, token)))) as cluster:
        return list(examine(cluster))


def explained(server: ApiServer, directory: Path, name: str) -> list[Finding]:
    with closing(Onlooker(connected(server.kubeconfig(directory)))) as cluster:
        return list(explain(cluster, "team", name))


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
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
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
    with closing(Onlooker(connected(kubeconfig))) as cluster:
        (found,) = examine(cluster)
    assert found.result is Result.FAILURE
    assert "does not answer" in found.finding


def test_nodes_that_are_closed_to_a_pod_do_not_count(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(NODES, "", labelled("node2", {"pool": "large"}))
    server.objects.create(SLICES, "", published("node2", "gpu-c"))
    for name, on in (("one", "gpu-a"), ("two", "gpu-b")):
        server.objects.create(CLAIMS, "team", claim(name, "60Gi", on=on))
    server.objects.create(CLAIMS, "team", claim("mine", "30Gi"))
    server.objects.create(PODS, "team", pod_of_claim("anywhere", "mine"))
    bound = pod_of_claim("bound", "mine")
    bound["spec"]["nodeSelector"] = {"pool": "small"}
    server.objects.create(PODS, "team", bound)
    assert "that fits on node2" in explained(server, tmp_path, "anywhere")[0].finding
    assert explained(server, tmp_path, "bound")[0].finding == "no node with a GPU is open to it"
    closed = labelled("node2", {"pool": "large"})
    closed["spec"]["unschedulable"] = True
    server.objects.update(NODES, "", closed)
    told = explained(server, tmp_path, "anywhere")[0]
    assert told.finding == "it asks for 30 GiB, and no node that is open to it has that free"
    assert "at most 20 GiB" in (told.remedy or "")


def test_a_pod_that_fits_nowhere_is_told_who_has_the_rest(server: ApiServer, tmp_path: Path) -> None:
    for name, on in (("one", "gpu-a"), ("two", "gpu-a"), ("three", "gpu-b"), ("four", "gpu-b")):
        server.objects.create(CLAIMS, "team", claim(name, "30Gi", on=on))
    server.objects.create(CLAIMS, "team", claim("mine", "30Gi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    first, *gpus = explained(server, tmp_path, "waits")
    assert first.result is Result.FAILURE
    assert first.finding == "it asks for 30 GiB, and no node that is open to it has that free"
    assert "at most 20 GiB of one GPU are free for it" in (first.remedy or "")
    assert gpus[0].name == "node1 gpu-a"
    assert "20 GiB of 80 GiB" in gpus[0].finding
    assert "held by team/one 30 GiB, team/two 30 GiB" in gpus[0].finding


def test_what_is_asked_is_rounded_up_as_the_scheduler_does(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("mine", "1000Mi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    (first, *_) = explained(server, tmp_path, "waits")
    assert "it asks for 1 GiB, and that fits on node1 now" in first.finding
    assert "cannot allocate all claims" in first.finding


def test_a_claim_larger_than_any_gpu_never_starts(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("mine", "81Gi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    assert "it never starts here: no GPU has more than 80 GiB" in (explained(server, tmp_path, "waits")[0].remedy or "")


def test_limits_without_a_claim_ask_for_the_usual_size(server: ApiServer, tmp_path: Path) -> None:
    for name in ("gpu-a", "gpu-b"):
        server.objects.create(CLAIMS, "team", claim(f"on-{name}", "78Gi", on=name))
    limits = {"limits": {"pgpu.io/gpu-slice": "1"}, "requests": {"pgpu.io/gpu-slice": "1"}}
    server.objects.create(PODS, "team", pod("waits", containers=[{"name": "main", "resources": limits}]))
    assert (
        explained(server, tmp_path, "waits")[0].finding
        == "it asks for 4 GiB, and no node that is open to it has that free"
    )


def test_a_whole_gpu_needs_one_that_is_nobodys(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("slice", "1Gi", on="gpu-a"))
    server.objects.create(CLAIMS, "team", claim("whole", "1Gi", on="gpu-b-whole"))
    wanted = claim("mine", "1Gi")
    wanted["spec"]["devices"]["requests"][0]["exactly"] = {"deviceClassName": "whole.gpu.pgpu.io"}
    server.objects.create(CLAIMS, "team", wanted)
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    first, *gpus = explained(server, tmp_path, "waits")
    assert first.finding == "it asks for a whole GPU, and no node that is open to it has that free"
    assert "held by team/whole all of it" in gpus[1].finding


def test_a_gpu_that_is_shared_in_another_way_has_no_room(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("under-mps", "1Gi", on="gpu-a-mps"))
    server.objects.create(CLAIMS, "team", claim("large", "50Gi", on="gpu-b"))
    server.objects.create(CLAIMS, "team", claim("mine", "40Gi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    first, *gpus = explained(server, tmp_path, "waits")
    assert first.result is Result.FAILURE
    assert "at most 30 GiB of one GPU are free for it" in (first.remedy or "")
    assert "in the kind mps; held by team/under-mps 1 GiB" in gpus[0].finding


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu-99gib"}]}, "not there: gpu-99gib"),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimName": "gone"}]}, "not there: gone"),
        ({}, "asks for no GPU"),
    ],
)
def test_other_reasons_are_told(server: ApiServer, tmp_path: Path, spec: dict[str, Any], words: str) -> None:
    server.objects.create(PODS, "team", pod("waits", **spec))
    assert words in explained(server, tmp_path, "waits")[0].finding


def test_pods_that_do_not_wait_are_told_so(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(PODS, "team", pod("runs", nodeName="node1"))
    ended = pod("ended")
    ended["status"]["phase"] = "Succeeded"
    server.objects.create(PODS, "team", ended)
    assert "on node1" in explained(server, tmp_path, "runs")[0].finding
    assert "waits for nothing" in explained(server, tmp_path, "ended")[0].finding
    with pytest.raises(RequestError, match="no pod team/none"):
        explained(server, tmp_path, "none")


def run(server: ApiServer, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(PGPU), "doctor", "--kubernetes", "--kubeconfig", str(server.kubeconfig(directory)), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_exits_with_what_it_found(server: ApiServer, tmp_path: Path) -> None:
    healthy = run(server, tmp_path, "--json")
    assert healthy.returncode == 0, healthy.stderr
    assert validate("doctor", healthy.stdout)["is_healthy"]
    server.gates.remove("DRAConsumableCapacity")
    broken = run(server, tmp_path)
    assert broken.returncode == 1
    assert "FAIL  shared devices" in broken.stdout
    assert "mend it: on kube-apiserver" in broken.stdout


def test_the_command_explains_a_pod(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("mine", "81Gi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    told = run(server, tmp_path, "--pod", "team/waits")
    assert told.returncode == 1
    assert "FAIL  team/waits: it asks for 81 GiB" in told.stdout
    unknown = run(server, tmp_path, "--pod", "team/none", "--json")
    assert unknown.returncode == 125
    assert json.loads(unknown.stderr)["error"]["message"].startswith("there is no pod team/none")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--pod", "team/waits"], "--pod and --kubeconfig are for a cluster"),
        (["--kubernetes", "--image", "x"], "--image is tried on this machine"),
        (["--kubernetes", "--kubeconfig", "/no/such/file"], "no way to Kubernetes' API server"),
    ],
)
def test_words_that_do_not_go_together_are_refused(words: list[str], complaint: str) -> None:
    done = subprocess.run([str(PGPU), "doctor", *words], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
