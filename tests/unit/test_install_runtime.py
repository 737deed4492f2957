"""The engine's configuration file keeps what stands in it, is written whole or not at all, and takes the runtime once."""

import json
from pathlib import Path

import pytest

from pgpu.app.oci.installation import Installation, plan_install, plan_uninstall
from pgpu.errors import NodeError


def _installation(tmp_path: Path) -> Installation:
    return Installation("pgpu", tmp_path / "config.toml", tmp_path / "state", "unix:///engine.sock")


def test_what_stands_there_stays_and_the_runtime_comes_once(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text('{"log-level": "warn", "runtimes": {"crun": {"path": "crun"}}}')
    plan_install(path, _installation(tmp_path)).write()
    content = json.loads(path.read_text())
    assert list(content) == ["log-level", "runtimes"]
    assert list(content["runtimes"]) == ["crun", "pgpu"]
    assert "--pgpu-engine=unix:///engine.sock" in content["runtimes"]["pgpu"]["runtimeArgs"]
    assert plan_install(path, _installation(tmp_path)).is_empty


def test_taking_it_out_leaves_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text('{"log-level": "warn"}')
    plan_install(path, _installation(tmp_path)).write()
    plan_uninstall(path, "pgpu").write()
    assert json.loads(path.read_text()) == {"log-level": "warn"}
    assert plan_uninstall(path, "pgpu").is_empty


def test_a_missing_or_empty_file_is_an_empty_configuration(tmp_path: Path) -> None:
    path = tmp_path / "docker" / "daemon.json"
    assert plan_uninstall(path, "pgpu").is_empty
    change = plan_install(path, _installation(tmp_path))
    assert change.diff().startswith("--- ")
    assert not path.exists()
    change.write()
    assert list(json.loads(path.read_text())["runtimes"]) == ["pgpu"]


@pytest.mark.parametrize("text", ["[1]", "{", '{"runtimes": []}'])
def test_a_file_that_is_broken_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "daemon.json"
    path.write_text(text)
    with pytest.raises(NodeError):
        plan_install(path, _installation(tmp_path))
    assert path.read_text() == text


def test_the_file_keeps_its_permissions_and_a_link_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "real.json", tmp_path / "daemon.json"
    path.write_text("{}")
    path.chmod(0o640)
    link.symlink_to(path)
    plan_install(link, _installation(tmp_path)).write()
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
