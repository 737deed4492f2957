"""What `kubectl apply -k deploy/kubernetes` and the Helm chart install: the same objects, with the names that the code uses."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import pytest
from tests.forked_commands import PGPU
from tests.manifests import CHART, KUSTOMIZE, NAMESPACE, Objects, charted, driver_pod, kustomized, written

from pgpu.kubernetes import names

ROOT = Path(__file__).parent.parent.parent.parent
SLICES = ("DeviceClass", "", names.SHARED_CLASS)


def without_namespace(objects: Objects) -> Objects:
    return {key: found for key, found in objects.items() if key[0] != "Namespace"}


@pytest.mark.parametrize(
    ("overlay", "values"),
    [(".", {}), ("simulated", {"simulate": "H100"}), ("device-plugin", {"mode": "device-plugin"})],
)
def test_the_chart_installs_what_each_overlay_does(overlay: str, values: dict[str, Any]) -> None:
    assert charted(values) == without_namespace(written(KUSTOMIZE / overlay))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl, which applies overlays, is not here")
@pytest.mark.parametrize("overlay", [".", "simulated", "device-plugin", "claim-templates", "scheduler"])
def test_kubectl_makes_of_an_overlay_what_these_tests_read(overlay: str) -> None:
    assert kustomized(KUSTOMIZE / overlay) == written(KUSTOMIZE / overlay)


def test_the_chart_s_claim_templates_are_the_written_ones() -> None:
    objects = charted({"claimTemplates": {"namespaces": ["team"]}})
    made = [found for (kind, _, _), found in objects.items() if kind == "ResourceClaimTemplate"]
    assert [found["metadata"].pop("namespace") for found in made] == ["team"] * 8
    assert made == list(written(KUSTOMIZE / "claim-templates").values())


def test_each_claim_template_is_for_the_size_in_its_name() -> None:
    for (_, _, name), found in written(KUSTOMIZE / "claim-templates").items():
        (request,) = found["spec"]["spec"]["devices"]["requests"]
        exactly = request["exactly"]
        assert exactly["deviceClassName"] == names.SHARED_CLASS
        assert name == f"gpu-{exactly['capacity']['requests'][names.MEMORY].removesuffix('Gi')}gib"


def test_helm_finds_nothing_to_complain_of() -> None:
    found = helm_python.lint(CHART, strict=True)
    assert found["errors"] == []
    assert [one["error"] for one in found["messages"]] == ["icon is recommended"]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"mode": "both"}, "/mode"),
        ({"simulated": "H100"}, "additional properties 'simulated' not allowed"),
        ({"directories": {"runtime": "run/pgpu"}}, "/directories/runtime"),
        ({"metrics": {"port": 0}}, "/metrics/port"),
        ({"claimTemplates": {"sizesGiB": ["24Gi"]}}, "/claimTemplates/sizesGiB/0"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=complaint):
        charted(values)


def test_directories_of_other_distributions_reach_driver_and_mounts() -> None:
    directories = {
        "kubelet": "/var/lib/k0s/kubelet",
        "cdi": "/etc/cdi",
        "runtime": "/dev/shm/pgpu",
        "state": "/data/pgpu",
    }
    pod = driver_pod(charted({"directories": directories}))
    (container,) = pod["containers"]
    for name, path in directories.items():
        assert f"--{name}-dir={path}" in container["args"]
        assert any(mount["mountPath"].startswith(path) for mount in container["volumeMounts"])
        assert any(volume["hostPath"]["path"].startswith(path) for volume in pod["volumes"] if "hostPath" in volume)


@pytest.mark.parametrize("mode", ["dra", "device-plugin"])
def test_the_driver_knows_every_word_that_it_is_started_with(mode: str) -> None:
    directories = {"kubelet": "/k", "cdi": "/c", "runtime": "/r", "state": "/s"}
    values = {"mode": mode, "simulate": "H100x2", "defaultMemory": "8GiB", "directories": directories}
    first, second, *words = driver_pod(charted(values))["containers"][0]["args"]
    assert (first, second) == ("kubernetes", "driver")
    help_text = subprocess.run([str(PGPU), first, second, "--help"], capture_output=True, text=True, check=True).stdout
    flags = {word.partition("=")[0] for word in words}
    assert ("--mode" in flags) == (mode == "device-plugin")
    assert not [flag for flag in flags if f"{flag} " not in help_text]


def test_each_host_path_is_mounted_where_it_is_on_the_host() -> None:
    # CDI files name paths of the host, and the driver writes them as it sees them.
    for values in ({}, {"mode": "device-plugin"}):
        pod = driver_pod(charted(values))
        on_host = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
        seen = {one["name"]: one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
        assert on_host == {name: path for name, path in seen.items() if name != "tmp"}


def test_the_driver_s_own_directory_lies_below_a_mount_so_that_it_can_be_made_again() -> None:
    # A directory that is itself the mount's stays lost once somebody removed it on the host.
    own = Path("/var/lib/kubelet/plugins") / names.DRIVER
    mounts = {Path(one["mountPath"]) for one in driver_pod(written(KUSTOMIZE))["containers"][0]["volumeMounts"]}
    assert own not in mounts
    assert own.parent in mounts


def test_what_may_be_left_out_is_left_out() -> None:
    bare = charted({"deviceClasses": {"create": False}, "admissionPolicy": {"create": False}, "priorityClassName": ""})
    assert {kind for kind, _, _ in bare} == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DaemonSet"}
    assert "priorityClassName" not in driver_pod(bare)
    assert "extendedResourceName" not in charted({"deviceClasses": {"extendedResourceName": ""}})[SLICES]["spec"]


def test_in_another_namespace_all_speak_of_that_one() -> None:
    objects = charted(namespace="gpus")
    assert NAMESPACE not in str(objects)
    policy = objects["ValidatingAdmissionPolicy", "", "pgpu-driver-own-node"]["spec"]
    assert 'system:serviceaccount:gpus:pgpu-driver"' in policy["matchConditions"][0]["expression"]


def test_classes_and_driver_bear_the_names_that_the_code_knows() -> None:
    objects = written(KUSTOMIZE)
    assert objects[SLICES]["spec"]["extendedResourceName"] == names.EXTENDED_RESOURCE
    selectors = {
        name: found["spec"]["selectors"] for (kind, _, name), found in objects.items() if kind == "DeviceClass"
    }
    kinds = {
        names.SHARED_CLASS: names.DeviceKind.TIME_SLICE,
        names.MPS_CLASS: names.DeviceKind.MPS,
        names.OVERSUBSCRIBED_CLASS: names.DeviceKind.OVERSUBSCRIBED,
    }
    (whole,) = selectors.pop(names.WHOLE_CLASS)
    assert "!device.allowMultipleAllocations" in whole["cel"]["expression"]
    for name, kind in kinds.items():
        (selector,) = selectors.pop(name)
        assert f'device.driver == "{names.DRIVER}"' in selector["cel"]["expression"]
        assert f'device.attributes["{names.DRIVER}"].{names.SHARING} == "{kind}"' in selector["cel"]["expression"]
    assert not selectors
    validations = objects["ValidatingAdmissionPolicy", "", "pgpu-driver-own-node"]["spec"]["validations"]
    assert any(f"'{names.DRIVER}'" in one["expression"] for one in validations)


def test_the_policy_takes_the_names_that_the_driver_gives_its_slices() -> None:
    policy = written(KUSTOMIZE)["ValidatingAdmissionPolicy", "", "pgpu-driver-own-node"]["spec"]
    (rule,) = [one["expression"] for one in policy["validations"] if "metadata.name" in one["expression"]]
    assert rule == (
        f"variables.slice.metadata.name.startsWith(variables.ownNode + '-{names.DRIVER}-')"
        " || size(variables.ownNode) > 220"
    )
    assert names.slice_of("n" * 220, "counters-999999") == f"{'n' * 220}-{names.DRIVER}-counters-999999"


def test_each_privilege_of_the_driver_has_its_reason() -> None:
    page = (ROOT / "docs" / "decisions" / "0048-privileges-of-node-driver.md").read_text("utf-8")
    pod = driver_pod(written(KUSTOMIZE))
    assert set(pod) & {"hostNetwork", "hostIPC", "shareProcessNamespace"} == set()
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "privileged": True,
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "runAsGroup": 0,
    }
    privileges = ["`privileged`", "`hostPID`", "`readOnlyRootFilesystem`", "`system-node-critical`", "`Bidirectional`"]
    paths = [f"`{one['hostPath']['path']}`" for one in pod["volumes"] if "hostPath" in one]
    rules = written(KUSTOMIZE)["ClusterRole", "", "pgpu-driver"]["rules"]
    verbs = [f"`{resource}` {', '.join(rule['verbs'])}" for rule in rules for resource in rule["resources"]]
    missing = [words for words in (*privileges, *paths, *verbs) if words not in page]
    assert not missing
