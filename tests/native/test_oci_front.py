"""The program that an engine calls in the place of runc: it becomes runc for everything but the creation of what asks for memory."""

import json
import subprocess
from pathlib import Path

import pytest

from pgpu.libraries import OCI_RUNTIME, library_path

_SAYS_WORDS = '#!/bin/sh\nfor word; do echo "$word"; done\nexit 7\n'
_SETTING = "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"


def _called(tmp_path: Path, *words: str) -> list[str]:
    """Call the front with a runc and a Python that say with which words they were called, the latter first."""
    for name in ("runc", "python"):
        program = tmp_path / name
        program.write_text(_SAYS_WORDS.replace("for word", f"echo {name}; for word"))
        program.chmod(0o755)
    ours = [f"--pgpu-runc={tmp_path / 'runc'}", f"--pgpu-python={tmp_path / 'python'}"]
    done = subprocess.run(
        [library_path(OCI_RUNTIME), *ours, *words], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 7, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ["--root", "/r", "--log=/l", "--log-format", "json", "state", "abc"],
        ["kill", "--all", "abc", "9"],
        ["--version"],
        ["--root", "create", "delete", "abc"],
        [],
    ],
)
def test_runc_gets_its_own_words(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "config.json").write_text('{"process": {"env": ["PGPU_MEMORY=4GiB"]}}')
    assert _called(tmp_path, *words) == ["runc", *words]


@pytest.mark.parametrize("content", [None, "", '{"process": {"env": ["MEMORY=4GiB"]}}'])
def test_a_container_that_asks_for_nothing_is_runcs(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert _called(tmp_path, "create", "--bundle", str(tmp_path), "abc")[0] == "runc"


@pytest.mark.parametrize("asking", ['{"env": ["PGPU_MEMORY=4GiB"]}', '{"annotations": {"pgpu.memory": "4GiB"}}'])
@pytest.mark.parametrize("bundle", [["--bundle", "{}"], ["--bundle={}"], ["-b", "{}"], []])
def test_one_that_asks_is_handed_to_python_alone_with_the_standard_library(
    tmp_path: Path, asking: str, bundle: list[str]
) -> None:
    (tmp_path / "config.json").write_text(asking)
    words = ["--root", "/r", "create", *(word.format(tmp_path) for word in bundle), "abc"]
    said = _called(tmp_path, *words)
    assert said[:3] == ["python", "-I", "-S"]
    assert said[3].endswith("app/oci/create.py")
    assert said[-len(words) :] == words


def _joined(tmp_path: Path, environment: list[str], *, settings: str | None = f"{_SETTING}\0") -> list[str]:
    """Return the environment of a process that joins a container."""
    description = tmp_path / "process.json"
    description.write_text(json.dumps({"args": ['"env":['], "env": environment}, separators=(",", ":")))
    if settings is not None:
        (tmp_path / "pgpu-environment").write_text(settings)
    words = ["exec", "--process", str(description), "--detach", "abc"]
    assert _called(tmp_path, *words) == ["runc", *words]
    found: list[str] = json.loads(description.read_text())["env"]
    return found


def test_a_process_that_joins_gets_what_the_lease_adds(tmp_path: Path) -> None:
    assert _joined(tmp_path, ["PATH=/bin", "A=b"]) == [_SETTING, "PATH=/bin", "A=b"]


def test_what_its_user_set_stays(tmp_path: Path) -> None:
    assert _joined(tmp_path, ["CUDA_VISIBLE_DEVICES=1"]) == ["CUDA_VISIBLE_DEVICES=1"]


@pytest.mark.parametrize("settings", [None, "", 'CUDA="x"\0', "A=\\\0"])
def test_what_cannot_be_added_safely_is_left_out(tmp_path: Path, settings: str | None) -> None:
    assert _joined(tmp_path, ["PATH=/bin"], settings=settings) == ["PATH=/bin"]


def test_an_empty_environment_stays_empty(tmp_path: Path) -> None:
    assert _joined(tmp_path, []) == []
