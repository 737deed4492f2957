"""The board's directory: what a file's name tells the shims of other jobs."""

import re
from pathlib import Path

from pgpu import tmpfs
from pgpu.app.oci import container_slice
from pgpu.model import DOCKER_UID

_HEADER = (Path(__file__).parent.parent.parent / "native" / "include" / "board_abi.h").read_text("utf-8")
_UUID = "GPU-1A2b3c4d-5555-6666-7777-888888888888"
_OWNER = 0xFFFFFFFE
_INSTANCE = "MIG-9f8e7d6c-5555-6666-7777-888888888888"


def _name(tmp_path: Path, *uuids: str) -> str:
    meter = tmp_path / "meter"
    meter.mkdir()
    tmpfs.join_board(str(tmp_path), str(meter), _OWNER, uuids)
    try:
        return (meter / tmpfs.TIME).readlink().name
    finally:
        tmpfs.leave_board(str(tmp_path), str(meter))  # the board is a mount, if this is root


def test_a_file_is_named_after_the_owner_and_the_gpus_of_its_job(tmp_path: Path) -> None:
    assert re.fullmatch("fffffffe[0-9a-f]{16}-1a2b3c4d-9f8e7d6c", _name(tmp_path, _UUID, _INSTANCE))


def test_a_file_whose_gpus_are_not_known_concerns_everybody(tmp_path: Path) -> None:
    assert re.fullmatch("fffffffe[0-9a-f]{16}", _name(tmp_path))


def test_containers_have_their_owner_s_number() -> None:
    assert container_slice.OWNER_UID == DOCKER_UID


def test_the_longest_name_has_room_in_the_shim(tmp_path: Path) -> None:
    found = re.search(r"PGPU_BOARD_NAME_BYTES\s+\((\d+) \+ (\d+) \* PGPU_MAX_GPUS \+ (\d+)\)", _HEADER)
    assert found is not None
    first, each, more = map(int, found.groups())
    assert len(_name(tmp_path, *[_UUID] * 16)) < first + each * 16 + more
