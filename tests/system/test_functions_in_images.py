"""The scripts that run first in a container, in a Python that can load what pgpu needs, and in one that cannot."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pgpu.functions.deploy.version_jobs import BUILD, OWN_REQUIREMENTS, START

_PIP = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('PYTHONPATH')]))"


def run(script: str, place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script with `place` on the search path, as a container has pgpu's own there."""
    command = (sys.executable, "-P", "-c", script, *words)
    return subprocess.run(
        command, env={"PYTHONPATH": str(place)}, cwd=place, capture_output=True, text=True, check=False
    )


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """As it is where the C part was made for another Python."""
    (tmp_path / "msgspec").mkdir()
    (tmp_path / "msgspec" / "__init__.py").write_text("from msgspec._core import Struct")
    return tmp_path


def test_a_front_that_cannot_load_what_it_needs_says_which_python_it_has(other_python: Path) -> None:
    done = run(START, other_python, "2.7", "--app", "x")
    mine = ".".join(map(str, sys.version_info[:2]))
    assert done.returncode == 1
    assert f"this image has Python {mine}, the server has 2.7" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_front_is_given_its_words_alone(tmp_path: Path) -> None:
    done = run(START, tmp_path, "2.7", "--help")
    assert done.returncode == 0, done.stderr
    assert "usage: pgpu.functions.replica" in done.stdout


@pytest.mark.parametrize("is_other", [False, True])
def test_packages_are_followed_by_what_pgpu_needs_where_ours_cannot_be_loaded(
    other_python: Path, tmp_path_factory: pytest.TempPathFactory, is_other: bool
) -> None:
    place = other_python if is_other else tmp_path_factory.mktemp("own")
    script = BUILD.replace('"-m", "pip"', f'"-c", {_PIP!r}')
    done = run(script, place, "there", "lock.txt", "--no-input")
    asked = [json.loads(line) for line in done.stdout.splitlines()]
    theirs = ["install", "--no-input", "--target", "there", "--requirement", "lock.txt"]
    ours = ["install", "--no-input", "--target", "there/.pgpu", *OWN_REQUIREMENTS]
    assert asked == [[theirs, None], *([[ours, None]] if is_other else [])]


def test_what_pgpu_needs_is_not_installed_where_packages_could_not_be(other_python: Path) -> None:
    script = BUILD.replace('"-m", "pip"', '"-c", "print(1); raise SystemExit(3)"')
    done = run(script, other_python, "there", "lock.txt")
    assert (done.stdout, done.returncode) == ("1\n", 3)
