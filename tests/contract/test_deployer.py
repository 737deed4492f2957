"""What a server does on its shelves for functions, with what their owners may have left there."""

import io
import json
import os
from pathlib import Path

import pytest

from pgpu.errors import RequestError
from pgpu.functions.deploy.bundle_store import BundleStore
from pgpu.functions.deploy.deployer import Deployer
from pgpu.functions.deploy.secret_store import SecretStore
from pgpu.functions.deploy.source_bundle import pack_tree
from pgpu.model import Deployment, Function, Share, Version, VersionState
from pgpu.structs import replace

OWNER = 61001


@pytest.fixture
def deployer(tmp_path: Path) -> Deployer:
    return Deployer(BundleStore(tmp_path / "functions"), SecretStore(tmp_path / "secrets"), tmp_path / "sockets")


@pytest.fixture
def version(deployer: Deployer, tmp_path: Path) -> Version:
    source = tmp_path / "source"
    source.mkdir()
    (source / "app.py").write_text("")
    out = io.BytesIO()
    digest = pack_tree(source, out).digest
    with deployer.receive(OWNER) as incoming:
        incoming.write(out.getvalue())
        incoming.keep(digest)
    return Version("f", 1, OWNER, "app.py:F", digest, "{}", "docker", "image", "numpy", VersionState.PENDING, None, 1.0)


def built_in(deployer: Deployer, version: Version) -> Path:
    return Path(deployer.build(version, None).spec.provisions[0].source)


def test_packages_are_kept_once_they_are_there(deployer: Deployer, version: Version) -> None:
    building = built_in(deployer, version)
    assert (building / "requirements.txt").read_text() == "numpy"
    with pytest.raises(RequestError, match="not installed"):
        deployer.keep_build(version)
    with pytest.raises(RequestError, match="are gone"):
        deployer.replica(version, "0" * 12, None)
    assert not building.exists()
    assert built_in(deployer, version) == building
    (building / "packages").mkdir()
    (building / "packages" / "numpy.py").write_text("")
    deployer.keep_build(version)
    deployer.keep_build(version)
    assert deployer.is_built(version)
    assert not building.exists()
    submission, sockets = deployer.replica(version, "0" * 12, None)
    packages = {mount.target: Path(mount.source) for mount in submission.spec.provisions}["/.pgpu-packages"]
    assert (packages / "numpy.py").exists()
    assert Path(sockets).is_dir()
    deployer.forget("0" * 12)
    assert not Path(sockets).exists()


def test_more_packages_than_an_owner_may_have_are_thrown_away(version: Version, tmp_path: Path) -> None:
    bundles = BundleStore(tmp_path / "functions", most_layers_bytes=1 << 20)
    small = Deployer(bundles, SecretStore(tmp_path / "secrets"), tmp_path / "sockets")
    for number, size_bytes in ((1, 1 << 19), (2, 1 << 20)):
        wanted = replace(version, number=number, requirements=f"numpy=={number}")
        packages = built_in(small, wanted) / "packages"
        packages.mkdir()
        (packages / "large").write_bytes(b"x" * size_bytes)
        (packages / "link").symlink_to("/")
        if number == 1:
            small.keep_build(wanted)
            assert small.is_built(wanted)
    with pytest.raises(RequestError, match="would hold 1 MiB of 1 MiB"):
        small.keep_build(wanted)
    assert not small.is_built(wanted)
    assert not packages.exists()


def test_packages_in_directories_deeper_than_any_walk_are_refused_and_leave_nothing(
    deployer: Deployer, version: Version
) -> None:
    packages = built_in(deployer, version) / "packages"
    packages.mkdir()
    (packages / "link").symlink_to("/", target_is_directory=True)
    deepest = os.open(packages, os.O_RDONLY)
    for _ in range(2500):
        above = deepest
        os.mkdir("a", dir_fd=above)
        deepest = os.open("a", os.O_RDONLY, dir_fd=above)
        os.close(above)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=deepest))
    os.close(deepest)
    with pytest.raises(RequestError, match="nested too deep"):
        deployer.keep_build(version)
    assert not packages.parent.exists()


def test_a_link_that_the_owner_left_is_never_mounted(deployer: Deployer, version: Version, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (built_in(deployer, version) / "packages").symlink_to(secret)
    with pytest.raises(RequestError, match="not installed"):
        deployer.keep_build(version)
    assert not deployer.is_built(version)


def test_byte_code_is_asked_for_once_and_read_by_every_later_replica(deployer: Deployer, version: Version) -> None:
    needless = replace(version, requirements=None)
    assert deployer.bytecode(replace(needless, runtime="process", image=None), None) is None
    targets = {mount.target for mount in deployer.replica(needless, "0" * 12, None)[0].spec.provisions}
    assert "/.pgpu-bytecode" not in targets
    made = deployer.bytecode(needless, None)
    assert made is not None
    assert [mount.target for mount in made.spec.provisions if mount.options == "rw"] == ["/.pgpu-bytecode"]
    assert "/function" not in {mount.target for mount in made.spec.provisions}
    assert (made.spec.is_sealed, made.spec.network) == (True, None)
    assert deployer.bytecode(replace(needless, number=2, function="g"), None) is None
    mounts = deployer.replica(needless, "1" * 12, None)[0].spec.provisions
    assert made.spec.provisions[0].source in {mount.source for mount in mounts if mount.options == "ro"}
    assert deployer.bytecode(replace(needless, image="other"), None) is not None
    deployer.sweep(OWNER, [function_of(needless, served=1)])
    assert Path(made.spec.provisions[0].source).is_dir()
    for job_id in ("0" * 12, "1" * 12):
        deployer.forget(job_id)


def test_a_job_that_fills_a_directory_is_told_by_its_version_and_owner(deployer: Deployer, version: Version) -> None:
    theirs = replace(version, owner_uid=OWNER + 1)
    installing = deployer.output_name(deployer.build(version, None).spec)
    needless = replace(version, requirements=None)
    compiling = deployer.bytecode(needless, None)
    assert compiling is not None
    assert installing == deployer.build_name(version)
    assert installing in deployer.output_names(version)
    assert deployer.output_name(compiling.spec) in deployer.output_names(needless)
    assert not {installing, deployer.output_name(compiling.spec)} & {
        *deployer.output_names(theirs),
        *deployer.output_names(replace(theirs, requirements=None)),
    }
    replica, _ = deployer.replica(needless, "2" * 12, None)
    assert "/.pgpu-bytecode" in {mount.target for mount in replica.spec.provisions}
    assert deployer.output_name(replica.spec) is None
    deployer.forget("2" * 12)


def test_a_replica_gets_copies_of_its_own_secrets_alone(deployer: Deployer, version: Version) -> None:
    for name, value in (("token", b"one\n"), ("key", b"two")):
        deployer.secrets.put(OWNER, name, value)
    deployer.secrets.put(OWNER, "key", b"three")
    deployer.secrets.put(OWNER + 1, "theirs", b"x")
    given = replace(version, requirements=None, declaration='{"secrets": ["token"]}')
    submission, sockets = deployer.replica(given, "3" * 12, None)
    copies = next(Path(each.source) for each in submission.spec.provisions if each.target == "/run/secrets")
    assert {each.name: (each.read_bytes(), each.stat().st_mode & 0o777) for each in copies.iterdir()} == {
        "token": (b"one\n", 0o400)
    }
    assert not copies.is_relative_to(sockets)
    deployer.secrets.remove(OWNER, "token")
    with pytest.raises(RequestError, match="no secret 'token'"):
        deployer.replica(given, "4" * 12, None)
    deployer.forget("3" * 12)
    assert list(deployer.sockets.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"), [("../x", b"x"), (".x", b"x"), ("", b"x"), ("x", b""), ("x", b"x" * (64 * 1024 + 1))]
)
def test_what_is_no_secret_is_not_kept(deployer: Deployer, name: str, value: bytes) -> None:
    with pytest.raises(RequestError):
        deployer.secrets.put(OWNER, name, value)
    assert deployer.secrets.names(OWNER) == {}


def test_secrets_are_their_owner_s_files_and_of_limited_number(deployer: Deployer, tmp_path: Path) -> None:
    for number in range(100):
        deployer.secrets.put(os.geteuid(), f"s{number}", b"x")
    with pytest.raises(RequestError, match="you have 100 secrets"):
        deployer.secrets.put(os.geteuid(), "more", b"x")
    deployer.secrets.put(os.geteuid(), "s0", b"y")
    own = tmp_path / "secrets" / str(os.geteuid())
    assert {(each.stat().st_mode & 0o777, each.stat().st_uid) for each in own.iterdir()} == {(0o600, os.geteuid())}
    assert own.stat().st_mode & 0o777 == 0o700


def with_cache(version: Version, number: int, label: str, state: VersionState = VersionState.PENDING) -> Version:
    words = {"cache": f"{label}:/cache", "fill": f"fetch {number}", "fill_secrets": ["hub"]}
    return replace(
        version, number=number, requirements=None, declaration=json.dumps(words), state=state, created_at_seconds=number
    )


def function_of(*versions: Version, served: int) -> Function:
    return Function("f", OWNER, 1.0, versions, (Share(served, 100),))


def label_of(number: int) -> str:
    return f"w@{number:012}"


def filled_in(deployer: Deployer, version: Version) -> Path:
    return Path(next(each.source for each in deployer.build(version, None).spec.provisions if each.target == "/cache"))


def test_a_cache_is_filled_and_then_nobody_s_to_change(deployer: Deployer, version: Version, tmp_path: Path) -> None:
    given = with_cache(version, 1, label_of(1))
    with pytest.raises(RequestError, match="no secret 'hub'"):
        deployer.build(given, None)
    deployer.secrets.put(OWNER, "hub", b"x")
    filling = filled_in(deployer, given)
    copies = list(deployer.sockets.glob("*.secrets/*"))
    assert [each.name for each in copies] == ["hub"]
    assert deployer.output_name(deployer.build(given, None).spec) == deployer.build_name(given)
    assert deployer.build_name(given) in deployer.output_names(given)
    with pytest.raises(RequestError, match="left nothing in /cache"):
        deployer.keep_build(given)
    assert not filling.exists()
    assert not deployer.is_built(given)
    deployer.keep_build(given)  # a second judgement changes nothing
    with pytest.raises(RequestError, match="is gone"):
        deployer.replica(given, "6" * 12, None)
    (filled_in(deployer, given) / "model").write_text("x")
    deployer.keep_build(given)
    assert deployer.is_built(given)
    submission, _ = deployer.replica(given, "6" * 12, None)
    (mount,) = (each for each in submission.spec.provisions if each.target == "/cache")
    assert (mount.options, (Path(mount.source) / "model").read_text()) == ("ro", "x")
    assert not {"/run/secrets"} & {each.target for each in submission.spec.provisions}
    filled_in(deployer, with_cache(version, 2, label_of(2)))
    deployer.forget_fills([])
    deployer.forget("6" * 12)
    assert list(deployer.sockets.iterdir()) == []
    assert tmp_path.exists()


def test_a_cache_that_another_version_filled_first_leaves_nothing_of_the_second_job(
    deployer: Deployer, version: Version
) -> None:
    deployer.secrets.put(OWNER, "hub", b"x")
    versions = [with_cache(version, number, label_of(1)) for number in (1, 2)]
    fillings = [filled_in(deployer, each) for each in versions]
    for each, filling in zip(versions, fillings, strict=True):
        (filling / "model").write_text(each.label)
        deployer.keep_build(each)
        assert not filling.exists()
        assert deployer.is_built(each)
    assert list(deployer.sockets.iterdir()) == []
    assert (deployer.store.cache(OWNER, label_of(1)) / "model").read_text() == "f@1"


def test_two_generations_are_kept_and_those_with_traffic(deployer: Deployer, version: Version) -> None:
    deployer.secrets.put(OWNER, "hub", b"x")
    versions = [with_cache(version, number, label_of(number), VersionState.READY) for number in (1, 2, 3, 4)]
    for each in versions:
        (filled_in(deployer, each) / "model").write_text("x")
        deployer.keep_build(each)
    served = [function_of(*versions, served=1)]
    failed = [function_of(*versions[:3], replace(versions[3], state=VersionState.FAILED), served=3)]
    assert [each.number for each in deployer.outdated(served)] == [2]
    assert [each.number for each in deployer.outdated(failed)] == [1]
    pending = [function_of(*versions[:2], replace(versions[2], state=VersionState.PENDING), served=2)]
    assert deployer.outdated(pending) == []
    deployer.hide_caches(OWNER, served)
    # Two steps: the lock that all users share is not held while files are removed.
    (hidden,) = deployer.store.cache(OWNER, label_of(2)).parent.glob(".*/model")
    deployer.sweep(OWNER, served)
    assert not hidden.parent.exists()
    assert [deployer.is_built(each) for each in versions] == [True, False, True, True]


def test_a_version_without_a_command_gets_what_was_filled_last_under_that_name(
    deployer: Deployer, version: Version
) -> None:
    deployer.secrets.put(OWNER, "hub", b"x")
    asked = Deployment("g", "app.py:F", version.bundle, '{"cache": "w:/cache"}', "docker", "image")
    ready, newer = (with_cache(version, number, label_of(number), VersionState.READY) for number in (1, 2))
    (filled_in(deployer, ready) / "model").write_text("x")
    deployer.keep_build(ready)
    found = deployer.validate(asked, OWNER, [function_of(ready, replace(newer, state=VersionState.PENDING), served=1)])
    assert (json.loads(found.declaration)["cache"], found.is_filled) == (f"{label_of(1)}:/cache", False)
    assert deployer.validate(found, OWNER).declaration == found.declaration
    for functions, words in (([], '{"cache": "w:/cache"}'), ([function_of(ready, served=1)], '{"cache": "v:/cache"}')):
        with pytest.raises(RequestError, match="you have no cache"):
            deployer.validate(replace(asked, declaration=words, is_filled=True), OWNER, functions)
    filled = replace(asked, declaration='{"cache": "w:/cache", "fill": "fetch"}')
    first = deployer.validate(filled, OWNER)
    assert first.is_filled
    assert deployer.validate(first, OWNER) == first


def test_more_in_caches_than_an_owner_may_have_is_thrown_away(version: Version, tmp_path: Path) -> None:
    small = Deployer(
        BundleStore(tmp_path / "functions", most_cache_bytes=1 << 20),
        SecretStore(tmp_path / "secrets"),
        tmp_path / "sockets",
    )
    small.secrets.put(OWNER, "hub", b"x")
    versions: list[Version] = []
    for number, size_bytes in ((1, 1 << 19), (2, 1 << 18), (3, 1 << 19), (4, 1 << 20)):
        wanted = with_cache(version, number, label_of(number))
        filling = filled_in(small, wanted)
        (filling / "large").write_bytes(b"x" * size_bytes)
        known = [function_of(*versions, wanted, served=max(1, number - 1))]
        if number == 4:
            with pytest.raises(RequestError, match="would hold 1 MiB of 1 MiB"):
                small.keep_build(wanted, known)
            assert not small.is_built(wanted)
            assert not filling.exists()
        else:
            small.keep_build(wanted, known)
            versions.append(replace(wanted, state=VersionState.READY))
    small.hide_caches(OWNER, [function_of(*versions, served=3)])
    small.sweep(OWNER, [function_of(*versions, served=3)])
    assert [small.is_built(each) for each in versions] == [False, True, True]


def test_what_is_forgotten_is_named_by_a_job_s_id_alone(deployer: Deployer, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for name in ("../kept", "", ".", "..", "a/b"):
        deployer.forget(name)
    assert (tmp_path / "kept").is_dir()
    assert tmp_path.is_dir()


def test_a_directory_of_the_server_s_own_user_is_there_and_never_made(deployer: Deployer, version: Version) -> None:
    missing = deployer.sockets.with_name("weights")
    words = json.dumps({"mounts": [f"{missing}:/weights"]})
    asked = Deployment("f", "app.py:F", version.bundle, words, "docker", "image")
    assert deployer.validate(asked, OWNER).declaration == words
    with pytest.raises(RequestError, match="there is no"):
        deployer.replica(replace(version, owner_uid=os.geteuid(), declaration=words), "5" * 12, None)
    assert not missing.exists()


def test_only_what_was_sent_is_deployed(deployer: Deployer, version: Version) -> None:
    asked = Deployment("f", "app.py:F", version.bundle, json.dumps({"timeout": "30s"}))
    assert json.loads(deployer.validate(asked, OWNER).declaration) == {"timeout": 30.0}
    with pytest.raises(RequestError, match="not here"):
        deployer.validate(asked, OWNER + 1)
