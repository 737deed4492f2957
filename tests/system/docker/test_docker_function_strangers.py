"""Two users of root's server and a real engine: what one deploys, sends and installs reaches nothing of the other's, nor of root's."""

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pip
import pytest
from tests.contract.test_functions import wheel_of
from tests.system.docker.conftest import docker
from tests.system.docker.function_world import as_user, asked
from tests.system.user_world import Answer, User, UserWorld, opened_world
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.cli.main import main
from pgpu.client import Client
from pgpu.client.remote_service import HttpFunctions
from pgpu.errors import RequestError
from pgpu.model import Deployment, Replica, Version, VersionState
from pgpu.runtimes.docker.docker_engine import engine_url

pytestmark = pytest.mark.docker

SECRET = "what nobody but root may read"

SPY = """
import json
import os
import socket
import sys
from pathlib import Path


def look(place):
    try:
        return sorted(os.listdir(place)) if os.path.isdir(place) else Path(place).read_bytes()[:64].decode("latin-1")
    except OSError as error:
        return type(error).__name__


def look_at(places):
    return {
        "ids": sorted({os.getuid(), os.geteuid(), os.getgid()}),
        "seen": {place: look(place) for place in places},
        "processes": [look(f"/proc/{name}/cmdline") for name in os.listdir("/proc") if name.isdecimal()],
        "networks": [name for _, name in socket.if_nameindex()],
        "secrets": [name for name in os.environ if "SECRET" in name],
    }
"""

APP = f"""
{SPY}


class Prisoner:
    def __call__(self, places: list[str] | None = None) -> dict[str, object]:
        loaded = {{name: sys.modules[name].__cached__ for name in ("msgspec", __name__)}}
        return {{**look_at(places or []), "loaded": loaded}}
"""

_PROJECT = '[build-system]\nrequires = []\nbuild-backend = "hostile"\nbackend-path = ["."]\n'
BACKENDS = {
    "spy": SPY + 'raise SystemExit("found: " + json.dumps(look_at(json.loads(Path("/hostile/places").read_text()))))\n',
    "hang": "import signal\nsignal.pause()\n",
    "link": 'import os\nos.symlink("/", "/packages/packages")\n',
    "greedy": 'held = []\nwhile True:\n    held.append(b"x" * (1 << 24))\n',
}
"""What runs in a build, as any package's setup may."""

SLOW = """
import os, signal
if os.access("/.pgpu-bytecode", os.W_OK):
    print("compiling without end", flush=True)
    signal.pause()
"""
"""What runs in every Python that has this package."""


@dataclass(frozen=True)
class Town:
    """A server with its gateway, and what root keeps for itself."""

    world: UserWorld
    image: str
    secret: Path

    @property
    def state(self) -> Path:
        return Path(self.world.place.environment["PGPU_STATE_DIR"])

    @property
    def root(self) -> HttpFunctions:
        return open_functions(Settings(host=f"unix://{self.world.socket}"))

    @property
    def client(self) -> Client:
        return open_client(Settings(host=f"unix://{self.world.socket}"))

    @property
    def places(self) -> list[str]:
        """What nobody in a container may see of the machine."""
        engine = engine_url().removeprefix("unix://")
        return [str(self.secret), str(self.state), str(self.world.socket), engine, "/etc/shadow", "/root"]

    def deploy(self, user: User, name: str, directory: Path, **words: Any) -> Version:
        deployment, bundle = asked(self.image, name, directory / name, APP, **words)
        return as_user(user, lambda functions: functions.deploy(deployment, bundle))

    def version(self, user: User, name: str) -> Version:
        return as_user(user, lambda functions: functions.function(name)).versions[-1]

    def judged(self, user: User, name: str) -> Version:
        until(lambda: self.version(user, name).state is not VersionState.PENDING)
        return self.version(user, name)

    def undeploy(self, user: User, name: str) -> None:
        as_user(user, lambda functions: functions.undeploy(name))

    def call(self, user: User, name: str, body: object = None, token: str | None = None) -> Answer:
        gateway = replace(user, socket=user.socket.with_name("functions.sock"))
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return gateway.ask("POST", f"/functions/{name}", body or {}, seconds=DEADLINE_SECONDS, **headers)

    def serve(self, user: User, name: str, directory: Path) -> None:
        """Deploy it, and wait until it answers."""
        self.deploy(user, name, directory)
        until(lambda: self.call(user, name).status == HTTPStatus.OK)

    def replica(self, name: str) -> Replica:
        return self.root.replicas(name)[0]

    def said(self, name: str) -> str:
        """What was written by all jobs of a function, as root reads it."""
        jobs = [report.job for report in self.client.jobs(include_final=True) if report.job.spec.serves == name]
        return b"".join(data for job in jobs for _, data in self.client.logs(job.id, follow=False)).decode()


@pytest.fixture(scope="module")
def secret() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/var/tmp"))
    (directory / "secret").write_text(SECRET)
    yield directory / "secret"
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def town(images: str, secret: Path) -> Iterator[Town]:
    with opened_world("--gateway", "127.0.0.1:0") as world:
        made = Town(world, f"{images}:hostile", secret)
        with tempfile.TemporaryDirectory() as directory:
            _make_image(images, made, Path(directory))
        until(world.socket.with_name("functions.sock").exists)
        yield made
    docker("rmi", made.image, check=False)


def _make_image(images: str, town: Town, directory: Path) -> None:
    """The test's image with our pip, a package that need not be fetched, and packages that mean ill."""
    wheel_of(directory / "wheels", "pgputhere")
    wheel_of(directory / "wheels", "pgpuslow", {"sitecustomize.py": SLOW})
    for name, text in BACKENDS.items():
        project = directory / "hostile" / name
        project.mkdir(parents=True)
        (project / "pyproject.toml").write_text(_PROJECT)
        (project / "hostile.py").write_text(text)
    (directory / "hostile" / "places").write_text(json.dumps(town.places))
    container = docker("create", f"{images}:latest", "true").stdout.decode().strip()
    docker("cp", str(Path(pip.__file__).parent), f"{container}:/usr/local/lib/python3.11/dist-packages/pip")
    for name in ("wheels", "hostile"):
        docker("cp", str(directory / name), f"{container}:/{name}")
    docker("commit", container, town.image)
    docker("rm", container)


def test_only_the_owner_and_who_has_a_token_call_a_function_and_learn_of_it(town: Town, tmp_path: Path) -> None:
    alice, bob = town.world.user(), town.world.user()
    town.serve(alice, "private", tmp_path)
    assert town.call(bob, "private").status == 404
    hidden, none = town.call(bob, "private").value, town.call(bob, "none").value
    assert (hidden["error"], hidden["code"]) == (none["error"], none["code"])
    token = as_user(alice, lambda functions: functions.create_token("private", "bob's")).text
    assert town.call(bob, "private", token=token).status == 200
    replica = town.replica("private")
    for path in ("/v1/functions/private", "/v1/functions/private/replicas", f"/v1/jobs/{replica.job_id}/logs"):
        assert (bob.ask("GET", path).status, alice.ask("GET", path).status) == (404, 200), path
    with pytest.raises(RequestError, match="belongs to another user"):
        town.deploy(bob, "private", tmp_path)
    for place in (replica.socket_directory, f"{replica.socket_directory}/http.sock", str(town.state / "functions")):
        assert "denied" in bob.run("ls", place).stderr
    town.undeploy(alice, "private")


def test_a_replica_sees_nothing_of_another_owners_nor_of_the_machine(town: Town, tmp_path: Path) -> None:
    alice, bob = town.world.user(), town.world.user()
    for user, name in ((alice, "mine"), (bob, "yours")):
        town.serve(user, name, tmp_path)
    theirs = town.replica("yours").socket_directory
    tree = town.state / "functions" / "bundles" / str(bob.uid)
    assert tree.is_dir()
    found = town.call(alice, "mine", {"places": [*town.places, theirs, str(tree)]}).value
    assert found["ids"] == [alice.uid]
    assert set(found["seen"].values()) <= {"FileNotFoundError", "PermissionError"}, found["seen"]
    assert (found["networks"], found["secrets"]) == (["lo"], [])
    assert all("pgpu" in each or "python3" in each for each in found["processes"])
    assert len(found["processes"]) == 3
    for user, name in ((alice, "mine"), (bob, "yours")):
        town.undeploy(user, name)


def test_what_a_package_runs_while_it_is_installed_sees_its_owners_container_alone(town: Town, tmp_path: Path) -> None:
    bob = town.world.user()
    town.deploy(bob, "spying", tmp_path, requirements="/hostile/spy\n")
    assert town.judged(bob, "spying").state is VersionState.FAILED
    told = town.said("spying")
    found = json.loads(told[told.index("found: ") + len("found: ") :].splitlines()[0])
    assert found["ids"] == [bob.uid]
    assert set(found["seen"].values()) <= {"FileNotFoundError", "PermissionError"}, found["seen"]
    assert (len(found["processes"]) < 8, found["secrets"]) == (True, [])
    town.undeploy(bob, "spying")


def check_lines(town: Town, directory: Path, lines: list[str]) -> None:
    """Have each line installed for a user of its own, and see that nobody is told what is root's."""
    users = [town.world.user() for _ in lines]
    for number, (user, line) in enumerate(zip(users, lines, strict=True)):
        town.deploy(user, f"line-{number}", directory, requirements=line)
    for number, user in enumerate(users):
        name = f"line-{number}"
        assert town.judged(user, name).state is VersionState.FAILED, lines[number]
        assert not list((town.state / "functions" / "layers" / str(user.uid)).glob("building-*"))
        told = town.said(name)
        assert SECRET not in told
        assert "root:" not in told
        town.undeploy(user, name)


def test_no_lock_file_reads_what_is_roots(town: Town, tmp_path: Path) -> None:
    check_lines(town, tmp_path, ["-r /etc/shadow", f"-r {town.secret}", "/hostile/link"])


@pytest.mark.soak
def test_no_line_that_pip_knows_reads_what_is_roots(town: Town, tmp_path: Path) -> None:
    odd = ["--target /function\npgputhere", "/packages/../../function", "a\n\tb", "\x1b]0;x\x07"]
    named = [str(town.state), f"file://{town.secret}", f"-c {town.secret}", "-e .", "."]
    indexes = [f"--index-url file://{town.state}\nnone", f"--find-links {town.secret.parent}\n--no-index\nnone"]
    check_lines(town, tmp_path, [*odd, *named, *indexes])


def test_packages_are_reused_by_their_owner_and_never_by_another(town: Town, tmp_path: Path) -> None:
    alice, bob = town.world.user(), town.world.user()
    lock = "/wheels/pgputhere-1-py3-none-any.whl\n"
    town.deploy(alice, "first", tmp_path, requirements=lock)
    assert town.judged(alice, "first").state is VersionState.READY, town.said("first")
    assert town.deploy(alice, "second", tmp_path, requirements=lock).state is VersionState.READY
    assert town.deploy(bob, "third", tmp_path, requirements=lock).state is VersionState.PENDING
    assert town.judged(bob, "third").state is VersionState.READY
    # Beside them there may be byte code, which the first replica compiles.
    owned = [town.state / "functions" / "layers" / str(user.uid) for user in (alice, bob)]
    layers = [[each for each in every.iterdir() if any(each.glob("pgputhere*"))] for every in owned]
    assert [len(each) for each in layers] == [1, 1]
    assert layers[0][0].name == layers[1][0].name
    assert [each[0].stat().st_uid for each in layers] == [alice.uid, bob.uid]
    assert town.call(alice, "second", {"places": ["/.pgpu-packages"]}).value["seen"]["/.pgpu-packages"] != []
    for user, name in ((alice, "first"), (alice, "second"), (bob, "third")):
        town.undeploy(user, name)


def test_the_second_start_finds_what_the_first_one_compiled_and_nobody_can_change_it(
    town: Town, tmp_path: Path
) -> None:
    alice, bob = town.world.user(), town.world.user()
    layers = town.state / "functions" / "layers"
    for user, name in ((alice, "quick"), (bob, "quicker")):
        town.serve(user, name, tmp_path)
        until(lambda user=user: any((layers / str(user.uid)).glob("*/**/*.pyc")))  # type: ignore[misc] # mypy reads no defaults
    jobs = [report.job for report in town.client.jobs(include_final=True) if report.job.spec.serves == "quick"]
    made = next(job for job in jobs if job.id != town.replica("quick").job_id)
    assert (town.client.wait(made.id).exit_code, made.spec.network) == (0, None)
    town.client.stop(town.replica("quick").job_id, grace_seconds=5)
    found = town.call(alice, "quick", {"places": ["/.pgpu-bytecode"]}).value
    assert found["loaded"]["msgspec"].startswith("/.pgpu-bytecode/")
    assert found["loaded"]["app"].startswith("/function/")
    mounts = {mount.target: mount for mount in town.client.job(town.replica("quick").job_id).job.spec.provisions}
    mine = Path(mounts["/.pgpu-bytecode"].source)
    assert mounts["/.pgpu-bytecode"].options == "ro"
    assert (mine.parent.name, mine.stat().st_uid) == (str(alice.uid), alice.uid)
    town.undeploy(alice, "quick")
    town.undeploy(bob, "quicker")


def _link(name: str, target: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = tarfile.SYMTYPE, target
    return made


def _hard_link(name: str, target: str) -> tarfile.TarInfo:
    made = _link(name, target)
    made.type = tarfile.LNKTYPE
    return made


def _device(name: str) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.devmajor, made.devminor = tarfile.CHRTYPE, 1, 3
    return made


ARCHIVES: dict[str, Callable[[Path], list[tarfile.TarInfo]]] = {
    "link": lambda secret: [_link("app.py", str(secret))],
    "link up": lambda secret: [_link("app.py", f"{'../' * 20}{str(secret)[1:]}")],
    "link behind a name": lambda _: [_link("in", "."), _link("app.py", "in/../../../../../../etc/shadow")],
    "through a link": lambda _: [_link("in", "."), tarfile.TarInfo("in/app.py")],
    "hard link": lambda secret: [_hard_link("app.py", str(secret))],
    "device": lambda _: [_device("app.py")],
    "absolute": lambda secret: [tarfile.TarInfo(f"{secret}.taken")],
    "up": lambda _: [tarfile.TarInfo("../../../app.py")],
    "twice": lambda _: [tarfile.TarInfo("app.py"), tarfile.TarInfo("app.py")],
}


@pytest.mark.parametrize("what", ARCHIVES)
def test_a_bundle_that_means_ill_is_refused_and_leaves_nothing(town: Town, what: str) -> None:
    bob, bundle = town.world.user(), io.BytesIO()
    with tarfile.open(fileobj=bundle, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for member in ARCHIVES[what](town.secret):
            archive.addfile(member)
    digest = hashlib.sha256(bundle.getvalue()).hexdigest()
    bundle.seek(0)
    deployment = Deployment("ill", "app.py:Prisoner", digest, "{}", "docker", town.image)
    with pytest.raises(RequestError):
        as_user(bob, lambda functions: functions.deploy(deployment, bundle))
    shelf = town.state / "functions" / "bundles" / str(bob.uid)
    assert list(shelf.iterdir()) == []
    assert [path.name for path in town.secret.parent.iterdir()] == ["secret"]


def test_odd_names_are_files_of_the_bundle_and_nothing_else(town: Town, tmp_path: Path) -> None:
    bob = town.world.user()
    odd = ["line\nbreak:ro,z.py", ":/etc", "é\\ü", "-v"]
    (tmp_path / "odd").mkdir()
    for name in odd:
        (tmp_path / "odd" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "odd" / name).write_text("x")
    town.deploy(bob, "odd", tmp_path)
    seen = town.call(bob, "odd", {"places": ["/function"]}).value["seen"]["/function"]
    assert sorted(seen) == sorted(["app.py", "line\nbreak:ro,z.py", ":", "é\\ü", "-v"])
    town.undeploy(bob, "odd")


def test_packages_that_hang_hold_up_nobody_elses_and_end_with_their_function(town: Town, tmp_path: Path) -> None:
    hangers, bob = [town.world.user() for _ in range(3)], town.world.user()
    for number, user in enumerate(hangers):
        town.deploy(user, f"hanging-{number}", tmp_path, requirements="/hostile/hang\n")
    until(lambda: len(_builds(town, "hanging")) == len(hangers))
    town.deploy(bob, "patient", tmp_path, requirements="/wheels/pgputhere-1-py3-none-any.whl\n")
    assert town.judged(bob, "patient").state is VersionState.READY
    for number, user in enumerate(hangers):
        town.undeploy(user, f"hanging-{number}")
    until(lambda: not _builds(town, "hanging"))
    town.undeploy(bob, "patient")


def test_who_holds_up_what_compiles_is_ended_with_their_function(town: Town, tmp_path: Path) -> None:
    bob = town.world.user()
    town.deploy(bob, "endless", tmp_path, requirements="/wheels/pgpuslow-1-py3-none-any.whl\n")
    until(lambda: town.call(bob, "endless").status == HTTPStatus.OK)
    until(lambda: "compiling without end" in town.said("endless"))
    town.undeploy(bob, "endless")
    until(lambda: not _builds(town, "endless"))


FETCHES = """
class Model:
    def __call__(self) -> str:
        return open("/cache/model").read()
"""


def test_the_command_fills_a_cache_after_the_packages_and_rolls_out_what_can_be_served(
    town: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A command that fails leaves the traffic, and rollback finds the bytes before."""
    (tmp_path / "app.py").write_text(FETCHES)
    (tmp_path / "lock").write_text("/wheels/pgputhere-1-py3-none-any.whl\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGPU_HOST", f"unix://{town.world.socket}")

    def deploy(fill: str) -> int:
        words = ("deploy", "app.py:Model", "--image", town.image, "--requirements", "lock", "--cache", "w:/cache")
        return main((*words, "--fill", fill, "--idle", "1s"))

    def answer() -> str:
        return town.call(town.world.root, "model").text

    assert deploy("python3 -c 'import pgputhere'; echo fetching >&2; printf one >/cache/model") == 0
    printed = capfd.readouterr()
    assert (printed.out, "fetching\n" in printed.err) == ("model@1\n", True)
    assert answer() == "one"
    assert deploy("echo no hub here; exit 7") == 125
    printed = capfd.readouterr()
    assert ("no hub here\n" in printed.err, "its cache could not be filled" in printed.err) == (True, True)
    assert [each.version for each in town.root.function("model").traffic] == [1]
    assert main(("function", "logs", "model", "--previous")) == 0
    assert "no hub here\n" in capfd.readouterr().out
    assert deploy("printf two >/cache/model") == 0
    until(lambda: answer() == "two")
    assert main(("rollback", "model")) == 0
    until(lambda: answer() == "one")
    town.undeploy(town.world.root, "model")
    assert not [*(town.state / "functions" / "caches" / "0").iterdir()]


def _builds(town: Town, name: str) -> list[str]:
    jobs = [report.job for report in town.client.jobs(include_final=False)]
    return [job.id for job in jobs if (job.spec.serves or "").startswith(name) and job.holder is not None]


@pytest.mark.soak
def test_packages_that_take_too_long_or_too_much_fail_their_version_alone(town: Town, tmp_path: Path) -> None:
    with opened_world("--gateway", "127.0.0.1:0", PGPU_BUILD_TIMEOUT="5s") as world:
        short = replace(town, world=world)
        alice, bob = world.user(), world.user()
        short.deploy(alice, "endless", tmp_path, requirements="/hostile/hang\n")
        short.deploy(bob, "greedy", tmp_path, requirements="/hostile/greedy\n")
        for user, name in ((alice, "endless"), (bob, "greedy")):
            version = short.judged(user, name)
            assert version.state is VersionState.FAILED
            assert "pgpu logs" in (version.reason or "")
        assert "not built in 5 s" in (short.version(alice, "endless").reason or "")
        for user, name in ((alice, "endless"), (bob, "greedy")):
            town.undeploy(user, name)
