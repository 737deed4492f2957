"""What root mounts into a container that exists already: it arrives there alone, and only in the very process that was meant."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.native_clients import library

from pgpu.libraries import BRINGER

pytestmark = [
    pytest.mark.userns,
    pytest.mark.skipif(os.geteuid() != 0, reason="root alone mounts into the containers of an engine"),
]


class _Container:
    """A process with a mount namespace of its own."""

    def __init__(self) -> None:
        words = ("unshare", "--mount", "sh", "-c", "echo ready; exec cat")
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        self.pidfd = os.pidfd_open(self.process.pid)

    def sees(self, path: Path) -> list[str]:
        """What lies in a directory there."""
        return sorted(found.name for found in Path(f"/proc/{self.process.pid}/root{path}").iterdir())

    def end(self) -> None:
        """Let it end, and be gone."""
        self.process.communicate()


@pytest.fixture
def container() -> Iterator[_Container]:
    made = _Container()
    yield made
    if made.process.poll() is None:
        made.end()
    os.close(made.pidfd)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "control").touch()
    return tmp_path / "source"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def _bring(source: Path, pidfd: str, target: Path, *passed: int) -> subprocess.CompletedProcess[str]:
    words = (library(BRINGER), source, pidfd, target)
    return subprocess.run(words, capture_output=True, text=True, check=False, pass_fds=passed)


def test_a_directory_arrives_in_the_container_and_nowhere_else(
    container: _Container, source: Path, target: Path
) -> None:
    done = _bring(source, str(container.pidfd), target, container.pidfd)
    assert (done.returncode, done.stderr) == (0, "")
    assert container.sees(target) == ["control"]
    assert list(target.iterdir()) == []


def test_a_container_that_has_ended_is_refused_whoever_has_its_pid_now(
    container: _Container, source: Path, target: Path
) -> None:
    container.end()
    done = _bring(source, str(container.pidfd), target, container.pidfd)
    assert done.returncode == 1
    assert done.stderr.startswith("cannot enter the container")
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("word", ["", "{}x", " ", "-1", "99999999999999999999", "nonsense"])
def test_what_is_no_descriptor_is_refused(container: _Container, source: Path, target: Path, word: str) -> None:
    done = _bring(source, word.format(container.pidfd), target, container.pidfd)
    assert done.returncode == 1
    assert container.sees(target) == []


def test_a_link_in_the_targets_place_is_not_followed(container: _Container, source: Path, target: Path) -> None:
    link = target.with_name("link")
    link.symlink_to(target)
    done = _bring(source, str(container.pidfd), link, container.pidfd)
    assert done.returncode == 1
    assert container.sees(target) == []
