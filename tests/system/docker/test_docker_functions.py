"""Functions of a user on root's server: replicas in sealed containers, packages built in one, and nothing else."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pip
import pytest
from tests.contract.test_functions import wheel_of
from tests.system.docker.conftest import docker
from tests.system.docker.function_world import as_user, ask, asked, ends, started
from tests.system.user_world import UserWorld, opened_world

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.client.remote_service import HttpFunctions
from pgpu.errors import RequestError
from pgpu.model import VersionState
from pgpu.services.messages import Judgement, ReplicaAsk
from pgpu.structs import replace

pytestmark = pytest.mark.docker

APP = """
import importlib.util
import os
import socket
from pathlib import Path


class Prisoner:
    def __call__(self, place: str = "/") -> dict[str, object]:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
        return {
            "ids": [os.getuid(), os.getgid()],
            "networks": [name for _, name in socket.if_nameindex()],
            "capabilities": [status[name].strip() for name in ("CapEff", "CapBnd", "NoNewPrivs")],
            "written": [path for path in ("/", "/function", "/.pgpu-runtime", "/etc", "/tmp", "/.pgpu-sockets", "/.pgpu-packages") if written(path)],
            "has_slice": Path("/.pgpu/limit").exists(),
            "seen": sorted(os.listdir("/function")),
            "packages": [name for name in ("pgputhere", "numpy") if importlib.util.find_spec(name)],
        }


def written(place: str) -> bool:
    try:
        Path(place, "mine").write_text("x")
    except OSError:
        return False
    return True
"""


@pytest.fixture(scope="module")
def world() -> Iterator[UserWorld]:
    with opened_world("--gateway", "none") as made:
        yield made


@pytest.fixture(scope="module")
def root(world: UserWorld) -> HttpFunctions:
    return open_functions(Settings(host=f"unix://{world.socket}"))


@pytest.mark.parametrize("owner", ["user", "root"])
def test_a_replica_runs_sealed_as_its_owner_and_answers_on_its_socket(
    world: UserWorld, root: HttpFunctions, images: str, tmp_path: Path, owner: str
) -> None:
    alice = world.root if owner == "root" else world.user()
    deployment, bundle = asked(f"{images}:latest", "sealed", tmp_path, APP, declaration='{"memory": "1GiB"}')
    version = as_user(alice, lambda functions: functions.deploy(deployment, bundle))
    assert version.owner_uid == alice.uid
    client = open_client(Settings(host=f"unix://{world.socket}"))
    replica = started(root, client, ReplicaAsk("sealed", 1))
    assert client.job(replica.job_id).job.owner_uid == alice.uid
    status, found = ask(replica, "POST", "/", b"{}")
    assert (status, found["ids"]) == (200, [alice.uid, alice.uid])
    assert found["networks"] == ["lo"]
    assert found["capabilities"] == ["0" * 16, "0" * 16, "1"]
    assert found["written"] == ["/tmp", "/.pgpu-sockets"]
    assert found["has_slice"]
    assert found["seen"] == ["app.py"]
    ends(client, root, alice, replica)


SURROUNDED = """
import os
from pathlib import Path


class Prisoner:
    def __call__(self) -> dict[str, object]:
        return {
            "cache": Path("/cache/model").read_text(),
            "weights": Path("/weights/model").read_text(),
            "out": written("/out"),
            "written": [path for path in ("/cache", "/weights", "/run/secrets") if written(path)],
            "secrets": {each.name: oct(each.stat().st_mode)[-3:] for each in Path("/run/secrets").iterdir()},
            "variables": [os.environ.get(name) for name in ("MODEL", "KEY", "TOKEN")],
            "environ": "canary" in Path("/proc/1/environ").read_text(),
        }


def written(place: str) -> bool:
    try:
        Path(place, "mine").write_text("x")
    except OSError:
        return False
    return True
"""
FETCH = 'echo "$MODEL $TOKEN $(id -u) $(ls /run/secrets)" > /cache/model; echo fetched'


def test_a_replica_has_its_surroundings_and_the_command_that_fills_its_cache_has_others(
    world: UserWorld, root: HttpFunctions, images: str, tmp_path: Path, shared: Path
) -> None:
    alice, bob = world.user(), world.user()
    for name in ("weights", "out"):
        (shared / name).mkdir(mode=0o700)
        (shared / name / "model").write_text("of alice")
        for path in (shared / name / "model", shared / name):
            os.chown(path, alice.uid, alice.uid)
    words = {
        "env": {"MODEL": "small"},
        "secrets": ["key:env=KEY"],
        "mounts": [f"{shared}/weights:/weights", f"{shared}/out:/out:rw"],
        "cache": "w:/cache",
        "fill": "sh fetch.sh",
        "fill_secrets": ["hub:env=TOKEN"],
    }
    (tmp_path / "fetch.sh").write_text(FETCH)
    deployment, bundle = asked(f"{images}:latest", "surrounded", tmp_path, SURROUNDED, declaration=json.dumps(words))
    theirs = replace(deployment, function="curious", declaration=json.dumps({"mounts": words["mounts"]}))
    with pytest.raises(RequestError, match="cannot be opened by you"):
        as_user(bob, lambda functions: functions.deploy(theirs, bundle))
    bundle.seek(0)
    as_user(alice, lambda functions: functions.set_secret("key", b"canary-key\n"))
    as_user(alice, lambda functions: functions.set_secret("hub", b"canary-hub"))
    assert as_user(alice, lambda functions: functions.deploy(deployment, bundle)).state is VersionState.PENDING
    client = open_client(Settings(host=f"unix://{world.socket}"))
    job = root.build(ReplicaAsk("surrounded", 1))
    assert root.build(ReplicaAsk("surrounded", 1)).id == job.id
    ended = client.wait(job.id)
    assert (ended.owner_uid, ended.exit_code) == (alice.uid, 0), [*client.logs(job.id, follow=False)]
    root.judge("surrounded", Judgement(1, VersionState.READY))
    replica = started(root, client, ReplicaAsk("surrounded", 1))
    inspected = docker("inspect", *docker("ps", "--all", "--quiet").stdout.decode().split()).stdout.decode()
    assert "canary" not in inspected
    _, found = ask(replica, "POST", "/", b"{}")
    assert found == {
        "cache": f"small canary-hub {alice.uid} hub\n",
        "weights": "of alice",
        "out": True,
        "written": [],
        "secrets": {"key": "400"},
        "variables": ["small", "canary-key", None],
        "environ": False,
    }
    assert (shared / "out" / "mine").stat().st_uid == alice.uid

    # The same command fills nothing again; one that fails leaves everything as it was.
    again = replace(deployment, rolls_out=False)
    assert as_user(alice, lambda functions: functions.deploy(again, bundle)).state is VersionState.READY
    failing = replace(again, declaration=json.dumps({**words, "fill": "echo no model; exit 3"}))
    assert as_user(alice, lambda functions: functions.deploy(failing, bundle)).state is VersionState.PENDING
    ended = client.wait(root.build(ReplicaAsk("surrounded", 3)).id)
    assert (ended.exit_code, [*client.logs(ended.id, follow=False)]) == (3, [("stdout", b"no model\n")])
    root.judge("surrounded", Judgement(3, VersionState.FAILED, "no"))
    kept = as_user(alice, lambda functions: functions.function("surrounded"))
    assert ([each.version for each in kept.traffic], kept.version(2).state) == ([1], VersionState.READY)
    assert ask(replica, "POST", "/", b"{}")[0] == 200
    ends(client, root, alice, replica)
    as_user(alice, lambda functions: functions.remove_secret("key"))
    as_user(alice, lambda functions: functions.remove_secret("hub"))


def test_on_root_s_server_a_user_s_function_is_no_process(world: UserWorld, images: str, tmp_path: Path) -> None:
    deployment, bundle = asked(f"{images}:latest", "loose", tmp_path, APP, runtime="process", image=None)
    with pytest.raises(RequestError, match="containers"):
        as_user(world.user(), lambda functions: functions.deploy(deployment, bundle))


@pytest.mark.parametrize("network", ["host", "container:x"])
def test_a_network_that_shows_others_is_refused(world: UserWorld, images: str, tmp_path: Path, network: str) -> None:
    deployment, bundle = asked(
        f"{images}:latest", "curious", tmp_path, APP, declaration=json.dumps({"network": network})
    )
    with pytest.raises(RequestError, match="network"):
        as_user(world.user(), lambda functions: functions.deploy(deployment, bundle))


@pytest.fixture
def image_with_pip(images: str, tmp_path: Path) -> Iterator[str]:
    """The test's image has no pip: ours is put into it, with a package that need not be fetched."""
    wheels = tmp_path / "wheels"
    wheel_of(wheels, "pgputhere")
    name = f"{images}:pip"
    container = docker("create", f"{images}:latest", "true").stdout.decode().strip()
    try:
        docker("cp", str(Path(pip.__file__).parent), f"{container}:/usr/local/lib/python3.11/dist-packages/pip")
        docker("cp", str(wheels), f"{container}:/wheels")
        docker("commit", container, name)
        yield name
    finally:
        docker("rm", container)
        docker("rmi", name, check=False)


def test_packages_are_built_in_a_container_as_the_owner_and_then_nobody_s_to_change(
    world: UserWorld, root: HttpFunctions, image_with_pip: str, tmp_path: Path
) -> None:
    lock = "/wheels/pgputhere-1-py3-none-any.whl\n"
    deployment, bundle = asked(image_with_pip, "needy", tmp_path / "source", APP, requirements=lock)
    alice = world.user()
    assert as_user(alice, lambda functions: functions.deploy(deployment, bundle)).state is VersionState.PENDING
    job = root.build(ReplicaAsk("needy", 1))
    client = open_client(Settings(host=f"unix://{world.socket}"))
    ended = client.wait(job.id)
    assert (ended.owner_uid, ended.exit_code) == (alice.uid, 0), [*client.logs(job.id, follow=False)]
    root.judge("needy", Judgement(1, VersionState.READY))
    replica = started(root, client, ReplicaAsk("needy", 1))
    _, found = ask(replica, "POST", "/", b"{}")
    assert "/.pgpu-packages" not in found["written"]
    assert found["packages"] == ["pgputhere"]
    ends(client, root, alice, replica)
