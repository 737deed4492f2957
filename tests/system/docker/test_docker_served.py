"""A user's container by way of a server of root, from the request to the file that it leaves behind."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.user_world import User, UserWorld, opened_world

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def world(images: str) -> Iterator[UserWorld]:
    del images  # there, or these tests are skipped
    with opened_world() as made:
        yield made


@pytest.fixture
def alice(world: UserWorld) -> User:
    return world.user()


def asked(images: str, *volumes: str, directory: str | None = None) -> dict[str, Any]:
    named = [dict(zip(("source", "target", "options"), (*volume.split(":"), ""), strict=False)) for volume in volumes]
    return {"runtime": "docker", "image": f"{images}:tiny", "volumes": named, "working_directory": directory}


def test_a_container_of_a_user_works_in_the_users_directory(images: str, alice: User, shared: Path) -> None:
    os.chown(shared, alice.uid, alice.uid)
    (shared / "work").mkdir()
    os.chown(shared / "work", alice.uid, alice.uid)
    script = "pwd; id -G; echo done >file; /.pgpu/pgpu-probe allocate $((2 << 30))"
    job_id = alice.started("sh", "-c", script, **asked(images, f"{shared}:/data", directory="/data/work"))
    alice.until(job_id, "exited", "failed")
    told = alice.logs(job_id).text
    assert "/data/work\n" in told
    assert f"{alice.uid} {alice.groups[0]}\n" in told
    assert "allocate 2" in told  # out of memory: the slice has 1 GiB
    assert (shared / "work/file").stat().st_uid == alice.uid


def test_a_directory_that_is_closed_to_the_user_is_not_entered(images: str, alice: User, shared: Path) -> None:
    (shared / "closed/inside").mkdir(parents=True)
    (shared / "closed").chmod(0o700)
    job_id = alice.started("ls", **asked(images, f"{shared}:/data", directory="/data/closed/inside"))
    assert alice.until(job_id, "exited", "failed")["exit_code"] == 126
    assert "permission denied" in alice.logs(job_id).text


@pytest.mark.parametrize(
    ("volumes", "says"),
    [
        (("{shared}:/data", "/usr:/data/new-of-pgpu"), "has no place"),
        (("{shared}:/etc",), "has no place"),
        (("/sys/kernel:/data",), "owners cannot be mapped"),
        (("/etc/shadow:/data",), "cannot be opened by you"),
    ],
)
def test_what_cannot_start_is_refused_at_once(
    images: str, alice: User, shared: Path, volumes: tuple[str, ...], says: str
) -> None:
    answer = alice.submit("true", **asked(images, *(volume.format(shared=shared) for volume in volumes)))
    assert (answer.status, says in answer.text) == (400, True), answer.text


@pytest.mark.parametrize("image", ["../containers/x", "a?b", "A", "a" * 5000])
def test_what_names_no_image_is_refused_at_once(images: str, alice: User, image: str) -> None:
    answer = alice.submit("true", **{**asked(images), "image": image})
    assert (answer.status, "not an image's name" in answer.text) == (400, True), answer.text
