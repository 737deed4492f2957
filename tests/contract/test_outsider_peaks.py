"""The record of the memory outside of slices, as the processes of one queue share it in a file."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakes.machine import make_machine

from pgpu.engine.admission.outsider_peaks import OutsiderPeaks
from pgpu.engine.admission.snapshot import Snapshot
from pgpu.engine.watch.watchdog import READING_SECONDS, Watchdog
from pgpu.model import Gpu
from pgpu.units import GIB, MIB

MINUTE = 60.0


@dataclass
class Machine:
    """Processes that read two GPUs, each with the file alone in common."""

    path: Path
    now_seconds: float = 1000.0
    driver_version: str = "580.1"

    def read(self, *used_bytes: int, slices_bytes: int = 0, after_seconds: float = 0.0) -> dict[str, int]:
        """Take a reading in a new process."""
        self.now_seconds += after_seconds
        gpus = tuple(
            Gpu(f"GPU-{index}", "Test", index, 8 * GIB, self.driver_version, is_simulated=True)
            for index in range(len(used_bytes))
        )
        held = {("job", gpu.uuid): slices_bytes for gpu in gpus}
        used = {gpu.uuid: amount + slices_bytes for gpu, amount in zip(gpus, used_bytes, strict=True)}
        peaks = OutsiderPeaks(self.path, MINUTE, lambda: self.now_seconds)
        return dict(peaks.with_reading(Snapshot(gpus, used, held)))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "watchdogs" / "gpus.peaks")


def test_a_process_that_has_just_begun_knows_what_an_earlier_one_read(machine: Machine) -> None:
    assert machine.read(100 * MIB, 0) == {}
    assert machine.read(100 * MIB, 0, after_seconds=MINUTE) == {"GPU-0": 100 * MIB, "GPU-1": 0}


def test_the_slices_own_memory_does_not_count(machine: Machine) -> None:
    machine.read(0)
    assert machine.read(0, slices_bytes=4 * GIB, after_seconds=MINUTE) == {"GPU-0": 0}


def test_growth_on_one_gpu_leaves_the_other_stable(machine: Machine) -> None:
    machine.read(0, 0)
    machine.read(0, 0, after_seconds=MINUTE)
    assert machine.read(GIB, 0, after_seconds=1.0) == {"GPU-1": 0}
    machine.read(GIB, 0, after_seconds=1.0)
    assert machine.read(0, 0, after_seconds=1.0) == {"GPU-1": 0}


def test_another_driver_voids_the_record(machine: Machine) -> None:
    machine.read(0)
    machine.driver_version = "590.1"
    assert machine.read(0, after_seconds=MINUTE) == {}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"GPU-0": {}}', b'{"GPU-0": {"driver_version": "580.1", "peak": 1}}']
)
def test_a_record_that_cannot_be_read_counts_as_none(machine: Machine, content: bytes) -> None:
    machine.read(0)
    machine.read(0, after_seconds=MINUTE)
    machine.path.write_bytes(content)
    assert machine.read(0, after_seconds=MINUTE) == {}
    assert machine.read(0, after_seconds=MINUTE) == {"GPU-0": 0}


def test_nothing_is_stable_where_the_record_cannot_be_written(machine: Machine) -> None:
    machine.path.parent.write_text("a file in place of the directory")
    machine.read(0)
    assert machine.read(0, after_seconds=MINUTE) == {}


def test_the_file_is_written_only_when_a_reading_changes_the_record(machine: Machine) -> None:
    machine.read(0)
    inode = machine.path.stat().st_ino
    for _ in range(59):
        machine.read(0, after_seconds=1.0)
    assert machine.path.stat().st_ino == inode
    machine.read(0, after_seconds=1.0)
    assert machine.path.stat().st_ino != inode


def test_a_watchdog_takes_a_snapshot_only_where_there_was_none_lately(tmp_path: Path) -> None:
    engine = make_machine(tmp_path, [GIB])
    engine.settings.runtime_directory.mkdir(exist_ok=True)
    watchdog = Watchdog(engine)
    engine.snapshot()
    engine.settings.outsider_peaks.unlink()
    watchdog.tick()
    assert not engine.settings.outsider_peaks.exists()
    engine.snapshot_at_seconds = -READING_SECONDS
    watchdog.tick()
    assert engine.settings.outsider_peaks.exists()
    watchdog.close()
