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
    with pytest.raises(NodeError, match="not on a tmpfs") as caught:
        runtime_directory(Path("/proc"), Path("/a"), {})
    assert "docker run --tmpfs /dev/shm:exec" in (caught.value.hint or "")


def test_a_user_s_own_runtime_directory_is_used_if_it_is_a_tmpfs(chosen: Path, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root has /run/pgpu")
    found = runtime_directory(None, tmp_path, {"XDG_RUNTIME_DIR": str(chosen)})
    assert found.is_relative_to(chosen / "pgpu")


def test_shared_memory_is_a_tmpfs_and_proc_is_none() -> None:
    assert is_usable(SHM / "not" / "there")
    assert not is_usable(Path("/proc/self"))


def test_another_user_s_runtime_directory_left_in_the_environment_is_passed_over(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may enter every directory")
    (tmp_path / "theirs").mkdir(mode=0o000)
    found = runtime_directory(None, tmp_path / "state", {"XDG_RUNTIME_DIR": str(tmp_path / "theirs")})
    assert found.is_relative_to(SHM)


def test_a_folder_on_a_disk_in_the_link_s_place_is_refused(tmp_path: Path) -> None:
    if is_usable(tmp_path):
        pytest.skip("temporary files are on a tmpfs here")
    (tmp_path / "runtime").mkdir()
    with pytest.raises(NodeError, match="not on a tmpfs"):
        runtime_directory(None, tmp_path, {})


def test_a_state_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NodeError, match="not a directory"):
        runtime_directory(None, tmp_path / "file", {})


def test_a_name_that_no_file_system_takes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="too long"):
        runtime_directory(None, tmp_path / ("a" * 300), {})


def test_a_place_that_may_not_be_entered_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may enter every directory")
    (tmp_path / "closed").mkdir(mode=0o000)
    with pytest.raises(NodeError, match="Permission denied"):
        runtime_directory(None, tmp_path / "closed" / "state", {})
    with pytest.raises(NodeError, match="Permission denied"):
        runtime_directory(tmp_path / "closed" / "runtime", tmp_path / "state", {})
