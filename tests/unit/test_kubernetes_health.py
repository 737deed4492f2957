"""When a GPU is called ill, and since when."""

from pathlib import Path

from tests.fakes.claims import gpu

from pgpu.errors import NodeError
from pgpu.gpu.nvml import NvmlSource
from pgpu.kubernetes.node_health import GpuHealth, HealthChangeNotifier, HealthState
from pgpu.model import Gpu
from pgpu.structs import replace

HERE, OTHER = gpu(0), gpu(1)


class Machine:
    """GPUs that a test takes away."""

    def __init__(self) -> None:
        self.present = [HERE, OTHER]
        self.xids: dict[str, int] = {}
        self.now_seconds = 10.0
        self.is_broken = False
        self.health = GpuHealth(self.gpus, lambda: self.xids, lambda: self.now_seconds)

    def gpus(self) -> list[Gpu]:
        if self.is_broken:
            raise NodeError("NVML is gone")
        return self.present


def test_a_gpu_that_is_listed_is_well() -> None:
    found = Machine().health.health()
    assert {each.state for each in found.values()} == {HealthState.HEALTHY}
    assert set(found) == {HERE.uuid, OTHER.uuid}


def test_a_gpu_that_is_not_listed_any_more_is_ill() -> None:
    machine = Machine()
    machine.health.health()
    machine.present = [OTHER]
    found = machine.health.health()
    assert found[HERE.uuid].state is HealthState.UNHEALTHY
    assert found[OTHER.uuid].state is HealthState.HEALTHY


def test_a_gpu_with_a_fatal_error_is_ill_since_it_was_seen() -> None:
    machine = Machine()
    machine.health.health()
    machine.xids, machine.now_seconds = {HERE.uuid: 79}, 20.0
    first = machine.health.health()[HERE.uuid]
    machine.now_seconds = 30.0
    again = machine.health.health()
    assert (first.state, first.xid, first.since_seconds) == (HealthState.UNHEALTHY, 79, 20.0)
    assert again[HERE.uuid] == first
    assert again[OTHER.uuid].since_seconds == 10.0


def test_an_instance_is_as_ill_as_its_gpu() -> None:
    machine = Machine()
    machine.present = [replace(HERE, uuid="MIG-1", parent_uuid=HERE.uuid), OTHER]
    machine.xids = {HERE.uuid: 79}
    found = machine.health.health()
    assert found["MIG-1"].xid == 79
    assert found[OTHER.uuid].state is HealthState.HEALTHY


def test_a_change_is_told_once() -> None:
    machine = Machine()
    told: list[str] = []
    news = HealthChangeNotifier(machine.health, lambda: told.append("changed"))
    news.poll()
    news.poll()
    assert not told
    machine.xids = {HERE.uuid: 79}
    news.poll()
    news.poll()
    assert told == ["changed"]


def test_without_a_driver_nothing_is_known() -> None:
    machine = Machine()
    machine.health.health()
    machine.is_broken = True
    assert {each.state for each in machine.health.health().values()} == {HealthState.UNKNOWN}


def test_a_simulated_error_is_a_file_beside_the_gpus(tmp_path: Path) -> None:
    watch = NvmlSource(tmp_path).watch_xids()
    assert watch.fatal_xids() == {}
    (tmp_path / "xid-GPU-1").write_text("79\n")
    (tmp_path / "xid-GPU-2").write_text("31\n")  # a program's own fault
    (tmp_path / "xid-GPU-3").write_text("what?")
    assert watch.fatal_xids() == {"GPU-1": 79}
