"""What a slice changes in a container, and what a runtime makes of two of them."""

from pathlib import Path
from typing import Any

import pytest

from pgpu.errors import NodeError
from pgpu.kubernetes.cdi_files import content_of
from pgpu.kubernetes.dra.container_edits import SEAL_DIRECTORY, container_edits
from pgpu.kubernetes.node_requirements import check_runtime, passes_cdi_of_plugins
from pgpu.model import Delivery
from pgpu.structs import replace

VIEW = Path("/run/pgpu/s/view")
SIMULATED = Delivery(
    slice_directory=VIEW,
    usage_path=Path("/run/pgpu/s/meter/usage"),
    gpu_uuids=("GPU-1",),
    simulated_state_directory=Path("/run/pgpu/simulated"),
    environment=(("CUDA_VISIBLE_DEVICES", "GPU-1"),),
    time_path=Path("/run/pgpu/s/meter/time"),
    board_directory=Path("/run/pgpu/board"),
)
REAL = replace(
    SIMULATED, simulated_state_directory=None, driver_files=(("libcuda.so.1", Path("/usr/lib/libcuda.so.1")),)
)
SEAL = Path("/run/pgpu/seals/u/u")
NVIDIA: dict[str, list[Any]] = {
    "deviceNodes": [{"path": "/dev/nvidia0"}],
    "mounts": [
        {"hostPath": "/drv/libcuda.so.580.1", "containerPath": "/usr/lib/x86_64-linux-gnu/libcuda.so.580.1"},
        {"hostPath": "/drv/libcudadebugger.so.580.1", "containerPath": "/usr/lib/libcudadebugger.so.580.1"},
    ],
    "env": ["NVIDIA_VISIBLE_DEVICES=all"],
    "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-ctk"}],
    "additionalGids": [],
}


def sources(edits: dict[str, list[Any]]) -> dict[str, str]:
    return {each["containerPath"]: each["hostPath"] for each in edits["mounts"]}


def test_a_slice_lies_where_programs_look() -> None:
    found = sources(container_edits(SIMULATED, SEAL, "x86_64", None))
    assert found["/.pgpu"] == str(VIEW)
    for directory in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64"):
        assert found[f"{directory}/libcuda.so.1"] == found[f"{directory}/libcuda.so"] == str(VIEW / "libpgpu.so")
        assert found[f"{directory}/libnvidia-ml.so.1"] == str(VIEW / "libpgpu-ml.so")
    assert found["/etc/ld.so.preload"] == str(VIEW / "ld.so.preload")


def test_only_what_is_counted_may_be_written() -> None:
    edits = container_edits(SIMULATED, SEAL, "x86_64", None)
    written = {each["containerPath"] for each in edits["mounts"] if "rw" in each["options"]}
    assert written == {"/.pgpu/usage", "/.pgpu/time", "/.pgpu/simgpu"}


def test_what_a_slice_binds_by_is_mounted_by_itself() -> None:
    found = sources(container_edits(SIMULATED, SEAL, "x86_64", None))
    assert found["/.pgpu/limit"] == str(VIEW / "limit")
    assert found["/.pgpu/libpgpu.so"] == str(VIEW / "libpgpu.so")


def test_nvidia_s_own_runtime_adds_no_gpu() -> None:
    assert "NVIDIA_VISIBLE_DEVICES=void" in container_edits(SIMULATED, SEAL, "x86_64", None)["env"]
    assert container_edits(REAL, SEAL, "x86_64", NVIDIA)["env"][-2:] == [
        "NVIDIA_VISIBLE_DEVICES=void",
        "CUDA_VISIBLE_DEVICES=GPU-1",
    ]


def test_a_real_gpu_brings_what_its_maker_says() -> None:
    edits = container_edits(REAL, SEAL, "x86_64", NVIDIA)
    assert edits["deviceNodes"] == NVIDIA["deviceNodes"]
    assert edits["hooks"] == NVIDIA["hooks"]
    assert edits["mounts"][:2] == NVIDIA["mounts"]
    assert sources(edits)["/.pgpu/driver/libcuda.so.1"] == "/drv/libcuda.so.580.1"
    assert "/usr/lib64/libcuda.so" not in sources(edits), "its maker's hook makes that name"


def test_a_driver_that_nobody_describes_is_where_it_was_found() -> None:
    edits = container_edits(REAL, SEAL, "x86_64", {**NVIDIA, "mounts": []})
    assert sources(edits)["/.pgpu/driver/libcuda.so.1"] == "/usr/lib/libcuda.so.1"


def test_two_claims_in_one_container_leave_a_seal_without_a_place() -> None:
    """A runtime lets the later of two mounts on one path win; what is below it must then be made in a directory that is only read."""
    edits = [container_edits(SIMULATED, Path(f"/seals/{uid}/{uid}"), "x86_64", None) for uid in ("one", "two")]
    both = {**sources(edits[0]), **sources(edits[1])}
    assert both[SEAL_DIRECTORY] == "/seals/two"
    assert both[f"{SEAL_DIRECTORY}/one"] == "/seals/one/one"
    (place,) = [each for each in edits[1]["mounts"] if each["containerPath"] == SEAL_DIRECTORY]
    assert "ro" in place["options"]


def test_groups_need_a_newer_file() -> None:
    assert b'"0.6.0"' in content_of("u", {"env": ["A=1"]})
    assert b'"0.7.0"' in content_of("u", {"additionalGids": [44]})


@pytest.mark.parametrize(
    "said", ["containerd://1.6.33", "containerd://1.7.1", "containerd://1.5.0-k3s1", "cri-o://1.22.1"]
)
def test_a_runtime_without_cdi_is_refused(said: str) -> None:
    with pytest.raises(NodeError, match="does not read CDI files"):
        check_runtime(said)


@pytest.mark.parametrize("said", ["containerd://2.1.9+unknown", "cri-o://1.33.0", "containerd://v2.0.0-rc.1"])
def test_a_runtime_with_cdi_is_taken(said: str) -> None:
    assert check_runtime(said) is None


@pytest.mark.parametrize("said", ["containerd://1.7.2", "containerd://1.7.27", "docker://27.1.1", "", "nonsense"])
def test_a_runtime_of_which_nobody_knows_is_remarked_on(said: str) -> None:
    assert check_runtime(said)


@pytest.mark.parametrize(
    ("runtime", "kubelet", "does"),
    [
        ("containerd://2.0.0", "v1.31.0", True),
        ("containerd://2.0.0", "v1.30.9", False),
        ("containerd://1.7.27", "v1.33.0", False),
        ("cri-o://1.31.0", "v1.31.0", True),
        ("cri-o://1.27.0", "v1.31.0", False),
        ("", "v1.33.0", False),
        ("containerd://2.0.0", "", False),
    ],
)
def test_a_plugin_s_cdi_names_reach_containers_of_new_kubelets(runtime: str, kubelet: str, *, does: bool) -> None:
    assert passes_cdi_of_plugins(runtime, kubelet) is does
