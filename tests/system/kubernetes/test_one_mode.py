"""A node is in one mode: what the other left is freed where it is surely nobody's, else the driver does not begin."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.fakes.claims import FakeClaims

from pgpu.errors import NodeError
from pgpu.kubernetes.driver_mode import Mode, enter_mode
from pgpu.kubernetes.pod_shares import ContainerUnits, Pod, PodContainer
from pgpu.kubernetes.unit_ids import RESOURCE, Unit, claim_of
from pgpu.model import Claim, Slice
from pgpu.units import GIB


class Told:
    """A kubelet's pods."""

    def __init__(self, *pods: Pod) -> None:
        self._pods = pods

    def pods(self) -> Sequence[Pod]:
        return self._pods

    def pod(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self._pods if (pod.namespace, pod.name) == (namespace, name)), None)


def _pod(*ids: str) -> Pod:
    return Pod("default", "p", (PodContainer("c", (), (ContainerUnits(RESOURCE, ids),)),))


def _held(directory: Path, *, units: int = 0, claims: int = 0) -> FakeClaims:
    node = FakeClaims(directory)
    gpu_uuid = node.present[0].uuid
    for number in range(units):
        node.hold(claim_of([Unit(gpu_uuid, number)]))
    for number in range(claims):
        node.hold(Claim(f"claim-{number}", "default", "c", (Slice(gpu_uuid, GIB),), note="dra"))
    return node


@pytest.mark.parametrize("mode", list(Mode))
def test_an_empty_node_may_be_in_any_mode(tmp_path: Path, mode: Mode) -> None:
    enter_mode(mode, _held(tmp_path), Told())


def test_what_is_of_the_same_mode_stays(tmp_path: Path) -> None:
    for mode, node in ((Mode.DRA, _held(tmp_path, claims=2)), (Mode.DEVICE_PLUGIN, _held(tmp_path, units=2))):
        enter_mode(mode, node, Told(_pod()))
        assert len(node.held()) == 2


def test_claims_keep_the_device_plugin_out(tmp_path: Path) -> None:
    node = _held(tmp_path, claims=2)
    with pytest.raises(
        NodeError, match="still has 2 slices of --mode dra, so --mode device-plugin cannot begin"
    ) as refused:
        enter_mode(Mode.DEVICE_PLUGIN, node, Told(_pod()))
    assert "drain the node" in (refused.value.hint or "")
    assert len(node.held()) == 2


def test_units_that_a_pod_has_keep_dra_out(tmp_path: Path) -> None:
    node = _held(tmp_path, units=1)
    with pytest.raises(NodeError, match="pods have them: default/p"):
        enter_mode(Mode.DRA, node, Told(_pod("GPU-1::0")))
    assert len(node.held()) == 1


def test_units_keep_dra_out_while_the_kubelet_knows_no_pods(tmp_path: Path) -> None:
    node = _held(tmp_path, units=1)
    with pytest.raises(NodeError, match="does not know its pods yet"):
        enter_mode(Mode.DRA, node, Told())
    assert len(node.held()) == 1


def test_units_that_no_pod_has_any_more_are_freed(tmp_path: Path) -> None:
    node = _held(tmp_path, units=3, claims=1)
    enter_mode(Mode.DRA, node, Told(_pod()))
    assert [each.claim.uid for each in node.held()] == ["claim-0"]
