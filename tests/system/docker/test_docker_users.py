"""Containers that users ask a server of root for, over its socket."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.user_world import User, UserWorld, opened_world

from pgpu.runtimes.docker.docker_engine import engine_url

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def world() -> Iterator[UserWorld]:
    with opened_world() as made:
        yield made


@pytest.fixture
def home(world: UserWorld) -> Iterator[tuple[User, Path]]:
    """A user with a directory of their own."""
    alice = world.user()
    path = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/var/tmp"))
    os.chown(path, alice.uid, alice.uid)
    yield alice, path
    shutil.rmtree(path)


def container(images: str, **said: Any) -> dict[str, Any]:
    return {"runtime": "docker", "image": f"{images}:latest", "working_directory": None, **said}


def test_a_container_is_its_askers_and_mounts_what_they_may_open(home: tuple[User, Path], images: str) -> None:
    alice, path = home
    volume = {"source": str(path), "target": "/data", "options": ""}
    job_id = alice.started("sh", "-c", "id -u; id -G; echo mine >/data/file", **container(images, volumes=[volume]))
    assert alice.until(job_id, "exited", "failed")["exit_code"] == 0
    logs = alice.logs(job_id).text
    assert logs.count(str(alice.uid)) == 2
    assert (path / "file").stat().st_uid == alice.uid


def test_a_users_slice_binds_in_a_container(home: tuple[User, Path], images: str) -> None:
    alice, _ = home
    probe = "/.pgpu/pgpu-probe"
    script = f"{probe} allocate $((512 << 20)); {probe} allocate $((2 << 30))"
    job_id = alice.started("sh", "-c", script, **container(images))
    alice.until(job_id, "exited", "failed")
    assert re.findall(r"allocate (\d+)", alice.logs(job_id).text) == ["0", "2"]


def test_a_container_without_a_gpu_is_its_askers_too(home: tuple[User, Path], images: str) -> None:
    alice, path = home
    volume = {"source": str(path), "target": "/data", "options": ""}
    said = container(images, volumes=[volume])
    job_id = alice.started("sh", "-c", "id -u; echo mine >/data/file; ls -d /.pgpu", gpus=0, **said)
    assert alice.until(job_id, "exited", "failed")["exit_code"] == 2
    assert alice.logs(job_id).text.count(str(alice.uid)) == 1
    assert (path / "file").stat().st_uid == alice.uid


def test_what_would_reach_further_is_refused_before_anything_is_stored(home: tuple[User, Path], images: str) -> None:
    alice, path = home
    (path / "link").symlink_to("/etc/shadow")
    socket = engine_url().removeprefix("unix://")
    sources = ("/etc/shadow", str(path / "link"), socket, "/root", "/dev/null", "named")
    volumes = [[{"source": source, "target": "/data", "options": ""}] for source in sources]
    attempts: list[dict[str, Any]] = [{"user": "root"}, {"user": "0:0"}, *({"volumes": each} for each in volumes)]
    for attempt in attempts:
        answer = alice.submit("cat", "/data", **container(images, **attempt))
        assert answer.status == 400, (attempt, answer.text)
    assert not [row for row in alice.ask("GET", "/v1/jobs?include_final=true").value if row["job"]["id"] != "-"]
