"""The host's view of a job's board: the C header's layout, and no trust in what a job wrote."""

import re
import struct
from pathlib import Path

import pytest

from pgpu.enforcement import board
from pgpu.enforcement.compute_word import ComputeWord
from pgpu.errors import EnforcementError

HEADER = (Path(__file__).parent.parent.parent / "native" / "include" / "board_abi.h").read_text("utf-8")
WORD = ComputeWord(0.3, 100, is_measured=True, is_shared=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sizeof(struct pgpu_board_gpu)", board.GPU.size),
        ("offsetof(struct pgpu_board, gpu)", board.HEADER.size),
        ("sizeof(struct pgpu_board)", board.BOARD_BYTES),
        ("offsetof(struct pgpu_board_gpu, busy_since_ns)", struct.calcsize("<16s2Q")),
        ("offsetof(struct pgpu_board_gpu, busy_until_ns)", struct.calcsize("<16s3Q")),
        ("offsetof(struct pgpu_board_gpu, used_ns)", struct.calcsize("<16s5Q")),
        ("offsetof(struct pgpu_board_gpu, refilled_ns)", struct.calcsize("<16s9Q")),
        ("offsetof(struct pgpu_board_gpu, lacked_ns)", struct.calcsize("<16s10Q")),
    ],
)
def test_the_layout_is_the_header_s(text: str, value: int) -> None:
    found = re.search(rf"static_assert\({re.escape(text)} == (\d+)", HEADER)
    assert found is not None
    assert int(found[1]) == value


@pytest.mark.parametrize(("name", "value"), [("PGPU_BOARD_ABI", board.ABI), ("PGPU_BOARD_MAGIC", board.MAGIC)])
def test_constants_are_the_header_s(name: str, value: int) -> None:
    found = re.search(rf"#define {name}\s+(\w+?)(u|ull)?[ \n]", HEADER)
    assert found is not None
    assert int(found[1], 0) == value


def test_a_board_is_read_word_by_word(tmp_path: Path) -> None:
    path = tmp_path / "time"
    path.write_bytes(_board(budget_ns=-5))
    [gpu] = board.read_board(path, [7])
    assert gpu.compute == WORD
    assert (gpu.wanted_ns, gpu.busy_since_ns, gpu.busy_until_ns, gpu.busy_ns) == (1, 2, 3, 4)
    assert (gpu.used_ns, gpu.waited_ns, gpu.launches, gpu.budget_ns, gpu.in_flight_until_ns) == (5, 6, 8, -5, 7)


def test_a_board_that_no_process_has_entered_is_empty(tmp_path: Path) -> None:
    (tmp_path / "time").write_bytes(bytes(board.BOARD_BYTES))
    assert board.read_board(tmp_path / "time", [0]) == ()


@pytest.mark.parametrize(
    "data", [b"", b"GPUUTIME", b"\xff" * 5000, b"GPUUTIME" + struct.pack("<II", 2, 17) + bytes(5000)]
)
def test_a_spoilt_board_is_an_error_and_no_more(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "time").write_bytes(data)
    with pytest.raises(EnforcementError):
        board.read_board(tmp_path / "time", [0])


def test_a_board_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EnforcementError):
        board.read_board(tmp_path / "time", [0])


def _board(budget_ns: int = 0) -> bytes:
    gpu = board.GPU.pack(bytes(16), WORD.packed, 1, 2, 3, 4, 5, 6, 8, budget_ns, 9)
    return (board.HEADER.pack(board.MAGIC, board.ABI, 1) + gpu).ljust(board.BOARD_BYTES, b"\0")
