"""Processes of several containers share one usage file and die by `docker kill`, in the middle of anything.

Containers have PID namespaces of their own, and a paused one stops with locks held: neither may make the count wrong or
anybody wait. The storm's client is that of tests/native/test_meter_storm.py.
"""

import functools
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.native_clients import client_path
from tests.system.docker.conftest import docker
from tests.waiting import DEADLINE_SECONDS

from pgpu.enforcement import meter

pytestmark = pytest.mark.docker

_WITHOUT_END = "1000000"
_WORKERS = "4"

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def usage() -> Iterator[Path]:
    with tempfile.NamedTemporaryFile(prefix="pgpu-storm-", dir="/dev/shm") as file:
        path = Path(file.name)
        path.chmod(0o666)
        yield path


class Storms:
    """Containers that storm over one usage file."""

    def __init__(self, image: str, usage: Path) -> None:
        self._words = (
            *("run", "--network", "none", "--env", "STORM_SHARED=1"),
            *("--volume", f"{usage}:/usage", "--volume", f"{client_path('meter', 'meter-storm-faults')}:/storm:ro"),
        )
        self._image = f"{image}:tiny"
        self.running: list[str] = []

    def start(self, *words: str) -> str:
        """Start a container that storms until it is killed."""
        storm = ("/storm", "run", "/usage", _WORKERS, _WITHOUT_END, *words)
        self.running.append(docker(*self._words, "--detach", self._image, *storm).stdout.decode().strip())
        return self.running[-1]

    def run(self, kills: int) -> dict[str, Any]:
        """Run a container whose storm ends by itself and return what it counted."""
        storm = ("/storm", "run", "/usage", "2", str(kills), "outside")
        done = docker(*self._words, "--rm", self._image, *storm, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def end(self) -> None:
        """Kill and remove all."""
        for container in self.running:
            docker("rm", "--force", container, check=False)
        self.running.clear()


@pytest.fixture
def storms(images: str, usage: Path) -> Iterator[Storms]:
    made = Storms(images, usage)
    yield made
    made.end()


def _is_empty(usage: Path) -> bool:
    """Take back what the dead left, as the next process of the slice does, and see whether nothing remains."""
    command = [str(client_path("meter", "meter-storm-faults")), "check", str(usage), "0"]
    return subprocess.run(command, check=False, timeout=DEADLINE_SECONDS, capture_output=True).returncode == 0


def _slots(usage: Path) -> int:
    return len(meter.held_slots(usage))


def _is_paused(container: str) -> bool:
    """Pause a container; cgroup v1's freezer gives up on one whose processes come and go too fast, and may be asked again."""
    return docker("pause", container, check=False).returncode == 0


def test_one_container_killed_in_the_middle_leaves_nothing_counted(
    storms: Storms, usage: Path, eventually: Eventually
) -> None:
    for _ in range(3):
        storms.start("points", "forks")
        eventually(lambda: _slots(usage) >= int(_WORKERS))
        storms.end()
    assert eventually(lambda: _is_empty(usage))


@pytest.mark.soak
def test_three_containers_are_killed_and_paused_and_the_count_stays_right(
    storms: Storms, usage: Path, eventually: Eventually
) -> None:
    for _ in range(2):
        first, second, third = storms.start("outside"), storms.start("outside", "forks"), storms.start("points")
        eventually(lambda: _slots(usage) >= 2 * int(_WORKERS))
        eventually(functools.partial(_is_paused, first))
        result = storms.run(kills=40)
        assert result["over_limit"] == 0
        assert result["operations"] > 0, "a paused container made others wait"
        docker("kill", second)
        docker("unpause", first)
        assert storms.run(kills=10)["over_limit"] == 0
        docker("kill", "--signal", "KILL", third)
        storms.end()
    assert eventually(lambda: _is_empty(usage))
