"""The driver before a kubelet: claims become slices and CDI files, and go again, whatever order they are asked in."""

from collections.abc import Iterator

import pytest
from tests.system.kubernetes.driver_world import GPU, NODE, World, allocated, world

from pgpu.kubernetes import names
from pgpu.units import GIB


@pytest.fixture
def node() -> Iterator[World]:
    with world(gpus=2) as made:
        yield made


def test_a_claim_becomes_a_slice_and_a_cdi_file(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        answer = node.kubelet.prepare(claim)[claim.uid]
    (device,) = answer.devices
    assert not answer.error
    assert (device.pool_name, device.device_name) == (NODE, names.shared_device(GPU.uuid))
    assert (list(device.request_names), device.share_id) == (["gpu"], "share-1")
    assert list(device.cdi_device_ids) == [f"pgpu.io/gpu={claim.uid}"]
    (held,) = node.claims.held()
    assert [(part.gpu_uuid, part.memory_bytes) for part in held.claim.slices] == [(GPU.uuid, 30 * GIB)]
    assert {"/.pgpu", "/.pgpu/usage", "/etc/ld.so.preload"} <= {
        each["containerPath"] for each in node.edits(claim)["mounts"]
    }


def test_an_unprepared_claim_leaves_nothing(node: World) -> None:
    claim = node.add(allocated("c"))
    with node.running():
        node.kubelet.prepare(claim)
        assert not node.kubelet.unprepare(claim)[claim.uid].error
        assert not node.cdi_file(claim).exists()
        assert not list((node.root / "seals").iterdir())
    assert not node.claims.held()
