"""How a version becomes a job, and what is refused before it does: all of it pure."""

import hashlib
import json
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.errors import RequestError
from pgpu.functions.api import Declaration
from pgpu.functions.deploy.deployer import validate_deployment
from pgpu.functions.deploy.version_jobs import (
    OWN,
    OWN_REQUIREMENTS,
    PACKAGES,
    SOCKETS,
    SOURCE,
    ReplicaPaths,
    build_spec,
    cache_generation,
    digests_of_named_files,
    fill_spec,
    layer_digest,
    output_directory_of,
    replica_request,
    replica_spec,
)
from pgpu.model import Deployment, Mount, Objective, Request, Version, VersionState
from pgpu.structs import replace
from pgpu.units import GIB, MIB

VERSION = Version(
    function="detector",
    number=2,
    owner_uid=61001,
    app="app.py:Detector",
    bundle="a" * 64,
    declaration='{"memory": "4GiB", "concurrency": 2}',
    runtime="docker",
    image="python:3.11",
    requirements="numpy==2.0\n",
    state=VersionState.READY,
    reason=None,
    created_at_seconds=1.0,
)
PROCESS = replace(VERSION, runtime="process", image=None)
PLACES = ReplicaPaths(
    Path("/s/tree"), Path("/r/sockets"), Path("/s/packages"), (Path("/lib/pgpu"), Path("/lib/msgspec"))
)
ASKED = Deployment("detector", "app.py:Detector", "a" * 64, runtime="docker", image="python:3.11")


def front_words(command: tuple[str, ...]) -> dict[str, str]:
    words = command[command.index("--app") :]
    return dict(zip(words[::2], words[1::2], strict=True))


def test_a_container_reads_everything_and_writes_its_sockets_alone() -> None:
    spec = replica_spec(VERSION, PLACES)
    assert {mount.target: (mount.source, mount.options) for mount in spec.provisions} == {
        SOURCE: ("/s/tree", "ro"),
        SOCKETS: ("/r/sockets", "rw"),
        PACKAGES: ("/s/packages", "ro"),
        f"{OWN}/pgpu": ("/lib/pgpu", "ro"),
        f"{OWN}/msgspec": ("/lib/msgspec", "ro"),
    }
    assert (spec.is_sealed, spec.network, spec.volumes, spec.user, spec.serves) == (True, None, (), None, "detector")
    assert dict(spec.environment)["PYTHONPATH"] == f"{PACKAGES}:{PACKAGES}/.pgpu:{OWN}"
    words = front_words(spec.command)
    assert (words["--app"], words["--source"], words["--directory"]) == (VERSION.app, SOURCE, SOCKETS)
    assert json.loads(words["--declaration"]) == {"memory": 4 * GIB, "gpus": 1, "concurrency": 2}


def test_a_network_is_had_by_who_declares_one_alone() -> None:
    opened = replace(VERSION, declaration='{"network": "bridge"}')
    assert (replica_spec(opened, PLACES).network, replica_spec(VERSION, PLACES).network) == ("bridge", None)


def test_a_directory_is_mounted_as_a_volume_of_the_owner_s_and_read_only_unless_declared() -> None:
    spec = replica_spec(replace(VERSION, declaration='{"mounts": ["/srv/w:/weights/", "/out:/out:rw"]}'), PLACES)
    assert spec.volumes == (Mount("/srv/w", "/weights", "ro"), Mount("/out", "/out", "rw"))
    assert not {mount.target for mount in spec.provisions} & {"/weights", "/out"}


def test_host_memory_is_the_containers() -> None:
    small = replace(VERSION, declaration='{"host_memory": "256MiB"}')
    assert (replica_spec(small, PLACES).host_memory_bytes, replica_spec(VERSION, PLACES).host_memory_bytes) == (
        256 * MIB,
        None,
    )


@pytest.mark.parametrize(("version", "seen"), [(VERSION, "/run/secrets"), (PROCESS, "/r/1.secrets")])
def test_secrets_are_a_directory_that_only_the_replica_reads(version: Version, seen: str) -> None:
    given = replace(version, declaration='{"secrets": ["token", "key:env"]}')
    spec = replica_spec(given, replace(PLACES, secrets=Path("/r/1.secrets")))
    mounts = [mount.options for mount in spec.provisions if mount.target == "/run/secrets"]
    assert mounts == (["ro"] if version is VERSION else [])
    assert dict(spec.environment)["PGPU_SECRETS"] == seen
    assert spec.command[-2:] == ("--secret-variable", "key:env=key")


@pytest.mark.parametrize("version", [VERSION, PROCESS])
def test_declared_variables_are_the_job_s_and_not_on_its_command_line(version: Version) -> None:
    spec = replica_spec(replace(version, declaration='{"env": {"MODEL": "small", "HOME": "/h"}}'), PLACES)
    assert (dict(spec.environment)["MODEL"], dict(spec.environment)["HOME"]) == ("small", "/h")
    assert "small" not in " ".join(spec.command)


def test_a_process_is_this_interpreter_in_the_source_with_nothing_of_containers() -> None:
    spec = replica_spec(PROCESS, PLACES)
    assert (spec.command[0], spec.working_directory, spec.runtime) == (sys.executable, "/s/tree", "process")
    assert (spec.provisions, spec.is_sealed, spec.image) == ((), False, None)
    assert front_words(spec.command)["--directory"] == "/r/sockets"
    assert dict(spec.environment)["PYTHONPATH"] == "/s/packages"


@pytest.mark.parametrize(
    ("declaration", "request_"),
    [
        (Declaration(), Request(0, 0)),
        (Declaration(memory_bytes=GIB, gpus=2, compute_share=0.25), Request(GIB, 2, 0.25, objective=Objective.SOONEST)),
        (Declaration(gpus=1), Request(0, 1, is_estimated=True, objective=Objective.SOONEST)),
    ],
)
def test_what_is_declared_is_what_is_asked_for(declaration: Declaration, request_: Request) -> None:
    assert replica_request(declaration) == request_


def test_packages_have_one_address_for_each_lock_file_and_image() -> None:
    same = (VERSION, replace(VERSION, number=9, declaration="{}", bundle="b" * 64, function="other"))
    others = (replace(VERSION, image="python:3.12"), replace(VERSION, requirements="numpy==2.1\n"), PROCESS)
    assert len({layer_digest(each) for each in same}) == 1
    assert len({layer_digest(each) for each in (VERSION, *others)}) == 4
    assert layer_digest(replace(VERSION, requirements=None)) is None


def test_packages_are_built_with_a_network_and_one_directory() -> None:
    spec = build_spec(VERSION, Path("/s/building"), (Path("/lib/msgspec"),))
    mounts = [(mount.source, mount.options) for mount in spec.provisions]
    assert mounts == [("/s/building", "rw"), ("/lib/msgspec", "ro")]
    assert (spec.is_sealed, spec.network is not None, spec.serves) == (True, True, "detector")
    assert build_spec(PROCESS, Path("/s/building")).provisions == ()


FILLED = '{"cache": "w@0123456789ab:/cache", "fill": "python fetch.py; true", "fill_secrets": ["hub:env=TOKEN"], "env": {"A": "1"}}'


def test_a_cache_is_written_by_its_command_alone_which_alone_has_a_network_and_its_secrets() -> None:
    version = replace(VERSION, declaration=FILLED)
    fill = fill_spec(version, Path("/s/filling"), replace(PLACES, secrets=Path("/r/fill.secrets")))
    replica = replica_spec(version, replace(PLACES, cache=Path("/s/w@0123456789ab")))
    mounts = {mount.target: (mount.source, mount.options) for mount in fill.provisions}
    assert (mounts["/cache"], mounts[SOURCE][1]) == (("/s/filling", "rw"), "ro")
    assert mounts["/run/secrets"] == ("/r/fill.secrets", "ro")
    assert (fill.is_sealed, fill.network, fill.serves, dict(fill.environment)["A"]) == (
        True,
        "default",
        "detector",
        "1",
    )
    assert 'export TOKEN="$(cat /run/secrets/hub)"' in fill.command[-1]
    assert fill.command[-1].endswith("\npython fetch.py; true")
    assert output_directory_of(fill) == "/s/filling"
    mounts = {mount.target: (mount.source, mount.options) for mount in replica.provisions}
    assert (mounts["/cache"], "/run/secrets" in mounts) == (("/s/w@0123456789ab", "ro"), False)
    assert (replica.network, output_directory_of(replica)) == (None, None)
    assert not [word for word in replica.command if "TOKEN" in word or "fetch" in word]


def test_a_generation_is_new_when_what_fills_it_is(tmp_path: Path) -> None:
    (tmp_path / "fetch.py").write_text("1")
    (tmp_path / "app.py").write_text("1")
    version = replace(VERSION, declaration=FILLED)
    first = cache_generation(version, tmp_path)
    (tmp_path / "app.py").write_text("2")
    assert (
        cache_generation(replace(version, number=7, declaration=FILLED.replace("@0123456789ab", "")), tmp_path) == first
    )
    others = [cache_generation(replace(version, declaration=FILLED.replace(*each)), tmp_path) for each in (
        ("fetch.py", "fetch.py --all"), ('"A": "1"', '"A": "2"'), ("hub:", "other:"), ("fetch.py", f"/etc/passwd ../x {'x' * 300}")
    )]  # fmt: skip
    (tmp_path / "fetch.py").write_text("2")
    others += [cache_generation(version, tmp_path), cache_generation(replace(version, image="other"), tmp_path)]
    assert len({first, *others}) == 7


def test_a_file_that_a_command_names_a_thousand_times_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "fetch.py").write_text("1")
    (tmp_path / "data" / "list").write_text("2")
    (tmp_path / "link").symlink_to("fetch.py")
    names = " ".join(f"{'./' * count}fetch.py" for count in range(1000))
    found = digests_of_named_files(f"{names} link data data/list", tmp_path)
    assert found == [hashlib.sha256(text).hexdigest() for text in (b"1", b"2")]


def test_what_pgpu_needs_in_an_image_is_what_its_extra_says() -> None:
    project = tomllib.loads((Path(__file__).parent.parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(OWN_REQUIREMENTS) <= {*project["dependencies"], *project["optional-dependencies"]["functions"]}


@pytest.mark.parametrize(
    "words",
    [
        {"function": "Big"},
        {"function": "../x"},
        {"app": "/etc/x.py:X"},
        {"app": "a/../../b.py:X"},
        {"app": "-c"},
        {"app": "app.py:X Y"},
        {"app": ""},
        {"runtime": "process"},
        {"image": None},
        {"image": "x" * 600},
        {"requirements": "x" * 300_000},
        {"requirements": "\0"},
        {"requirements": "\udcff"},
        {"declaration": '{"memory": "no"}'},
        {"declaration": '{"mounts": ["weights:/weights"]}'},
        {"declaration": '{"cache": "w:/cache"}', "runtime": "process", "image": None},
        {"declaration": '{"mounts": ["/srv:/weights"]}', "runtime": "process", "image": None},
        {"declaration": "{"},
        {"declaration": "1"},
        {"declaration": '{"timeout": 1e999}'},
    ],
)
def test_what_can_never_be_served_is_refused(words: dict[str, str | None]) -> None:
    with pytest.raises(RequestError):
        validate_deployment(replace(ASKED, **words))  # type: ignore[arg-type] # each word is its field's


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
KNOWN = st.sampled_from(
    ["memory", "gpus", "compute", "timeout", "batch", "requirements", "arguments", "min_replicas", "x"]
)


@given(st.dictionaries(KNOWN, VALUES, max_size=3), st.text(max_size=12))
def test_whatever_is_declared_becomes_plain_words_or_a_refusal(words: dict[str, object], app: str) -> None:
    try:
        plain = validate_deployment(replace(ASKED, app=app or ASKED.app, declaration=json.dumps(words)))
    except RequestError:
        return
    assert validate_deployment(plain) == plain
    replica_spec(plain, PLACES)
