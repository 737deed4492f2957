"""What every GpuSource does: NVML over the simulated driver, and the files that stand in for it in the engine's tests."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from tests.fakes.machine import FileGpus
from tests.nvml_world import MIB, RTX_3090_BYTES, SimulatedGpus

from pgpu.errors import NodeError
from pgpu.gpu import GpuSource
from pgpu.gpu.nvml import NvmlSource
from pgpu.gpu.simulated import CUDA_VERSION
from pgpu.model import GpuSensors
from pgpu.structs import asdict
from pgpu.units import GIB


class World(Protocol):
    """Two GPUs, and a way to hold memory of the first."""

    @property
    def source(self) -> GpuSource: ...

    def held(self, used_bytes: int) -> AbstractContextManager[int]:
        """Hold memory of the first GPU in a process, whose host PID is given."""
        ...


class NvmlWorld:
    def __init__(self, directory: Path) -> None:
        self._gpus = SimulatedGpus(directory, "RTX 3090x2")
        self.source: GpuSource = NvmlSource(directory)

    def held(self, used_bytes: int) -> AbstractContextManager[int]:
        return self._gpus.held(0, used_bytes)


class FileWorld:
    PID = 4711

    def __init__(self, directory: Path) -> None:
        (directory / "gpus.json").write_text(json.dumps([RTX_3090_BYTES] * 2))
        self._directory = directory
        self._gpus = FileGpus(directory)
        self.source: GpuSource = self._gpus

    @contextmanager
    def held(self, used_bytes: int) -> Iterator[int]:
        uuid = self.source.gpus()[0].uuid
        processes = self._directory / f"processes-{uuid}.json"
        self._gpus.set_outsiders(uuid, used_bytes)
        processes.write_text(json.dumps([[self.PID, used_bytes]]))
        yield self.PID
        self._gpus.set_outsiders(uuid, 0)
        processes.unlink()


@pytest.fixture(params=[NvmlWorld, FileWorld])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-gpus-", dir="/dev/shm"))
    yield request.param(directory)
    shutil.rmtree(directory)


def test_gpus_come_in_index_order_and_each_once(world: World) -> None:
    gpus = world.source.gpus()
    assert [gpu.index for gpu in gpus] == [0, 1]
    assert len({gpu.uuid for gpu in gpus}) == 2
    assert {gpu.memory_bytes for gpu in gpus} == {RTX_3090_BYTES}
    assert all(gpu.name and gpu.driver_version and gpu.is_simulated for gpu in gpus)


def test_a_gpu_that_nobody_uses_holds_nothing(world: World) -> None:
    gpu = world.source.gpus()[0]
    assert world.source.memory(gpu.uuid).used_bytes == 0
    assert list(world.source.processes(gpu.uuid)) == []


def test_what_a_process_holds_is_told_of_its_gpu_alone_and_until_it_ends(world: World) -> None:
    first, second = world.source.gpus()
    with world.held(300 * MIB) as pid:
        assert world.source.memory(first.uuid).used_bytes == 300 * MIB
        assert world.source.memory(second.uuid).used_bytes == 0
        (process,) = world.source.processes(first.uuid)
        assert (process.gpu_uuid, process.pid, process.used_bytes) == (first.uuid, pid, 300 * MIB)
        assert list(world.source.processes(second.uuid)) == []
    assert world.source.memory(first.uuid).used_bytes == 0
    assert list(world.source.processes(first.uuid)) == []


def test_performance_metrics_are_fractions_or_unknown(world: World) -> None:
    watch = world.source.watch_metrics(world.source.gpus()[0].uuid)
    if watch is not None:
        seconds, averages = watch.finish()
        assert seconds >= 0
        assert all(0 <= each <= 1 for each in averages.values())


def test_utilisation_is_a_percentage_or_unknown(world: World) -> None:
    percent = world.source.utilisation_percent(world.source.gpus()[0].uuid)
    assert percent is None or 0 <= percent <= 100


def test_sensors_are_plausible_or_unknown(world: World) -> None:
    sensors = world.source.sensors(world.source.gpus()[0].uuid)
    celsius, watts, limit_watts, mhz, memory_mhz = (getattr(sensors, name) for name in GpuSensors.__struct_fields__)
    assert celsius is None or 0 < celsius < 120
    assert watts is None or limit_watts is None or 0 < watts <= limit_watts
    assert all(each is None or each > 0 for each in (mhz, memory_mhz))


def test_a_simulated_gpu_reports_all_sensors_and_its_instances_none(tmp_path: Path) -> None:
    world = NvmlWorld(tmp_path)
    assert None not in asdict(world.source.sensors(world.source.gpus()[0].uuid)).values()
    SimulatedGpus(tmp_path / "mig", "H100 mig 1g.10gb")
    source = NvmlSource(tmp_path / "mig")
    assert source.sensors(source.gpus()[0].uuid) == GpuSensors()


@pytest.fixture
def shared() -> Iterator[SimulatedGpus]:
    """A machine with 100 GiB of memory, of which 90 are available, and a GPU that shares it."""
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-gpus-", dir="/dev/shm"))
    gpus = SimulatedGpus(directory, "GB10")
    (directory / "meminfo").write_text(f"MemTotal: {100 << 20} kB\nMemAvailable: {90 << 20} kB\nHugePages_Total: 7\n")
    yield gpus
    shutil.rmtree(directory)


def test_a_gpu_whose_memory_nvml_does_not_report_has_the_machines(shared: SimulatedGpus) -> None:
    source = NvmlSource(shared.directory)
    (gpu,) = source.gpus()
    assert (gpu.memory_bytes, gpu.shares_host_memory, gpu.link_bytes_per_second) == (100 * GIB, True, None)
    assert source.sensors(gpu.uuid).power_limit_watts is None
    assert source.memory(gpu.uuid).used_bytes == 10 * GIB
    with shared.held(0, 11 * GIB):
        assert source.memory(gpu.uuid).used_bytes == 11 * GIB
    shared.directory.joinpath("meminfo").write_text("MemTotal: much\n")
    with pytest.raises(NodeError, match="does not report the machine's memory, which its GPU shares"):
        source.gpus()


def test_nvml_says_clearly_that_a_gpu_is_not_there(tmp_path: Path) -> None:
    source = NvmlWorld(tmp_path).source
    with pytest.raises(NodeError, match="cannot read the memory of GPU-0: NVML reports not found"):
        source.memory("GPU-0")


def test_nvml_tells_which_cuda_the_driver_serves(tmp_path: Path) -> None:
    SimulatedGpus(tmp_path, "RTX 3090")
    assert NvmlSource(tmp_path).cuda_version() == CUDA_VERSION


def test_one_process_can_ask_several_simulated_machines_in_turn(tmp_path: Path) -> None:
    worlds = [NvmlWorld(tmp_path / name) for name in ("a", "b")]
    uuids = [world.source.gpus()[0].uuid for world in worlds]
    assert [world.source.gpus()[0].uuid for world in worlds] == uuids
    assert len(set(uuids)) == 2


def test_a_directory_without_simulated_gpus_is_the_operators_to_mend(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="cannot initialise NVML"):
        NvmlSource(tmp_path).gpus()
