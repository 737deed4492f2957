"""A day of a lab with one GPU: five users, quotas, a notebook left open, a Compose service, and a drain before the evening."""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.docker.oci_place import OciPlace, given_runtime
from tests.system.user_world import User, UserWorld, opened_world
from tests.waiting import DEADLINE_SECONDS

pytestmark = pytest.mark.docker

GIB = 1 << 30

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def world() -> Iterator[UserWorld]:
    with opened_world("--idle-timeout", "20s", PGPU_ON_IDLE="stop") as made:
        yield made


@pytest.fixture
def admin(world: UserWorld) -> Callable[..., str]:
    return world.admin


class Service:
    """A Compose project of one service, on the same GPU and ledger as the server's jobs."""

    def __init__(self, place: OciPlace, directory: Path, root: User) -> None:
        self._place = place
        self._directory = directory
        self._root = root

    def write(self, memory: str, *command: str) -> None:
        """Write the project's file; JSON is YAML."""
        service = {
            "image": f"{self._place.images}:latest",
            "runtime": self._place.runtime,
            "network_mode": "none",
            "environment": {"PGPU_MEMORY": memory},
            "command": command,
        }
        content = {"version": "2.4", "services": {"model": service}}
        (self._directory / "docker-compose.yml").write_text(json.dumps(content))

    def compose(self, *words: str) -> str:
        """Run one verb of Compose."""
        done = subprocess.run(
            ["docker-compose", "--no-ansi", "--project-name", self._place.runtime, *words],
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def state(self) -> str:
        """Return its newest job's, as the server tells it."""
        rows = [row["job"] for row in self._root.ask("GET", "/v1/jobs?include_final=true").value]
        found = [job["state"] for job in rows if (job["spec"]["name"] or "").startswith(f"{self._place.runtime}_model")]
        return str(found[-1]) if found else "none"


@pytest.fixture
def service(world: UserWorld, images: str, tmp_path: Path) -> Iterator[Service]:
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    with given_runtime(world.place.path, images) as place:
        made = Service(place, tmp_path, world.root)
        yield made
        made.compose("down", "--timeout", "0")


def ended_well(user: User, job_id: str) -> None:
    job = user.until(job_id, "exited", "failed", "cancelled")
    assert (job["state"], job["exit_code"]) == ("exited", 0), job


@pytest.mark.soak
def test_everybody_gets_their_turn_and_nobody_fails_for_memory(
    world: UserWorld, admin: Callable[..., str], service: Service, eventually: Eventually
) -> None:
    notebook, trainer, student, guest, night = (world.user() for _ in range(5))
    admin("quota", str(student.uid), "--memory", "4GiB")
    admin("quota", "docker", "--memory", "3GiB")

    left_open = notebook.started("sleep", "600", memory=14 * GIB)
    notebook.until(left_open, "running")
    service.write("2GiB", "sleep", "600")
    service.compose("up", "--detach")
    eventually(lambda: service.state() == "running")
    training = trainer.started("sh", "-c", "sleep 1", memory=16 * GIB)
    first, second = (student.started("sleep", "3", memory=3 * GIB) for _ in range(2))
    small = guest.started("true", memory=GIB)

    ended_well(guest, small)  # it fits beside the notebook, and keeps nobody waiting
    ended_well(student, first)
    ended_well(student, second)  # never beside the first: that would be 6 of 4 GiB
    assert student.job(second)["started_at_seconds"] >= student.job(first)["finished_at_seconds"]
    ended_well(trainer, training)  # once the notebook was ended for doing nothing
    assert "nothing on its GPUs" in notebook.job(left_open)["warning"]
    for user in (notebook, trainer, student, guest):
        assert not [
            row for row in user.ask("GET", "/v1/jobs").value if row["job"]["spec"]["name"]
        ]  # the service is not theirs

    running = trainer.started("sleep", "5", memory=8 * GIB)
    trainer.until(running, "running")
    admin("drain")
    tonight = night.started("true", memory=GIB)
    service.compose("restart", "--timeout", "0")  # it takes a new lease, and nothing new starts now
    eventually(lambda: service.state() == "waiting")
    ended_well(trainer, running)
    assert night.job(tonight)["state"] == "waiting"
    assert "waits" in eventually(lambda: service.compose("logs"))
    admin("drain", "--end")
    ended_well(night, tonight)
    eventually(lambda: service.state() == "running")
    assert json.loads(admin("exclude", "--json")) == {"is_drained": False, "excluded": []}
    assert world.server.poll() is None
