"""What is made of a function for a cluster: only what Kubernetes knows, and nothing that a pod should not have."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lightkube.core.resource import Resource
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.autoscaling_v2 import HorizontalPodAutoscaler
from lightkube.resources.core_v1 import ConfigMap, Service
from lightkube.resources.resource_v1 import ResourceClaimTemplate

from pgpu.errors import RequestError
from pgpu.kubernetes.deploy import (
    ReplicaSlice,
    Scaling,
    SourceFile,
    VolumeMount,
    Workload,
    as_json,
    as_yaml,
    manifests,
)
from pgpu.structs import replace
from pgpu.units import GIB, KIB, MIB

Manifest = dict[str, Any]

SOURCE = (SourceFile("app.py", b"class Detector: ...\n"), SourceFile("pkg/model.py", b"A = 1\n", is_executable=True))
PLAIN = Workload("detector", "registry/detector:1", "app.py:Detector", "{}", SOURCE)
SLICED = replace(PLAIN, share=ReplicaSlice(1, 4 * GIB, 0.25))
FULL = replace(
    SLICED,
    namespace="vision",
    share=ReplicaSlice(2, 1536 * MIB, 0.333),
    scaling=Scaling(2, 5, is_automatic=True),
    cpu="2",
    environment=(("MODEL", "small"),),
    secrets=("token",),
    volumes=(VolumeMount("weights", "/weights"),),
    host_memory_bytes=8 * GIB,
)
KINDS: dict[str, Any] = {
    "ConfigMap": ConfigMap,
    "ResourceClaimTemplate": ResourceClaimTemplate,
    "Deployment": Deployment,
    "Service": Service,
    "HorizontalPodAutoscaler": HorizontalPodAutoscaler,
}


def made(workload: Workload) -> dict[str, Manifest]:
    """Return a function's objects by their kinds."""
    return {each["kind"]: each for each in manifests(workload)}


def pod(workload: Workload) -> Manifest:
    """Return the spec of its pods."""
    found: Manifest = made(workload)["Deployment"]["spec"]["template"]["spec"]
    return found


def words(workload: Workload) -> dict[str, str]:
    """Return what the front is told."""
    args = pod(workload)["containers"][0]["args"]
    return dict(zip(args[::2], args[1::2], strict=True))


@pytest.mark.parametrize("workload", [PLAIN, SLICED, FULL])
def test_kubernetes_own_types_lose_nothing_of_a_manifest(workload: Workload) -> None:
    for kind, manifest in made(workload).items():
        model: type[Resource] = KINDS[kind]
        assert model.from_dict(manifest).to_dict() == manifest, "a field that Kubernetes does not know is dropped"  # type: ignore[attr-defined]


def test_a_function_without_a_gpu_claims_nothing() -> None:
    assert list(made(PLAIN)) == ["ConfigMap", "Deployment", "Service"]
    assert "resourceClaims" not in pod(PLAIN)
    assert "claims" not in pod(PLAIN)["containers"][0]["resources"]


def test_each_replica_claims_a_slice_of_the_size_that_was_declared() -> None:
    template = made(SLICED)["ResourceClaimTemplate"]
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "gpu.pgpu.io"
    assert request["exactly"]["capacity"] == {"requests": {"memory": "4Gi", "compute": "25"}}
    (claim,) = pod(SLICED)["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template["metadata"]["name"]
    assert pod(SLICED)["containers"][0]["resources"]["claims"] == [{"name": claim["name"]}]


def test_a_slice_of_which_no_size_is_said_has_the_driver_s_usual_one() -> None:
    asked = made(replace(PLAIN, share=ReplicaSlice()))["ResourceClaimTemplate"]["spec"]["spec"]["devices"]["requests"][
        0
    ]
    assert "capacity" not in asked["exactly"]


def test_variables_are_taken_as_they_are() -> None:
    variables = pod(replace(PLAIN, environment=(("MODEL", "$(HOME)"), ("LANG", "C"))))["containers"][0]["env"]
    assert {each["name"]: each["value"] for each in variables}["MODEL"] == "$$(HOME)"
    assert [each["value"] for each in variables if each["name"] == "LANG"] == ["C"]


def test_a_secret_is_a_key_of_a_secret_that_is_there() -> None:
    workload = replace(PLAIN, secrets=("token", "key:env=KEY"))
    volume = next(each for each in pod(workload)["volumes"] if each["name"] == "secrets")["projected"]
    assert [each["secret"]["items"] for each in volume["sources"]] == [
        [{"key": name, "path": name}] for name in ("token", "key")
    ]
    container = pod(workload)["containers"][0]
    assert {"name": "PGPU_SECRETS", "value": "/run/secrets"} in container["env"]
    assert {"name": "secrets", "mountPath": "/run/secrets", "readOnly": True} in container["volumeMounts"]
    assert container["args"][-2:] == ["--secret-variable", "key:env=KEY"]
    with pytest.raises(RequestError, match="no name of a Secret"):
        pod(replace(PLAIN, secrets=("TOKEN",)))


def test_volumes_are_claims_that_are_there_and_read_only_unless_declared() -> None:
    spec = pod(replace(FULL, volumes=(*FULL.volumes, VolumeMount("out", "/out", is_writable=True))))
    claims = [each["persistentVolumeClaim"] for each in spec["volumes"] if each["name"].startswith("volume-")]
    assert claims == [{"claimName": "weights", "readOnly": True}, {"claimName": "out"}]
    mounts = {each["mountPath"]: each.get("readOnly") for each in spec["containers"][0]["volumeMounts"]}
    assert (mounts["/weights"], mounts["/out"]) == (True, None)
    with pytest.raises(RequestError, match="no name of a PersistentVolumeClaim"):
        pod(replace(PLAIN, volumes=(VolumeMount("/srv", "/weights"),)))


def test_several_gpus_are_different_ones_and_shares_are_rounded_up() -> None:
    devices = made(FULL)["ResourceClaimTemplate"]["spec"]["spec"]["devices"]
    assert devices["constraints"] == [{"requests": ["gpu"], "distinctAttribute": "gpu.pgpu.io/uuid"}]
    assert devices["requests"][0]["exactly"]["count"] == 2
    assert devices["requests"][0]["exactly"]["capacity"]["requests"] == {"memory": "1536Mi", "compute": "34"}


@pytest.mark.parametrize(
    "other",
    [
        replace(SLICED, source=(SourceFile("app.py", b"class Other: ...\n"),)),
        replace(SLICED, source=(replace(SOURCE[0], is_executable=True), SOURCE[1])),
        replace(SLICED, share=ReplicaSlice(1, 5 * GIB, 0.25)),
    ],
)
def test_what_changes_has_a_new_name_and_so_rolls_out(other: Workload) -> None:
    changed = {kind for kind in made(SLICED) if made(SLICED)[kind] != made(other)[kind]}
    named = {
        kind for kind in changed if made(SLICED)[kind]["metadata"]["name"] != made(other)[kind]["metadata"]["name"]
    }
    assert len(named) == 1
    assert named <= {"ConfigMap", "ResourceClaimTemplate"}
    assert changed - named == {"Deployment"}


def test_a_pod_may_nothing_that_it_does_not_need() -> None:
    spec = pod(FULL)
    (container,) = spec["containers"]
    assert not spec["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsGroup": 65532,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert writable == ["/tmp", "/run/pgpu-function"]


def test_the_front_is_told_what_the_function_declares_and_kubernetes_replaces_nothing_in_it() -> None:
    declaration = '{"arguments": {"prefix": "$(HOME) costs $$5"}}'
    said = words(replace(PLAIN, declaration=declaration))
    assert said["--app"] == "app.py:Detector"
    assert said["--source"] == "/function"
    assert said["--name"] == "detector"
    assert expanded(said["--declaration"], {"HOME": "/tmp"}) == declaration


def expanded(text: str, environment: dict[str, str]) -> str:
    """Do as the kubelet does: `$(NAME)` is the variable, `$$` is a dollar. Source: third_party/forked/golang/expansion."""
    out, place = "", 0
    while place < len(text):
        end = text.find(")", place)
        if text[place : place + 2] == "$$":
            out, place = out + "$", place + 2
        elif text[place : place + 2] == "$(" and end >= 0:
            name = text[place + 2 : end]
            out, place = out + environment.get(name, f"$({name})"), end + 1
        else:
            out, place = out + text[place], place + 1
    return out


def test_the_kubelet_asks_the_front_s_own_health_pages() -> None:
    (container,) = pod(replace(PLAIN, startup_timeout_seconds=99.5))["containers"]
    assert container["startupProbe"]["httpGet"] == {"path": "/v2/health/ready", "port": 8080}
    assert container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] > 99.5
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    assert container["livenessProbe"]["httpGet"]["path"] == "/v2/health/live"


def test_a_replica_that_leaves_has_time_for_its_longest_call() -> None:
    spec = pod(replace(PLAIN, timeout_seconds=120))
    paused = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > 120 + 10 + paused


def test_a_declaration_s_numbers_are_the_platform_s() -> None:
    assert made(PLAIN)["Deployment"]["spec"]["replicas"] == 1, "nothing would wake a Deployment that has none"
    fixed = made(replace(PLAIN, scaling=Scaling(3, 4)))["Deployment"]["spec"]
    assert fixed["replicas"] == 3
    scaled = made(FULL)
    assert "replicas" not in scaled["Deployment"]["spec"], "it would undo what the autoscaler did"
    spec = scaled["HorizontalPodAutoscaler"]["spec"]
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 5)
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "detector"}


def test_host_memory_is_asked_for_where_it_is_said_and_limited_always() -> None:
    assert pod(FULL)["containers"][0]["resources"] == {
        "requests": {"cpu": "2", "memory": "8Gi"},
        "limits": {"memory": "8Gi"},
        "claims": [{"name": "slice"}],
    }
    assert pod(PLAIN)["containers"][0]["resources"]["limits"] == {"memory": "4Gi"}


def test_a_new_version_starts_before_the_old_one_ends_or_after() -> None:
    assert made(PLAIN)["Deployment"]["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    strategy = made(replace(PLAIN, ends_before_it_starts=True))["Deployment"]["spec"]["strategy"]
    assert strategy == {"type": "Recreate"}


def test_the_service_finds_the_pods_and_prometheus_their_metrics() -> None:
    objects = made(FULL)
    template = objects["Deployment"]["spec"]["template"]
    selected = objects["Service"]["spec"]["selector"]
    assert selected.items() <= template["metadata"]["labels"].items()
    assert selected == objects["Deployment"]["spec"]["selector"]["matchLabels"]
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == 8080
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "8080"
    assert template["metadata"]["annotations"]["prometheus.io/path"] == "/metrics"


def mounted(workload: Workload) -> dict[str, tuple[bytes, bool]]:
    """Return the tree that a pod finds, as the kubelet makes it of the ConfigMap."""
    config = made(workload)["ConfigMap"]
    texts = {key: text.encode() for key, text in config.get("data", {}).items()}
    others = {key: base64.b64decode(text) for key, text in config.get("binaryData", {}).items()}
    assert not set(texts) & set(others)
    (volume,) = [each["configMap"] for each in pod(workload)["volumes"] if each["name"] == "source"]
    assert volume["name"] == config["metadata"]["name"]
    return {item["path"]: ((texts | others)[item["key"]], item["mode"] == 0o555) for item in volume["items"]}


NAMES = st.text("aZ09._- é/", min_size=1, max_size=20).filter(
    lambda path: all(part not in {"", ".", ".."} for part in path.split("/")) and not path.startswith("..")
)


@given(st.dictionaries(NAMES, st.tuples(st.binary(max_size=40), st.booleans()), min_size=1, max_size=8))
def test_a_pod_finds_the_source_as_it_was(tree: dict[str, tuple[bytes, bool]]) -> None:
    source = tuple(SourceFile(path, content, is_executable) for path, (content, is_executable) in tree.items())
    workload = replace(PLAIN, source=source)
    assert mounted(workload) == tree
    config = made(workload)["ConfigMap"]
    for key in [*config.get("data", {}), *config.get("binaryData", {})]:
        assert not key.startswith("..")
        assert set(key) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


@given(st.lists(st.text(max_size=60), max_size=3), st.text(max_size=30))
def test_yaml_and_json_say_the_same_as_the_values(texts: list[str], declaration: str) -> None:
    source = tuple(SourceFile(f"{number}.txt", text.encode("utf-8", "replace")) for number, text in enumerate(texts))
    objects = manifests(replace(SLICED, source=source, declaration=declaration))
    assert tuple(yaml.safe_load_all(as_yaml(objects))) == objects
    assert tuple(json.loads(as_json(objects))["items"]) == objects


def test_source_in_yaml_can_be_read_by_people() -> None:
    assert "  app.py: |\n    class Detector: ...\n" in as_yaml(manifests(PLAIN))


def refusals() -> Iterator[tuple[Workload, str]]:
    yield replace(PLAIN, name="my_model"), "cannot be the name of a Service"
    yield replace(PLAIN, name="9lives"), "cannot be the name of a Service"
    yield replace(PLAIN, name="a" * 64), "cannot be the name of a Service"
    yield replace(PLAIN, namespace="Vision"), "no name of a namespace"
    yield replace(PLAIN, source=(SourceFile("w.bin", bytes(MIB + KIB)),)), "a ConfigMap at most 1 MiB.*w.bin"
    yield replace(PLAIN, source=tuple(SourceFile(f"{number}", b"") for number in range(1001))), "1001 files"
    yield replace(PLAIN, source=(SourceFile("..data", b""),)), "begins like"


@pytest.mark.parametrize(("workload", "complaint"), list(refusals()))
def test_what_no_cluster_takes_is_refused_with_a_hint(workload: Workload, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as refused:
        manifests(workload)
    assert refused.value.hint
