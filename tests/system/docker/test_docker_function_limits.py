"""What a replica that means ill can take of the machine: its own slice of memory, its own directory, and nothing of the others'."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.docker.function_world import as_user, ask, asked, ends, started
from tests.system.user_world import UserWorld, opened_world

from pgpu.app.clients import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.client.functions import ReplicaAsk
from pgpu.client.functions_http import HttpFunctions

pytestmark = pytest.mark.docker

APP = """
import os
from pathlib import Path


class Prisoner:
    def __call__(self, act: str = "rest") -> dict[str, object]:
        return {"rest": dict, "fill": fill, "litter": litter}[act]()


def fill() -> dict[str, object]:
    written = 0
    try:
        with open("/.pgpu-sockets/big", "wb", buffering=0) as file:
            while written < 64 << 20:
                written += file.write(bytes(1 << 16))
    except OSError as error:
        return {"written": written, "errno": error.errno}
    return {"written": written}


def litter() -> dict[str, object]:
    try:
        for number in range(10_000):
            Path(f"/.pgpu-sockets/{number}").touch()
    except OSError as error:
        return {"files": number, "errno": error.errno}
    return {"files": number}
"""


@pytest.fixture(scope="module")
def world() -> Iterator[UserWorld]:
    with opened_world("--gateway", "none") as made:
        yield made


@pytest.fixture(scope="module")
def root(world: UserWorld) -> HttpFunctions:
    return open_functions(Settings(host=f"unix://{world.socket}"))


def test_a_replica_that_fills_the_directory_of_its_sockets_fills_its_own_alone(
    world: UserWorld, root: HttpFunctions, images: str, tmp_path: Path
) -> None:
    client = open_client(Settings(host=f"unix://{world.socket}"))
    alice, bob = world.user(), world.user()
    deployment, bundle = asked(f"{images}:latest", "greedy", tmp_path / "greedy", APP)
    as_user(alice, lambda functions: functions.deploy(deployment, bundle))
    other, second = asked(f"{images}:latest", "modest", tmp_path / "modest", APP)
    as_user(bob, lambda functions: functions.deploy(other, second))
    greedy = started(root, client, ReplicaAsk("greedy", 1))
    _, filled = ask(greedy, "POST", "/", b'{"act": "fill"}')
    assert (filled["written"] <= 1 << 20, filled["errno"]) == (True, 28)
    _, littered = ask(greedy, "POST", "/", b'{"act": "litter"}')
    assert (littered["files"] < 16, littered["errno"]) == (True, 28)
    modest = started(root, client, ReplicaAsk("modest", 1))
    assert ask(modest, "POST", "/", b"{}") == (200, {})
    assert ask(greedy, "POST", "/", b"{}") == (200, {})
    assert Path(greedy.socket_directory).stat().st_uid == alice.uid
    for owner, replica in ((alice, greedy), (bob, modest)):
        ends(client, root, owner, replica)
        assert replica.socket_directory not in Path("/proc/self/mounts").read_text()
