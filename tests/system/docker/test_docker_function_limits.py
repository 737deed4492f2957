"""What a replica that means ill can take of the machine: its own slice of memory, its own directory, and nothing of the others'."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system.docker.function_world import as_user, ask, asked, ends, started
from tests.system.user_world import UserWorld, opened_world

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.client.remote_service import HttpFunctions
from pgpu.errors import RequestError
from pgpu.services.messages import ReplicaAsk

pytestmark = pytest.mark.docker

APP = """
import os
from pathlib import Path


class Prisoner:
    def __call__(self, act: str = "rest") -> dict[str, object]:
        return {"rest": dict, "fill": fill, "litter": litter, "leak": leak, "scratch": scratch, "fork": fork}[act]()


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


def leak() -> dict[str, object]:
    held = []
    while True:
        held.append(bytearray(os.urandom(1 << 12) * (1 << 12)))


def scratch() -> dict[str, object]:
    try:
        with open("/tmp/big", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError as error:
        return {"written": os.stat("/tmp/big").st_size, "errno": error.errno}
    finally:
        os.unlink("/tmp/big")


def fork() -> dict[str, object]:
    children = []
    try:
        while True:
            children.append(os.posix_spawn("/bin/sleep", ["sleep", "1000"], {}))
    except OSError as error:
        return {"processes": len(children), "errno": error.errno}
    finally:
        for pid in children:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
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


def test_a_worker_that_takes_more_host_memory_than_its_container_has_is_replaced_and_its_caller_told(
    world: UserWorld, root: HttpFunctions, images: str, tmp_path: Path
) -> None:
    client = open_client(Settings(host=f"unix://{world.socket}"))
    alice, bob = world.user(), world.user()
    declared = '{"host_memory": "256MiB"}'
    deployment, bundle = asked(f"{images}:latest", "leaky", tmp_path / "leaky", APP, declaration=declared)
    as_user(alice, lambda functions: functions.deploy(deployment, bundle))
    other, second = asked(f"{images}:latest", "tidy", tmp_path / "tidy", APP)
    as_user(bob, lambda functions: functions.deploy(other, second))
    leaky, tidy = started(root, client, ReplicaAsk("leaky", 1)), started(root, client, ReplicaAsk("tidy", 1))
    _, scratch = ask(leaky, "POST", "/", b'{"act": "scratch"}')
    assert (scratch["written"], scratch["errno"]) == (128 << 20, 28)
    status, told = ask(leaky, "POST", "/", b'{"act": "leak"}')
    assert (status, told["code"], "host memory" in told["error"]) == (502, "worker_died", True)
    assert ask(leaky, "POST", "/", b"{}") == (200, {})
    assert ask(tidy, "POST", "/", b"{}") == (200, {})
    log = b"".join(data for _, data in client.logs(leaky.job_id, follow=False)).decode()
    assert "it needed more host memory than its container has" in log
    for owner, replica in ((alice, leaky), (bob, tidy)):
        ends(client, root, owner, replica)


def test_more_host_memory_than_the_machine_has_is_refused(world: UserWorld, images: str, tmp_path: Path) -> None:
    deployment, bundle = asked(f"{images}:latest", "vast", tmp_path, APP, declaration='{"host_memory": "900TiB"}')
    with pytest.raises(RequestError, match="more than this machine's"):
        as_user(world.user(), lambda functions: functions.deploy(deployment, bundle))


@pytest.mark.soak
def test_a_replica_that_forks_without_end_runs_out_of_processes_alone(
    world: UserWorld, root: HttpFunctions, images: str, tmp_path: Path
) -> None:
    client, alice = open_client(Settings(host=f"unix://{world.socket}")), world.user()
    deployment, bundle = asked(f"{images}:latest", "rabbit", tmp_path, APP)
    as_user(alice, lambda functions: functions.deploy(deployment, bundle))
    replica = started(root, client, ReplicaAsk("rabbit", 1))
    _, forked = ask(replica, "POST", "/", b'{"act": "fork"}')
    assert (4000 < forked["processes"] < 4096, forked["errno"]) == (True, 11)
    assert ask(replica, "POST", "/", b"{}") == (200, {})
    ends(client, root, alice, replica)
