"""Volumes and working directories of other users' containers: root's rights in the engine must not reach what is theirs.

An engine makes missing mount points and enters directories as root. In each test here that would read or write something
of another user, or leave something of root's in a directory of Alice's.
"""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.runtime_worlds import RuntimeWorld
from tests.system.docker.account_world import ALICE, check, opened_account_world, output, owned
from tests.system.docker.conftest import docker
from tests.system.test_volume_look_ups import IN_ITS_OWN_NAMESPACE

from pgpu.errors import PgpuError, RequestError
from pgpu.model import Account, Mount

pytestmark = pytest.mark.docker

BOB = Account(61002, 61002, ())
LINKED = """
FROM {base}
USER 0
RUN ln -s /data/closed /way
WORKDIR /way/secret
"""


@pytest.fixture
def world(images: str, tmp_path: Path) -> Iterator[RuntimeWorld]:
    with opened_account_world(f"{images}:tiny", tmp_path) as made:
        yield made


@pytest.fixture
def place(shared: Path) -> Path:
    """What all may enter: a directory of Alice's, one of Bob's that is closed, with something in it."""
    owned(shared / "alice")
    closed = owned(shared / "closed", owner=BOB)
    secret = owned(closed / "secret", 0o755, BOB)
    (secret / "known-by-bob-alone").touch()
    return shared


@pytest.fixture(scope="module")
def linked(images: str) -> Iterator[str]:
    """An image whose own link and working directory lead into a volume, below a closed directory."""
    name = f"pgpu-test-linked:{os.getpid()}"
    docker("build", "--tag", name, "-", stdin=LINKED.format(base=f"{images}:tiny").encode())
    yield name
    docker("rmi", "--force", name)


CHECK_APART = """
import sys
from pathlib import Path
from pgpu.model import Account, JobSpec, Mount
from pgpu.runtimes.docker.docker_runtime import DockerRuntime
from pgpu.runtimes.docker.staging import Staging
image, runs, volume = sys.argv[1:]
runtime = DockerRuntime(Path(runs) / "images", staging=Staging(Path(runs) / "volumes"))
spec = JobSpec(("true",), "docker", image=image, volumes=(Mount(volume, "/data"),))
runtime.check(spec, Account(61001, 61001, (61050,)))
"""


def test_a_server_in_a_mount_namespace_of_its_own_accepts_volumes(world: RuntimeWorld, place: Path) -> None:
    """As `pgpu.service` is: the agent, which starts the job, is not."""
    apart = [*IN_ITS_OWN_NAMESPACE, sys.executable, "-c", CHECK_APART]
    words = [str(world.image), str(world.directory), str(place / "alice")]
    done = subprocess.run([*apart, *words], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def foreign_owners(directory: Path) -> set[int]:
    return {path.lstat().st_uid for path in directory.rglob("*")} - {ALICE.uid}


def test_a_working_directory_below_a_closed_one_is_not_entered(world: RuntimeWorld, place: Path) -> None:
    volume = Mount(str(place), "/data")
    started = world.start(["/bin/ls"], account=ALICE, volumes=(volume,), working_directory="/data/closed/secret")
    told = started.streams.read_to_end() + started.streams.read_to_end(started.streams.stderr)
    assert (b"bob" in told, b"permission denied" in told, started.wait()) == (False, True, 126)


def test_an_images_own_working_directory_is_entered_by_the_user_alone(
    world: RuntimeWorld, place: Path, linked: str
) -> None:
    world.image = linked
    told = output(world, "ls", Mount(str(place), "/data"))
    assert ("bob" in told, "cannot enter" in told) == (False, True)
    assert output(world, "pwd", directory="/var") == "/var\n"


def test_a_command_starts_in_its_working_directory_in_a_volume(world: RuntimeWorld, place: Path) -> None:
    owned(place / "alice" / "work")
    volume = Mount(str(place / "alice"), "/data")
    assert output(world, "pwd; echo made >file", volume, directory="/data/work") == "/data/work\n"
    assert (place / "alice/work/file").stat().st_uid == ALICE.uid


def test_a_missing_working_directory_is_said_and_not_made(world: RuntimeWorld, place: Path) -> None:
    volume = Mount(str(place / "alice"), "/data")
    started = world.start(["/bin/true"], account=ALICE, volumes=(volume,), working_directory="/data/new")
    assert b'working directory "/data/new"' in started.streams.read_to_end(started.streams.stderr)
    assert (started.wait(), list((place / "alice").iterdir())) == (127, [])


def test_a_command_of_the_image_runs_in_a_working_directory_too(world: RuntimeWorld) -> None:
    started = world.start([], account=ALICE, working_directory="/tmp", wants_stdin=True)
    os.write(started.streams.stdin, b"pwd\n")
    os.close(started.streams.stdin)
    assert started.streams.read_to_end() == b"/tmp\n"


@pytest.mark.parametrize("target", ["/data/new", "/data/new/deeper"])
def test_a_missing_place_for_a_nested_volume_is_refused_and_not_made(
    world: RuntimeWorld, place: Path, target: str
) -> None:
    other = owned(place / "other")
    volumes = (Mount(str(place / "alice"), "/data"), Mount(str(other), target))
    with pytest.raises(RequestError, match="has no place"):
        check(world, volumes)
    with pytest.raises(PgpuError):
        output(world, "true", *volumes)
    assert list((place / "alice").iterdir()) == []


@pytest.mark.parametrize("owner", [0, BOB.uid])
def test_no_volume_lies_in_one_that_somebody_else_owns(world: RuntimeWorld, place: Path, owner: int) -> None:
    scratch, other = place / "scratch", owned(place / "other")
    scratch.mkdir()
    scratch.chmod(0o1777)
    os.chown(scratch, owner, owner)
    owned(scratch / "mine")
    volumes = (Mount(str(scratch), "/data"), Mount(str(other), "/data/mine"))
    with pytest.raises(RequestError, match="has another owner"):
        check(world, volumes)
    with pytest.raises(RequestError, match="has another owner"):
        output(world, "true", *volumes)


def test_a_nested_volume_lies_where_its_owner_made_a_place(world: RuntimeWorld, place: Path) -> None:
    other = owned(place / "other")
    (place / "alice/new").mkdir(mode=0o755)
    volumes = (Mount(str(other), "/data/new"), Mount(str(place / "alice"), "/data"))
    check(world, volumes)
    assert output(world, "echo done >/data/new/file; cat /data/new/file", *volumes) == "done\n"
    assert (other / "file").stat().st_uid == ALICE.uid


def test_a_volume_over_a_directory_of_the_system_gets_nothing_of_roots(world: RuntimeWorld, place: Path) -> None:
    with pytest.raises(PgpuError):
        output(world, "true", Mount(str(place / "alice"), "/lib"))  # a link of the image
    assert list((place / "alice").iterdir()) == []


@pytest.mark.parametrize("target", ["/etc", "/usr/lib", "/dev"])
def test_a_volume_over_a_directory_of_the_system_is_refused_before_it_waits(
    world: RuntimeWorld, place: Path, target: str
) -> None:
    with pytest.raises(RequestError, match="has no place"):
        check(world, [Mount(str(place / "alice"), target)])
    assert list((place / "alice").iterdir()) == []


@pytest.mark.parametrize("name", ["secret", "guessed"])
def test_no_link_of_an_image_leads_root_below_a_closed_directory(
    world: RuntimeWorld, place: Path, linked: str, name: str
) -> None:
    world.image = linked
    volumes = (Mount(str(place), "/data"), Mount(str(owned(place / "other")), f"/way/{name}"))
    with pytest.raises(PgpuError):
        output(world, "true", *volumes, directory="/")
    assert {path.name for path in (place / "closed").iterdir()} == {"secret"}


def test_a_link_swapped_in_gets_nothing_of_roots(world: RuntimeWorld, place: Path) -> None:
    mine, other = place / "alice", owned(place / "other")
    (mine / "new").symlink_to("/data/elsewhere/deeper")
    with pytest.raises(PgpuError):
        output(world, "true", Mount(str(mine), "/data"), Mount(str(other), "/data/new"))
    assert foreign_owners(mine) == {0}  # the link, which this test made
    assert {path.name for path in mine.iterdir()} == {"new"}


def test_what_a_user_writes_is_theirs_and_what_others_opened_is_read(world: RuntimeWorld, place: Path) -> None:
    mine = place / "alice"
    for name, mode in (("open", 0o644), ("closed", 0o600)):
        (mine / name).write_text(f"{name}\n")
        (mine / name).chmod(mode)
        os.chown(mine / name, BOB.uid, BOB.gid)
    volume = Mount(str(mine), "/data")
    told = output(world, "cat /data/open /data/closed; mkdir /data/made; echo >/data/made/file", volume)
    assert "open\n" in told
    assert "closed: Permission denied" in told
    made = [(mine / name).stat() for name in ("made", "made/file")]
    assert [(each.st_uid, each.st_gid) for each in made] == [(ALICE.uid, ALICE.gid)] * 2


def test_a_file_of_ones_own_may_have_any_group(world: RuntimeWorld, place: Path) -> None:
    mine = owned(place / "alice/project", 0o2770)
    os.chown(mine, ALICE.uid, 61050)
    mine.chmod(0o2770)
    assert output(world, "echo one >/data/file; echo two >>/data/file", Mount(str(mine), "/data")) == ""
    assert ((mine / "file").read_text(), (mine / "file").stat().st_gid) == ("one\ntwo\n", 61050)


def test_what_a_user_may_by_a_group_they_may_in_a_container_too(world: RuntimeWorld, place: Path) -> None:
    team = place / "team"
    team.mkdir()
    os.chown(team, BOB.uid, ALICE.groups[0])
    team.chmod(0o2770)
    told = output(
        world, "id -G; mkdir /data/mine; echo done >/data/mine/file; cat /data/mine/file", Mount(str(team), "/data")
    )
    assert told == f"{ALICE.gid} {ALICE.groups[0]}\ndone\n"
    made = (team / "mine/file").stat()
    assert (made.st_uid, made.st_gid) == (ALICE.uid, ALICE.groups[0])


@pytest.mark.parametrize("owner", [0, BOB.uid])
def test_a_volume_that_all_may_write_is_written(world: RuntimeWorld, place: Path, owner: int) -> None:
    scratch = place / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    os.chown(scratch, owner, owner)
    assert output(world, "mkdir /data/mine; echo >/data/mine/file", Mount(str(scratch), "/data")) == ""
    assert stat.S_IMODE(scratch.stat().st_mode) == 0o1777
    assert {path.stat().st_uid for path in scratch.rglob("*")} == {ALICE.uid}


def test_root_makes_nothing_in_a_volume_of_roots_that_all_may_write(world: RuntimeWorld, place: Path) -> None:
    scratch, other = place / "scratch", owned(place / "other")
    scratch.mkdir()
    scratch.chmod(0o1777)
    (place / "alice/link").symlink_to("/scratch/new")
    volumes = (
        Mount(str(scratch), "/scratch"),
        Mount(str(place / "alice"), "/alice"),
        Mount(str(other), "/alice/link"),
    )
    with pytest.raises(PgpuError):
        output(world, "true", *volumes)
    assert list(scratch.iterdir()) == []


def test_nothing_of_a_directory_of_roots_becomes_a_part_of_the_system(world: RuntimeWorld, place: Path) -> None:
    scratch = place / "scratch"
    scratch.mkdir()
    scratch.chmod(0o1777)
    (scratch / "secret").write_text("known-by-root-alone\n")
    (scratch / "secret").chmod(0o600)
    for name in ("hosts", "hostname", "resolv.conf"):
        (scratch / name).touch()
    (scratch / "ld.so.preload").symlink_to("/etc/secret")
    with pytest.raises(RequestError, match="has another owner"):
        output(world, "cat /.pgpu/ld.so.preload", Mount(str(scratch), "/etc"))


def test_what_root_reads_of_a_volume_is_not_told(world: RuntimeWorld, place: Path) -> None:
    mine = place / "alice"
    (mine / "secret").write_text("known-by-root-alone\n")
    (mine / "secret").chmod(0o600)
    for name in ("hosts", "hostname", "resolv.conf"):
        (mine / name).touch()
    (mine / "ld.so.preload").symlink_to("/etc/secret")
    assert "known-by-root" not in output(world, "cat /.pgpu/ld.so.preload", Mount(str(mine), "/etc"))


def test_a_read_only_volume_stays_so(world: RuntimeWorld, place: Path) -> None:
    told = output(world, "echo >/data/file; mkdir /data/new", Mount(str(place / "alice"), "/data", "ro"))
    assert told.count("Read-only") == 2


def test_a_volume_whose_file_system_cannot_map_owners_is_refused(world: RuntimeWorld) -> None:
    with pytest.raises(RequestError, match="owners cannot be mapped"):
        check(world, [Mount("/sys/kernel", "/data")])


def test_a_volume_that_holds_such_a_file_system_is_refused(world: RuntimeWorld, place: Path) -> None:
    inner = place / "alice/inner"
    inner.mkdir()
    assert os.spawnvp(os.P_WAIT, "mount", ["mount", "--bind", "/sys/kernel", str(inner)]) == 0
    try:
        with pytest.raises(RequestError, match="owners cannot be mapped"):
            check(world, [Mount(str(place / "alice"), "/data")])
    finally:
        assert os.spawnvp(os.P_WAIT, "umount", ["umount", str(inner)]) == 0


def test_a_file_system_below_a_volume_is_mounted_along(world: RuntimeWorld, place: Path) -> None:
    inner = owned(place / "alice/inner")
    assert os.spawnvp(os.P_WAIT, "mount", ["mount", "-t", "tmpfs", "-o", "mode=1777", "inner", str(inner)]) == 0
    try:
        (inner / "file").write_text("inner\n")
        os.chown(inner / "file", ALICE.uid, ALICE.gid)
        told = output(world, "cat /data/inner/file; echo >>/data/inner/file", Mount(str(place / "alice"), "/data"))
        assert told == "inner\n"
    finally:
        assert os.spawnvp(os.P_WAIT, "umount", ["umount", str(inner)]) == 0


def test_roots_own_containers_are_as_they_were(world: RuntimeWorld, place: Path) -> None:
    root = Account(0, 0, ())
    volumes = (Mount(str(place), "/data"), Mount(str(place / "alice"), "/data/new"))
    assert output(world, "pwd; id -u", *volumes, account=root, directory="/data/made") == "/data/made\n0\n"
    assert (place / "made").stat().st_uid == 0
