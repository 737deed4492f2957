"""The runtime directory is on a tmpfs, private, and never shared by two state directories."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgpu.app.runtime_directory import is_usable, runtime_directory
from pgpu.errors import NodeError

SHM = Path("/dev/shm")


@pytest.fixture
def chosen() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=SHM) as path:
        yield Path(path)


def test_two_state_directories_have_a_folder_each(chosen: Path) -> None:
    assert runtime_directory(chosen, Path("/a"), {}) != runtime_directory(chosen, Path("/b"), {})
    assert runtime_directory(chosen, Path("/a"), {}) == runtime_directory(chosen, Path("/a"), {})


def test_two_names_of_one_state_directory_have_one_folder(chosen: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    first = runtime_directory(chosen, tmp_path / "real", {})
    assert runtime_directory(chosen, tmp_path / "link", {}) == first


def test_it_is_closed_to_others(chosen: Path) -> None:
    assert runtime_directory(chosen, Path("/a"), {}).stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_may_enter_is_refused(chosen: Path) -> None:
    runtime_directory(chosen, Path("/a"), {}).chmod(0o755)
    with pytest.raises(NodeError, match="alone"):
        runtime_directory(chosen, Path("/a"), {})


def test_a_link_in_its_place_is_refused(chosen: Path) -> None:
    folder = runtime_directory(chosen, Path("/a"), {})
    folder.rmdir()
    folder.symlink_to("/tmp")
    with pytest.raises(NodeError):
        runtime_directory(chosen, Path("/a"), {})


def test_a_disk_is_refused() -> None:
    with pytest.raises(NodeError, match="not on a tmpfs"):
        runtime_directory(Path("/proc"), Path("/a"), {})


def test_a_user_s_own_runtime_directory_is_used_if_it_is_a_tmpfs(chosen: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root has /run/pgpu")
    found = runtime_directory(None, Path("/a"), {"XDG_RUNTIME_DIR": str(chosen)})
    assert found.is_relative_to(chosen / "pgpu")


def test_shared_memory_is_a_tmpfs_and_proc_is_none() -> None:
    assert is_usable(SHM / "not" / "there")
    assert not is_usable(Path("/proc/self"))
