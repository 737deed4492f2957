"""Jobs whose memory may lie on the host: what they take of a GPU for good, what the host must have room for, and who is
refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.engine.admission.snapshot import KEPT_BYTES, available_bytes
from pgpu.errors import RequestError
from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling.capacity import (
    check_can_page,
    host_bytes,
    resident_bytes,
    short_of_host_memory,
    taken_of_device,
    with_host_part,
)
from pgpu.units import GIB, MIB

PASCAL = Gpu("GPU-0", "P100", 0, 16 * GIB, "580", is_simulated=True, compute_capability=(6, 0))
MAXWELL = Gpu("GPU-1", "GTX 980 Ti", 0, 6 * GIB, "580", is_simulated=True, compute_capability=(5, 2))
ASKED = Request(6 * GIB, oversubscribes=True)


@given(memory_bytes=st.integers(1, 200 * GIB), factor=st.floats(1, 4))
def test_what_is_sure_on_the_device_is_a_part_of_the_slice_and_never_less_than_its_share(
    memory_bytes: int, factor: float
) -> None:
    part = resident_bytes(memory_bytes, factor)
    assert memory_bytes / factor <= part + 1
    assert part <= memory_bytes
    assert part <= memory_bytes / factor + 2 * MIB + 1


def test_a_job_that_does_not_oversubscribe_takes_all_of_its_slice() -> None:
    assert taken_of_device(Request(6 * GIB), 1.5) == Request(6 * GIB)
    assert taken_of_device(ASKED, 1.5).memory_bytes == 4 * GIB


def test_a_slice_knows_both_parts() -> None:
    part = with_host_part(Slice("GPU-0", 4 * GIB), 6 * GIB)
    assert (part.memory_bytes, part.device_bytes) == (6 * GIB, 4 * GIB)
    assert host_bytes([part, Slice("GPU-0", GIB)]) == 2 * GIB


def test_what_is_promised_of_the_host_is_promised_once() -> None:
    reasons = short_of_host_memory([("a", ASKED), ("b", ASKED), ("c", ASKED)], 1 * GIB, 6 * GIB, 1.5)
    assert list(reasons) == ["c"]
    assert reasons["c"] == "waits for host memory: 2 GiB of it may have to lie there, and 1 GiB are left"


def test_a_smaller_job_does_not_wait_behind_one_that_the_host_cannot_hold() -> None:
    small = Request(GIB, oversubscribes=True)
    assert list(short_of_host_memory([("a", ASKED), ("b", small), ("c", Request(6 * GIB))], 0, GIB, 1.5)) == ["a"]


@pytest.mark.parametrize(
    ("request_", "gpu", "factor", "complaint"),
    [
        (ASKED, MAXWELL, 1.5, "GTX 980 Ti cannot move memory to the host"),
        (ASKED, PASCAL, 1.0, "switched off"),
        (Request(GIB, gpu_count=2, oversubscribes=True), PASCAL, 1.5, "one GPU"),
        (Request(0, is_estimated=True, oversubscribes=True), PASCAL, 1.5, "needs an amount"),
    ],
)
def test_who_cannot_have_its_memory_moved_is_refused(
    request_: Request, gpu: Gpu, factor: float, complaint: str
) -> None:
    with pytest.raises(RequestError, match=complaint):
        check_can_page([gpu], request_, factor)


def test_who_can_is_let_through() -> None:
    check_can_page([PASCAL], ASKED, 1.5)
    check_can_page([MAXWELL], Request(GIB), 1.0)


class TestHostMemory:
    def _world(self, root: Path, available_kib: int, cgroups: dict[str, tuple[str, int]]) -> int:
        (root / "meminfo").write_text(f"MemTotal: 99999 kB\nMemAvailable: {available_kib} kB\n", encoding="ascii")
        (root / "self").write_text("0::/a/b\n", encoding="ascii")
        for name, (limit, used) in cgroups.items():
            directory = root / "cgroups" / name
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "memory.max").write_text(limit, encoding="ascii")
            (directory / "memory.current").write_text(str(used), encoding="ascii")
        return available_bytes(root / "meminfo", root / "cgroups", root / "self")

    def test_it_is_what_the_machine_has_less_what_is_kept(self, tmp_path: Path) -> None:
        assert self._world(tmp_path, 8 << 20, {"a/b": ("max", 1)}) == 8 * GIB - KEPT_BYTES

    def test_every_control_group_above_counts(self, tmp_path: Path) -> None:
        found = self._world(tmp_path, 8 << 20, {"a/b": ("max", 1), "a": (str(4 * GIB), GIB)})
        assert found == 3 * GIB - KEPT_BYTES

    def test_what_cannot_be_read_is_nothing(self, tmp_path: Path) -> None:
        assert available_bytes(tmp_path / "missing", tmp_path, tmp_path / "self") == 0
