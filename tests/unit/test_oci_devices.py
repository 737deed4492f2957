"""A real GPU's CDI description, read and put into a container's configuration."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pgpu.app.oci.cdi import gpu_edits, parse_block_yaml
from pgpu.app.oci.container_slice import add_devices
from pgpu.app.oci.runc_call import ContainerRefusedError
from pgpu.errors import NodeError

_YAML = """---
# written by hand after the specification's examples
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/null
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-cdi-hook
    - create-symlinks
    - --link
    - libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so
    hookName: createContainer
    path: /usr/bin/nvidia-cdi-hook
  mounts:
  - containerPath: /usr/bin/nvidia-smi
    hostPath: /usr/bin/nvidia-smi
    options:
    - ro
    - bind
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/zero
      permissions: rw
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/full
      hostPath: /dev/zero
  name: GPU-1
kind: nvidia.com/gpu
"""


def test_block_yaml_is_read_as_its_makers_mean_it() -> None:
    found = parse_block_yaml(_YAML)
    assert found["cdiVersion"] == "0.5.0"
    assert found["devices"][0]["name"] == "0"
    assert found["containerEdits"]["hooks"][0]["args"][3] == "libcuda.so.1::/usr/lib/x86_64-linux-gnu/libcuda.so"
    assert found["containerEdits"]["mounts"][0]["options"] == ["ro", "bind"]
    assert parse_block_yaml("a:\n  - 1\n  - ''\nb: {}\nc:\nd: 'it''s'\n") == {
        "a": [1, ""],
        "b": {},
        "c": None,
        "d": "it's",
    }


@pytest.mark.parametrize(
    "text", ["a: {b: 1}", "a: &x 1", "a: |\n  x", "a:\n\tb: 1", "a: 1\n b: 2", "a: 1 # why", "a: 'x"]
)
def test_more_of_yaml_is_refused_by_its_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"line [12] uses more of YAML"):
        parse_block_yaml(text)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_the_edits_of_all_gpus_are_joined(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "other.json").write_text(json.dumps({"kind": "example.com/nic", "devices": []}))
    text = _YAML if suffix == "yaml" else json.dumps(parse_block_yaml(_YAML))
    (tmp_path / f"nvidia.{suffix}").write_text(text)
    edits, paths = gpu_edits([tmp_path / "absent", tmp_path])
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/null", "/dev/zero", "/dev/full"]
    assert paths == [tmp_path / f"nvidia.{suffix}"]


def test_a_machine_that_describes_no_gpu_is_told_how(tmp_path: Path) -> None:
    with pytest.raises(NodeError) as caught:
        gpu_edits([tmp_path])
    assert "nvidia-ctk cdi generate" in str(caught.value.hint)


def _edits(tmp_path: Path) -> dict[str, list[Any]]:
    (tmp_path / "nvidia.yaml").write_text(_YAML)
    return gpu_edits([tmp_path])[0]


def test_devices_mounts_hooks_and_variables_reach_the_configuration(tmp_path: Path) -> None:
    configuration: dict[str, Any] = {"process": {"env": []}, "linux": {"resources": {"devices": [{"allow": False}]}}}
    add_devices(configuration, _edits(tmp_path))
    null, zero, full = configuration["linux"]["devices"]
    assert (null["path"], null["type"], null["major"], null["minor"]) == ("/dev/null", "c", 1, 3)
    assert (full["path"], full["minor"]) == ("/dev/full", os.minor(Path("/dev/zero").stat().st_rdev))
    rules = configuration["linux"]["resources"]["devices"]
    assert rules[0] == {"allow": False}
    assert rules[2] == {"allow": True, "type": "c", "major": 1, "minor": zero["minor"], "access": "rw"}
    assert configuration["hooks"]["createContainer"][0]["path"] == "/usr/bin/nvidia-cdi-hook"
    assert configuration["mounts"][0]["destination"] == "/usr/bin/nvidia-smi"
    assert configuration["process"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_a_device_that_is_gone_is_refused(tmp_path: Path) -> None:
    edits = _edits(tmp_path)
    edits["deviceNodes"].append({"path": "/dev/nvidia-none"})
    with pytest.raises(ContainerRefusedError, match="/dev/nvidia-none is not there"):
        add_devices({"process": {"env": []}}, edits)
