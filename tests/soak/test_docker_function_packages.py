"""Packages from PyPI in an image that somebody else made: another Python than the server's, pip, and nothing of pgpu's.

It needs an engine whose containers reach PyPI and the image of `tools/test-image foreign`; one that has them is
`PGPU_ENGINE_BRIDGE=yes tools/docker-engine start`.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

import pytest
from tests.system.docker.conftest import IMAGE, docker
from tests.system.docker.function_world import as_user, asked
from tests.system.user_world import Answer, User, UserWorld, opened_world
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.app.client_factory import open_client
from pgpu.app.settings import Settings
from pgpu.model import Version, VersionState

pytestmark = [pytest.mark.docker, pytest.mark.soak]

FOREIGN = f"{IMAGE}:foreign"

_REACHES = "import socket; socket.create_connection(('pypi.org', 443), 5)"

APP = """
import sys
from importlib.metadata import version

import iniconfig


class Prisoner:
    def __call__(self) -> dict[str, object]:
        return {"iniconfig": iniconfig.__file__, "version": version("iniconfig"), "python": list(sys.version_info[:2])}
"""

LOCK = """
iniconfig==2.0.0 \\
    --hash=sha256:b6a85871a79d2e3b22d2d1b94ac2824226a63c6b741c88f7ae975f18b6778374
"""
"""As PyPI has it: 6 KB, pure Python."""

WRONG = LOCK.replace("b6a85871", "00000000")


@dataclass(frozen=True)
class Town:
    """A server with its gateway."""

    world: UserWorld

    def deploy(self, user: User, name: str, directory: Path, requirements: str) -> Version:
        deployment, bundle = asked(FOREIGN, name, directory / name, APP, requirements=requirements)
        return as_user(user, lambda functions: functions.deploy(deployment, bundle))

    def judged(self, user: User, name: str) -> Version:
        def version() -> Version:
            return as_user(user, lambda functions: functions.function(name)).versions[-1]

        until(lambda: version().state is not VersionState.PENDING)
        return version()

    def answer(self, user: User, name: str) -> Answer:
        gateway = replace(user, socket=user.socket.with_name("functions.sock"))
        ask = functools.partial(gateway.ask, "POST", f"/functions/{name}", {}, seconds=DEADLINE_SECONDS)
        until(lambda: ask().status != HTTPStatus.NOT_FOUND)
        return ask()

    def layers(self, user: User) -> list[Path]:
        state = Path(self.world.place.environment["PGPU_STATE_DIR"])
        return sorted((state / "functions" / "layers" / str(user.uid)).iterdir())

    def said(self, name: str) -> str:
        client = open_client(Settings(host=f"unix://{self.world.socket}"))
        jobs = [report.job for report in client.jobs(include_final=True) if report.job.spec.serves == name]
        return b"".join(data for job in jobs for _, data in client.logs(job.id, follow=False)).decode()


@pytest.fixture(scope="module")
def town() -> Iterator[Town]:
    if docker("image", "inspect", FOREIGN, check=False).returncode:
        pytest.skip(f"the image {FOREIGN} is missing (tools/test-image foreign makes it)")
    if docker("run", "--rm", FOREIGN, "python3", "-c", _REACHES, check=False).returncode:
        pytest.skip("the engine's containers do not reach pypi.org (PGPU_ENGINE_BRIDGE=yes tools/docker-engine start)")
    with opened_world("--gateway", "127.0.0.1:0") as world:
        until(world.socket.with_name("functions.sock").exists)
        yield Town(world)


def test_packages_of_a_lock_file_with_hashes_serve_in_a_foreign_image(town: Town, tmp_path: Path) -> None:
    alice, bob = town.world.user(), town.world.user()
    town.deploy(alice, "first", tmp_path, LOCK)
    assert town.judged(alice, "first").state is VersionState.READY, town.said("first")
    layer = town.layers(alice)
    assert len(layer) == 1
    told = town.answer(alice, "first")
    assert told.status == HTTPStatus.OK, (told.text, town.said("first"))
    assert told.value["iniconfig"].startswith("/.pgpu-packages/")
    assert (told.value["version"], told.value["python"]) == ("2.0.0", [3, 13])
    assert town.deploy(alice, "second", tmp_path, LOCK).state is VersionState.READY
    assert town.answer(alice, "second").value == told.value
    until(lambda: any(path.glob("**/front/*.cpython-313.pyc") for path in town.layers(alice) if path not in layer))
    assert len(town.layers(alice)) == 2
    assert town.deploy(bob, "third", tmp_path, LOCK).state is VersionState.PENDING
    assert town.judged(bob, "third").state is VersionState.READY
    assert [path.name for path in town.layers(bob)] == [path.name for path in layer]
    for user, name in ((alice, "first"), (alice, "second"), (bob, "third")):
        _undeploy(user, name)


def test_a_package_that_is_not_what_its_hash_says_fails_the_version(town: Town, tmp_path: Path) -> None:
    alice = town.world.user()
    town.deploy(alice, "forged", tmp_path, WRONG)
    version = town.judged(alice, "forged")
    assert (version.state, "pgpu logs" in (version.reason or "")) == (VersionState.FAILED, True)
    assert "DO NOT MATCH" in town.said("forged")
    _undeploy(alice, "forged")


def _undeploy(user: User, name: str) -> None:
    as_user(user, lambda functions: functions.undeploy(name))
