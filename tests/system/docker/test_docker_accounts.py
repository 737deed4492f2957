"""Containers of users other than root, as a server of root makes them: what each attempt to get further meets.

The users are numbers that nobody has; images that want more are made of the smallest test image.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.runtime_worlds import RuntimeWorld
from tests.system.docker.account_world import ALICE, check, opened_account_world, output, owned
from tests.system.docker.conftest import docker

from pgpu.errors import PgpuError, RequestError
from pgpu.model import Mount
from pgpu.runtimes.docker.docker_engine import DockerEngine, engine_url
from pgpu.structs import replace

pytestmark = pytest.mark.docker

SHADOW_GROUP = 42
GREEDY = f"""
FROM {{base}}
USER 0
RUN echo 'mallory:x:61001:61001::/:/bin/sh' >>/etc/passwd && printf 'shadow2:x:42:mallory\\n61050:x:42:mallory\\n' >>/etc/group
RUN cp /bin/busybox /bin/suid 2>/dev/null || cp /bin/sh /bin/suid; chmod 4755 /bin/suid
USER 0:{SHADOW_GROUP}
"""


@pytest.fixture(scope="module")
def greedy(images: str) -> Iterator[str]:
    """An image whose user is root, whose files give its asker's number to a powerful group, with a SUID shell."""
    name = f"pgpu-test-greedy:{os.getpid()}"
    docker("build", "--tag", name, "-", stdin=GREEDY.format(base=f"{images}:latest").encode())
    yield name
    docker("rmi", "--force", name)


@pytest.fixture
def world(greedy: str, tmp_path: Path) -> Iterator[RuntimeWorld]:
    with opened_account_world(greedy, tmp_path) as made:
        yield made


def test_a_container_runs_as_its_asker_whatever_user_the_image_names(world: RuntimeWorld) -> None:
    status = output(world, "cat /proc/self/status")
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert fields["Uid"] == ["61001"] * 4
    assert fields["Gid"] == ["61001"] * 4


def test_an_images_own_groups_give_its_asker_nothing(world: RuntimeWorld) -> None:
    groups = output(world, "id -G").split()
    assert groups == ["61001"]


def test_a_container_has_no_capability_and_gains_none_from_a_file(world: RuntimeWorld) -> None:
    status = output(world, "cat /proc/self/status; /bin/suid -c 'id -u' 2>/dev/null || /bin/suid id -u")
    fields = {name: value.strip() for name, _, value in (line.partition(":") for line in status.splitlines())}
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"
    assert status.splitlines()[-1] == "61001"


@pytest.mark.parametrize("kind", ["pid", "ipc", "net", "uts", "mnt"])
def test_a_container_shares_no_namespace_with_the_machine(world: RuntimeWorld, kind: str) -> None:
    assert output(world, f"readlink /proc/self/ns/{kind}").strip() != str(Path(f"/proc/self/ns/{kind}").readlink())


@pytest.mark.parametrize("user", ["0", "root", "0:0", "61001:42", "61002"])
def test_a_container_may_not_be_another_user(world: RuntimeWorld, user: str) -> None:
    with pytest.raises(RequestError, match="runs as the user of the request"):
        check(world, user=user)


def test_a_directory_of_ones_own_is_mounted_and_written(world: RuntimeWorld, shared: Path) -> None:
    mine = owned(shared / "mine")
    assert output(world, "echo done >/data/file; cat /data/file", Mount(str(mine), "/data")) == "done\n"
    assert (mine / "file").stat().st_uid == ALICE.uid
    assert "Read-only" in output(world, "echo more >/data/file", Mount(str(mine), "/data", "ro"))


def test_a_file_of_ones_own_is_mounted(world: RuntimeWorld, shared: Path) -> None:
    mine = owned(shared / "mine")
    (mine / "one").write_text("one\n")
    (mine / "one").chmod(0o644)
    assert output(world, "cat /one", Mount(str(mine / "one"), "/one")) == "one\n"


@pytest.mark.parametrize(
    "source", ["/etc/shadow", "/root", "/root/.", "/proc/1/root/etc", "/proc/self/root", "/proc/self/exe"]
)
def test_what_the_asker_may_not_open_is_not_mounted(world: RuntimeWorld, source: str) -> None:
    with pytest.raises(RequestError):
        check(world, [Mount(source, "/data")])
    with pytest.raises(RequestError):
        output(world, "cat /data", Mount(source, "/data"))


def test_what_only_the_group_of_root_may_read_stays_unread_in_a_directory_that_all_may_open(
    world: RuntimeWorld,
) -> None:
    assert "denied" in output(world, "cat /host/shadow", Mount("/etc", "/host", "ro"))


def test_a_link_leads_no_further_than_its_owner_may_go(world: RuntimeWorld, shared: Path) -> None:
    mine = owned(shared / "mine")
    (mine / "link").symlink_to("/root")
    with pytest.raises(RequestError, match="cannot be opened by you"):
        output(world, "ls /data", Mount(str(mine / "link"), "/data"))


def test_what_was_opened_is_mounted_whatever_its_name_stands_for_later(world: RuntimeWorld, shared: Path) -> None:
    mine, secret = owned(shared / "mine"), shared / "secret"
    (mine / "data").mkdir()
    (mine / "data" / "who").write_text("mine\n")
    secret.mkdir()
    (secret / "inside").mkdir()
    (secret / "inside" / "who").write_text("secret\n")
    secret.chmod(0o700)

    def swap(_holder: object) -> None:
        (mine / "data").rename(mine / "before")
        (mine / "data").symlink_to(secret / "inside")

    volume = Mount(str(mine / "data"), "/data")
    started = world.shell("cat /data/who", account=ALICE, volumes=(volume,), announce=swap)
    assert started.streams.read_to_end() == b"mine\n"


def test_the_engines_socket_is_not_mounted_by_any_name(world: RuntimeWorld, shared: Path) -> None:
    socket = Path(engine_url().removeprefix("unix://"))
    mine = owned(shared / "mine")
    (mine / "link").symlink_to(socket)
    for source in (str(socket), str(mine / "link"), "/"):
        with pytest.raises(RequestError):
            check(world, [Mount(source, "/data")])


def test_no_name_of_an_image_asks_the_engine_for_something_else(world: RuntimeWorld) -> None:
    other = (
        docker("create", "--name", f"pgpu-test-other-{os.getpid()}", world.image or "", "true").stdout.decode().strip()
    )
    try:
        with pytest.raises(RequestError, match="not an image's name"):
            DockerEngine(engine_url()).image(f"../containers/{other}")
        world.image = f"../containers/{other}"
        with pytest.raises(RequestError, match="not an image's name"):
            check(world)
    finally:
        docker("rm", other)


@pytest.mark.parametrize("source", ["/dev/null", "/dev/tty"])
def test_a_device_is_not_mounted(world: RuntimeWorld, source: str) -> None:
    with pytest.raises(RequestError, match="neither a directory nor a file"):
        check(world, [Mount(source, "/data")])


def test_the_engines_own_volumes_and_labels_are_roots(world: RuntimeWorld, shared: Path) -> None:
    mine = owned(shared / "mine")
    for volume in (Mount("some-volume", "/data"), Mount(str(mine), "/data", "Z"), Mount(str(mine), "/data", "rshared")):
        with pytest.raises(RequestError):
            check(world, [volume])


def test_root_may_ask_for_more(world: RuntimeWorld, shared: Path) -> None:
    root = replace(ALICE, uid=0, gid=0, groups=())
    assert output(world, "id -u; ls /data", Mount(str(shared), "/data"), account=root).splitlines()[0] == "0"


def test_nothing_is_left_mounted_when_a_container_cannot_be_made(world: RuntimeWorld, shared: Path) -> None:
    mine = owned(shared / "mine")
    (mine / "kept").write_text("kept")
    with pytest.raises(PgpuError):
        world.start(["/no/such/command"], account=ALICE, volumes=(Mount(str(mine), "/data"),))
    assert (mine / "kept").read_text() == "kept"
