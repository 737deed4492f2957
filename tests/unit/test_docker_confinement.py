"""What a container of a user other than root is asked to be, and what its words may not be: all of it pure."""

import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.errors import RequestError
from pgpu.model import Account, JobSpec, Mount
from pgpu.runtimes.docker.confinement import confined, groups_to_add
from pgpu.runtimes.docker.image_facts import read_facts
from pgpu.runtimes.docker.mounts import needed_places
from pgpu.runtimes.docker.refusals import is_image_id, refuse_bad_reference, refuse_bad_words

_ALICE = Account(61001, 61001, ())
_SHA = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "name",
    [
        "ubuntu",
        "ubuntu:22.04",
        "library/ubuntu",
        "nvcr.io/nvidia/pytorch:24.05-py3",
        "localhost:5000/a/b__c/d-e:T_ag.1-",
        "[2001:db8::1]:5000/a",
        f"app@sha256:{_SHA}",
        f"app:1@sha256:{_SHA}",
        f"sha256:{_SHA}",
        _SHA,
        _SHA[:12],
    ],
)
def test_names_of_images_are_let_through(name: str) -> None:
    refuse_bad_reference(name)


@pytest.mark.parametrize(
    "name",
    [
        "../containers/x",
        "a/../../containers/x",
        "a/./b",
        "a//b",
        "/a",
        "a/",
        "a?x=1",
        "a#x",
        "a b",
        "a\n",
        "a%2e",
        "%2e%2e/containers/x",
        "Ubuntu",
        "a:",
        "a:" + "t" * 129,
        "a@sha256:12",
        "-a",
        "a\0",
        "\udc80",
        "ä",
        "a" * 5000,
        "a/" * 600 + "a",
    ],
)
def test_what_names_no_image_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(RequestError, match="is not an image's name") as caught:
        refuse_bad_words(JobSpec(("true",), "docker", image=name))
    assert len(str(caught.value)) < 1000
    assert "\n" not in str(caught.value)


@given(st.text(alphabet=f"{string.ascii_lowercase}./:@%-_?#", max_size=40))
def test_no_name_of_an_image_leads_elsewhere_in_a_path(name: str) -> None:
    try:
        refuse_bad_reference(name)
    except RequestError:
        return
    assert not {"", ".", ".."} & set(name.split("/"))
    assert not set("?#%") & set(name)


def test_only_an_image_s_id_is_one() -> None:
    assert is_image_id(f"sha256:{_SHA}")
    for other in (_SHA, "", None, f"sha256:{_SHA}0", f"sha256:{_SHA}\n"):
        assert not is_image_id(other)


_LONG = "/" + "a/" * 2050


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"volumes": (Mount("/x\0y", "/data"),)}, "the volume .* is not text"),
        ({"volumes": (Mount("/x", "/data\0"),)}, "the volume .* is not text"),
        ({"volumes": (Mount("/\ud800", "/data"),)}, "the volume .* is not text"),
        ({"volumes": (Mount("/x", "/\udcff"),)}, "the volume .* is not text"),
        ({"volumes": (Mount(_LONG, "/data"),)}, "the volume .* is longer"),
        ({"volumes": (Mount("/x", _LONG),)}, "the volume .* is longer"),
        ({"volumes": tuple(Mount("/x", f"/d{number}") for number in range(65))}, "65 volumes are too many"),
        ({"working_directory": "/\udfff"}, "the working directory .* is not text"),
        ({"working_directory": _LONG}, "the working directory .* is longer"),
        ({"command": ("echo", "\ud912")}, "the command .* is not text"),
        ({"command": ("a\0b",)}, "the command .* is not text"),
        ({"environment": (("A", "\ud800"),)}, "the environment .* is not text"),
        ({"user": "\ud800"}, "the user .* is not text"),
    ],
)
def test_text_that_the_engine_could_not_carry_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        refuse_bad_words(JobSpec(**{"command": ("true",), "runtime": "docker", "image": "a", **fields}))
    caught.value.args[0].encode()


def _places(*targets: str, others: tuple[str, ...] = ()) -> list[tuple[int, str]]:
    return needed_places([Mount("/x", target) for target in targets], others)


def test_a_volume_must_hold_what_is_mounted_in_it() -> None:
    assert _places("/data", "/data2") == []
    assert _places("/data", "/data/new") == [(0, "new")]
    assert _places("/data/a/b", "//data/./a", "/data") == [(1, "b"), (2, "a")]
    assert _places("/usr/lib", others=("/usr/lib/x/libcuda.so.1", "/usr/lib64/libcuda.so.1")) == [(0, "x/libcuda.so.1")]
    assert _places("/etc") == [(0, "hosts"), (0, "hostname"), (0, "resolv.conf")]
    assert _places("/sys") == [(0, "fs/cgroup")]


class Files:
    """An image whose only file is /etc/group."""

    def __init__(self, groups: bytes | None, *, is_readable: bool = True) -> None:
        self._groups = groups
        self._is_readable = is_readable

    def resolve(self, path: str) -> str | None:
        return path if path == "/etc/group" and self._groups is not None else None

    def read(self, path: str) -> bytes | None:
        return self._groups if self.resolve(path) and self._is_readable else None


def _groups(files: Files, *targets: str) -> tuple[int, ...]:
    account = Account(61001, 61001, (4, 61001, 61050))
    return groups_to_add(account, read_facts(files, "amd64", []), [Mount("/x", target) for target in targets])


@pytest.mark.parametrize("content", [None, b"", b"root:x:0:\nstaff:x:50:a1,b2\n+::\n_x9:x:9:\n"])
def test_a_container_has_its_asker_s_groups_where_numbers_are_numbers(content: bytes | None) -> None:
    assert _groups(Files(content)) == (4, 61050)
    assert _groups(Files(content), "/data", "/home/x", "/etcetera") == (4, 61050)
    for target in ("/etc", "//etc/", "/etc/group", "/data/../etc/passwd"):
        assert _groups(Files(content), target) == ()


@pytest.mark.parametrize(
    "line",
    [
        b"61050:x:42:",
        b" 61050:x:42:",
        b"61050",
        b"\x0b61050:x:42:",
        b"\xc2\xa061050:x:42:",
        b"+61050:x:42:",
        b"4:x:0:\r",
    ],
)
def test_an_image_whose_groups_have_numbers_for_names_gives_none(line: bytes) -> None:
    assert _groups(Files(b"root:x:0:\n" + line + b"\nstaff:x:50:\n")) == ()
    assert _groups(Files(b"root:x:0:\n", is_readable=False)) == ()


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), max_size=5))
def test_each_place_joined_to_its_volume_is_the_target_of_another(parts: list[list[str]]) -> None:
    targets = list(dict.fromkeys("/" + "/".join(part) for part in parts))
    assert {f"{targets[number]}/{path}" for number, path in _places(*targets)} == {
        target for target in targets if any(target.startswith(f"{other}/") for other in targets)
    }


def _confined(image: dict[str, Any], **configuration: Any) -> dict[str, Any]:
    made = {"WorkingDir": "", "HostConfig": {"Mounts": []}, **configuration}
    return confined(made, _ALICE, (), {"Config": image})


def test_without_a_working_directory_a_container_starts_as_its_image_says() -> None:
    for directory in ("", "/", "//", "/."):
        made = _confined({"WorkingDir": directory, "Entrypoint": ["/x"]}, Cmd=["a"])
        assert (made["WorkingDir"], made["Cmd"], "Entrypoint" in made) == ("/", ["a"], False)


@pytest.mark.parametrize(
    ("image", "asked", "runs"),
    [
        ({"Entrypoint": ["/x", "y"], "Cmd": ["z"]}, {}, ["/x", "y", "z"]),
        ({"Entrypoint": ["/x"], "Cmd": ["z"]}, {"Cmd": ["a"]}, ["/x", "a"]),
        ({"Entrypoint": None, "Cmd": None}, {"Cmd": ["a"]}, ["a"]),
        ({"Entrypoint": ["/x"], "Cmd": ["z"]}, {"Entrypoint": ["/.pgpu/p"], "Cmd": []}, ["/.pgpu/p"]),
    ],
)
def test_the_user_enters_the_working_directory_and_runs_what_the_engine_would(
    image: dict[str, Any], asked: dict[str, Any], runs: list[str]
) -> None:
    for own, wanted in (
        ({"WorkingDir": "/of-the-image"}, ""),
        ({}, "/of-the-image"),
        ({"WorkingDir": "/no"}, "//of-the-image/."),
    ):
        made = _confined({**image, **own}, WorkingDir=wanted, **asked)
        assert made["Entrypoint"] == ["/.pgpu/pgpu-enter", "/of-the-image"]
        assert (made["Cmd"], made["WorkingDir"]) == (runs, "/")
