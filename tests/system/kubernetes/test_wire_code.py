"""The messages of the kubelet: the code that is committed is what their .proto files say, and those say what a kubelet sends."""

import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor import ServiceDescriptor

from pgpu.kubernetes.dra.dra_service import DRA_VERSIONS
from pgpu.kubernetes.generated import device_plugin_v1beta1_pb2 as plugin
from pgpu.kubernetes.generated import dra_health_v1alpha1_pb2 as health
from pgpu.kubernetes.generated import dra_v1_pb2 as dra
from pgpu.kubernetes.generated import plugin_registration_pb2 as registration
from pgpu.kubernetes.generated import pod_resources_v1_pb2 as pods

REPOSITORY = Path(__file__).resolve().parents[3]
WIRE = Path("pgpu/kubernetes/generated")


def test_the_code_is_what_the_proto_files_say(tmp_path: Path) -> None:
    subprocess.run([sys.executable, REPOSITORY / "tools/generate_wire.py", tmp_path], check=True)
    made = {path.name: path.read_text() for path in (tmp_path / WIRE).iterdir()}
    kept = {
        path.name: path.read_text()
        for path in (REPOSITORY / "src" / WIRE).iterdir()
        if "_pb2" in path.name and path.is_file()
    }
    assert made == kept, "run tools/generate_wire.py"


def test_a_prepared_device_is_the_bytes_that_a_kubelet_reads() -> None:
    device = dra.Device(request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["k/c=x"], share_id="s")
    answer = dra.NodePrepareResourcesResponse(claims={"u": dra.NodePrepareResourceResponse(devices=[device])})
    assert device.SerializeToString() == b"\x0a\x01r\x12\x01p\x1a\x01d\x22\x05k/c=x\x2a\x01s"
    assert answer.SerializeToString() == b"\x0a\x1a\x0a\x01u\x12\x15\x0a\x13" + device.SerializeToString()


def test_an_error_has_its_own_number() -> None:
    assert dra.NodePrepareResourceResponse(error="e").SerializeToString() == b"\x12\x01e"
    assert dra.NodeUnprepareResourceResponse(error="e").SerializeToString() == b"\x0a\x01e"


def test_a_claim_is_namespace_uid_and_name() -> None:
    assert dra.Claim.FromString(b"\x0a\x01n\x12\x01u\x1a\x01c") == dra.Claim(namespace="n", uid="u", name="c")


def test_a_registration_is_type_name_endpoint_and_versions() -> None:
    info = registration.PluginInfo(type="t", name="n", endpoint="e", supported_versions=["v"])
    assert info.SerializeToString() == b"\x0a\x01t\x12\x01n\x1a\x01e\x22\x01v"
    assert registration.RegistrationStatus.FromString(b"\x08\x01\x12\x01e").error == "e"


def test_a_device_s_health_is_the_bytes_that_a_kubelet_reads() -> None:
    seen = health.DeviceHealth(
        device=health.DeviceIdentifier(pool_name="p", device_name="d"),
        health=health.UNHEALTHY,
        last_updated_time=5,
        health_check_timeout_seconds=6,
        message="m",
    )
    assert seen.SerializeToString() == b"\x0a\x06\x0a\x01p\x12\x01d\x10\x02\x18\x05\x20\x06\x2a\x01m"


def test_the_services_have_the_names_that_a_kubelet_calls() -> None:
    assert [version.service for version in DRA_VERSIONS] == [
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
    ]
    assert [version.name for version in DRA_VERSIONS] == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
    assert {name: [method.name for method in each.methods] for name, each in services().items()} == {
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin": ["NodePrepareResources", "NodeUnprepareResources"],
        "pluginregistration.Registration": ["GetInfo", "NotifyRegistrationStatus"],
        "v1.PodResourcesLister": ["List", "GetAllocatableResources", "Get"],
        "v1alpha1.DRAResourceHealth": ["NodeWatchResources"],
        "v1beta1.DevicePlugin": [
            "GetDevicePluginOptions",
            "ListAndWatch",
            "GetPreferredAllocation",
            "Allocate",
            "PreStartContainer",
        ],
        "v1beta1.Registration": ["Register"],
    }


def services() -> dict[str, ServiceDescriptor]:
    found = (dra, registration, health, plugin, pods)
    return {each.full_name: each for module in found for each in module.DESCRIPTOR.services_by_name.values()}
