import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pgpu.errors import NodeError
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.products import MODELS
from pgpu.gpu.simulated import simulated_uuid, start_simulated
from pgpu.host.meminfo import read_meminfo


def configuration(directory: Path) -> list[dict[str, str]]:
    _, *sections = (directory / "gpus.conf").read_text().split("[gpu]\n")
    return [dict(line.split("=", 1) for line in section.split("\n") if line) for section in sections]


def test_simulated_gpus_stand_in_gpus_conf_with_the_catalogs_figures(tmp_path: Path) -> None:
    model, count = parse_model("RTX 3090x3")
    start_simulated(tmp_path / "state", model, count)
    found = configuration(tmp_path / "state")
    assert [gpu["name"] for gpu in found] == ["NVIDIA GeForce RTX 3090"] * 3
    assert {gpu["memory_bytes"] for gpu in found} == {str(24_265 * 2**20)}
    assert len({gpu["uuid"] for gpu in found}) == len({gpu["pci_bus_id"] for gpu in found}) == 3


def test_the_machine_of_gpus_without_memory_of_their_own_reports_all_of_theirs_as_available(tmp_path: Path) -> None:
    model, _ = parse_model("GB10")
    start_simulated(tmp_path, model, 1)
    assert read_meminfo(tmp_path / "meminfo") == dict.fromkeys(("MemTotal", "MemAvailable"), model.memory_bytes)


def test_starting_twice_changes_nothing(tmp_path: Path) -> None:
    start_simulated(tmp_path, MODELS[0], 2)
    before = (tmp_path / "gpus.conf").stat()
    start_simulated(tmp_path, MODELS[0], 2)
    after = (tmp_path / "gpus.conf").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert [path.name for path in tmp_path.iterdir()] == ["gpus.conf"]


def test_many_starts_at_once_make_one_description(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: start_simulated(tmp_path / "state", MODELS[0], 4), range(32)))
    assert len(configuration(tmp_path / "state")) == 4
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["gpus.conf"]


def test_a_directory_that_simulates_other_gpus_is_refused_and_left_alone(tmp_path: Path) -> None:
    start_simulated(tmp_path, MODELS[0], 1)
    before = (tmp_path / "gpus.conf").read_text()
    with pytest.raises(NodeError, match="other GPUs"):
        start_simulated(tmp_path, MODELS[1], 1)
    assert (tmp_path / "gpus.conf").read_text() == before


def test_figures_that_an_older_version_wrote_stay_while_its_jobs_run(tmp_path: Path) -> None:
    start_simulated(tmp_path, MODELS[0], 1)
    path = tmp_path / "gpus.conf"
    older = path.read_text().replace("clock_khz=1695000", "clock_khz=1000000")
    path.write_text(older)
    start_simulated(tmp_path, MODELS[0], 1)
    assert path.read_text() == older


def test_two_state_directories_never_share_a_uuid(tmp_path: Path) -> None:
    uuids = {simulated_uuid(tmp_path / name, index) for name in ("a", "b") for index in range(16)}
    assert len(uuids) == 32


def test_a_uuid_does_not_depend_on_how_the_directory_is_written(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert simulated_uuid(tmp_path / "link", 0) == simulated_uuid(tmp_path / "x" / "..", 0)


def test_a_job_of_any_user_can_keep_the_drivers_state_there_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        start_simulated(tmp_path / "state", MODELS[0], 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "state" / "gpus.conf").stat().st_mode) == 0o644


def test_a_directory_that_cannot_be_made_gets_one_clear_line_and_a_hint(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NodeError, match="cannot be made in") as caught:
        start_simulated(tmp_path / "file" / "state", MODELS[0], 1)
    assert caught.value.hint is not None


def test_a_state_directory_may_have_a_name_that_is_no_text() -> None:
    assert simulated_uuid(Path("/odd\udcff"), 0) != simulated_uuid(Path("/odd\udcfe"), 0)
