"""What a container is asked to be, what is refused, and what an engine's words mean: all of it pure."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.enforcement.enforcer_selector import WithoutGpu
from pgpu.errors import (
    CommandNotExecutableError,
    CommandNotFoundError,
    EnforcementError,
    EngineAwayError,
    PgpuError,
    RequestError,
    RuntimeUnavailableError,
)
from pgpu.host.unix_http import HttpResponse
from pgpu.model import Delivery, Job, JobSpec, JobState, Lease, Mount, Request
from pgpu.runtimes.cgroups import leaf_cgroup
from pgpu.runtimes.docker.create_request import container_configuration, gpu_request
from pgpu.runtimes.docker.docker_engine import engine_url
from pgpu.runtimes.docker.engine_errors import FOREIGN_ERRORS, CallRefusedError, pgpu_error, start_error
from pgpu.runtimes.docker.image_facts import FactsCache, ImageFacts, architecture, newest_glibc
from pgpu.runtimes.docker.mounts import plan_mounts, preload_lines
from pgpu.runtimes.docker.refusals import (
    refuse_bad_image,
    refuse_bad_words,
    refuse_old_libc,
    refuse_unknown_user,
)
from pgpu.structs import replace

_UUID = "GPU-769c441c-b6d7-57d5-b7ec-19663ab63170"
_FACTS = ImageFacts(
    libc="glibc",
    glibc_version=(2, 31),
    preload_path="/etc/ld.so.preload",
    preload_lines=(),
    cuda_paths=("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/usr/lib64/libcuda.so.1"),
    nvml_paths=("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",),
    users=("root", "ada"),
    groups=("root", "staff"),
    has_numbered_groups=False,
)
_SIMULATED = Delivery(Path("/run/s/view"), Path("/run/s/usage"), (_UUID,), Path("/run/simulated"))
_REAL = replace(
    _SIMULATED,
    simulated_state_directory=None,
    driver_files=(("libcuda.so.1", Path("/usr/lib/x86_64-linux-gnu/libcuda.so.580.1")),),
)


def _spec(**fields: Any) -> JobSpec:
    return JobSpec(**{"command": ("true",), "runtime": "docker", "image": "some:image", **fields})


def _configuration(spec: JobSpec, delivery: Delivery, request: dict[str, Any]) -> dict[str, Any]:
    job = Job("0123456789ab", spec, Request(1 << 30), JobState.STARTING, 0.0)
    return container_configuration(job, delivery, plan_mounts(delivery, _FACTS), request)


def test_the_slice_is_read_only_and_only_its_usage_and_the_simulated_state_are_writable() -> None:
    writable = {mount.target for mount in plan_mounts(_SIMULATED, _FACTS) if not mount.is_read_only}
    assert writable == {"/.pgpu/usage", "/.pgpu/simgpu"}


def test_a_container_writes_its_own_gpu_time_and_reads_that_of_all() -> None:
    telling = replace(_SIMULATED, time_path=Path("/run/board/a1"), board_directory=Path("/run/board"))
    mounts = {mount.target: (str(mount.source), mount.is_read_only) for mount in plan_mounts(telling, _FACTS)}
    assert mounts["/.pgpu/time"] == ("/run/board/a1", False)
    assert mounts["/.pgpu/board"] == ("/run/board", True)


def test_one_file_is_preload_and_shadow_so_that_it_is_one_instance_in_a_process() -> None:
    shadows = [mount for mount in plan_mounts(_SIMULATED, _FACTS) if mount.target.endswith("libcuda.so.1")]
    assert {mount.source for mount in shadows} == {_SIMULATED.slice_directory / "libpgpu.so"}
    assert {mount.target for mount in shadows} == set(_FACTS.cuda_paths)


def test_the_real_driver_lies_behind_the_shims_and_no_simulated_state_is_mounted() -> None:
    targets = {mount.target: mount for mount in plan_mounts(_REAL, _FACTS)}
    assert targets["/.pgpu/driver/libcuda.so.1"].source == Path("/usr/lib/x86_64-linux-gnu/libcuda.so.580.1")
    assert "/.pgpu/simgpu" not in targets
    assert "/usr/lib64/libcuda.so" not in targets, "the toolkit makes this link itself"


def test_only_a_glibc_image_gets_a_preload_file() -> None:
    musl = replace(_FACTS, libc="musl", glibc_version=None)
    assert "/etc/ld.so.preload" in {mount.target for mount in plan_mounts(_SIMULATED, _FACTS)}
    assert "/etc/ld.so.preload" not in {mount.target for mount in plan_mounts(_SIMULATED, musl)}


@given(st.lists(st.text(alphabet="abc/. ", max_size=8), max_size=6))
def test_our_preloads_come_first_and_joining_twice_changes_nothing(lines: list[str]) -> None:
    ours = "/.pgpu/libpgpu.so\n/.pgpu/libpgpu-ml.so\n"
    joined = preload_lines(ours, tuple(lines))
    assert joined.startswith(ours)
    assert preload_lines(joined, tuple(lines)) == joined
    assert {line for line in lines if line.strip()} <= set(joined.splitlines())


def test_the_job_s_words_never_win_over_the_lease_s() -> None:
    delivery = replace(_SIMULATED, environment=(("PGPU_JOB_ID", "right"),))
    spec = _spec(environment=(("PGPU_JOB_ID", "wrong"), ("NVIDIA_VISIBLE_DEVICES", "all"), ("MINE", "1")))
    assert _configuration(spec, delivery, {})["Env"] == ["PGPU_JOB_ID=right", "NVIDIA_VISIBLE_DEVICES=void", "MINE=1"]


def test_a_real_gpu_comes_by_cdi_or_by_a_device_request_and_never_by_both() -> None:
    device = {"Source": "cdi", "ID": f"nvidia.com/gpu={_UUID}"}
    by_cdi = gpu_request({"DiscoveredDevices": [device]}, [_UUID])
    assert by_cdi == {"Driver": "cdi", "DeviceIDs": [f"nvidia.com/gpu={_UUID}"]}
    assert "NVIDIA_VISIBLE_DEVICES=void" in _configuration(_spec(), _REAL, by_cdi)["Env"]
    by_request = gpu_request({"DiscoveredDevices": []}, [_UUID])
    assert by_request["DeviceIDs"] == [_UUID]
    made = _configuration(_spec(), _REAL, by_request)
    assert f"NVIDIA_VISIBLE_DEVICES={_UUID}" in made["Env"]
    assert made["HostConfig"]["DeviceRequests"] == [by_request]
    assert "DeviceRequests" not in _configuration(_spec(), _SIMULATED, {})["HostConfig"]


def test_a_job_without_a_gpu_gets_nothing_of_pgpu_and_no_device_of_the_image_s_wish() -> None:
    job = Job("0123456789ab", _spec(), Request(0, 0), JobState.STARTING, 0.0, lease=Lease("0123456789ab", (), 0.0))
    created = container_configuration(job, WithoutGpu().prepare(job, ()), (), {})
    assert (created["HostConfig"]["Mounts"], "DeviceRequests" in created["HostConfig"]) == ([], False)
    assert created["Env"] == ["NVIDIA_VISIBLE_DEVICES=void", "CUDA_VISIBLE_DEVICES="]


def test_an_older_engine_s_cdi_specifications_are_read_from_its_folders(tmp_path: Path) -> None:
    specification = tmp_path / "nvidia.yaml"
    specification.write_text(f'cdiVersion: "0.5.0"\nkind: nvidia.com/gpu\ndevices:\n- name: "0"\n- name: {_UUID}\n')
    assert gpu_request({"CDISpecDirs": [str(tmp_path), "/no/such"]}, [_UUID])["Driver"] == "cdi"
    assert gpu_request({"CDISpecDirs": [str(tmp_path)]}, ["GPU-another"])["Driver"] == ""
    specification.write_text('{"kind": "nvidia.com/gpu", "devices": [{"name": "' + _UUID + '"}]}')
    assert gpu_request({"CDISpecDirs": [str(tmp_path)]}, [_UUID])["Driver"] == "cdi"


def test_a_program_of_the_slice_runs_without_the_image_s_entrypoint() -> None:
    made = _configuration(_spec(command=("/.pgpu/pgpu-probe", "allocate", "1")), _SIMULATED, {})
    assert (made["Entrypoint"], made["Cmd"]) == (["/.pgpu/pgpu-probe"], ["allocate", "1"])
    assert "Entrypoint" not in _configuration(_spec(), _SIMULATED, {})
    assert "Cmd" not in _configuration(_spec(command=()), _SIMULATED, {})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"image": None}, "needs an image"),
        ({"name": "-x"}, "not a container's name"),
        ({"name": "x"}, "not a container's name"),
        ({"working_directory": "here"}, "not an absolute path"),
        ({"environment": (("A=B", "1"),)}, "not a variable's name"),
        ({"environment": (("", "1"),)}, "not a variable's name"),
        ({"volumes": (Mount("", "/data"),)}, "names nothing"),
        ({"volumes": (Mount("/x", "data"),)}, "absolute path"),
        ({"volumes": (Mount("/x", "/"),)}, "absolute path"),
        ({"volumes": (Mount("/x", "/.pgpu/limit"),)}, "where pgpu puts the slice"),
        ({"volumes": (Mount("/x", "/a/../.pgpu"),)}, "where pgpu puts the slice"),
        ({"volumes": (Mount("/x", "//.pgpu/limit"),)}, "where pgpu puts the slice"),
        ({"volumes": (Mount("/x", "//"),)}, "absolute path"),
        ({"volumes": (Mount("/x", "/etc/ld.so.preload"),)}, "where pgpu puts the slice"),
        ({"volumes": (Mount("/x", "/a"), Mount("/y", "/a/"))}, "the same place"),
        ({"volumes": (Mount("/x", "/a", "ro,upwards"),)}, "unknown option 'upwards'"),
        ({"volumes": (Mount("/x", "/usr/lib64/libcuda.so.1"),)}, "the driver's library"),
        ({"volumes": (Mount("/x", "/opt/libnvidia-ml.so.1"),)}, "the driver's library"),
        ({"volumes": (Mount("some/where", "/a"),)}, "no valid name"),
        ({"volumes": (Mount("bad name!", "/a"),)}, "no valid name"),
        ({"volumes": (Mount("x", "/a"),)}, "no valid name"),
    ],
)
def test_words_that_cannot_be_meant_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        refuse_bad_words(_spec(**fields))


@pytest.mark.parametrize("options", ["", "ro", "rw,z", "Z", "ro,rslave", "nocopy"])
def test_docker_s_own_volume_options_are_let_through(options: str) -> None:
    refuse_bad_words(_spec(volumes=(Mount("name", "/data", options),)))


def test_an_image_of_another_machine_or_without_a_command_is_refused() -> None:
    with pytest.raises(RequestError, match="is for s390x") as caught:
        refuse_bad_image(_spec(), {"Architecture": "s390x"})
    assert caught.value.hint is not None
    with pytest.raises(RequestError, match="no command of its own"):
        refuse_bad_image(_spec(command=()), {"Config": {"Cmd": None}})
    refuse_bad_image(_spec(command=()), {"Config": {"Entrypoint": ["/x"]}})


@pytest.mark.parametrize("user", [None, "root", "ada:staff", "ada", "7", "7:9", ":staff", "root:12", str(2**31 - 1)])
def test_users_that_the_image_has_and_numbers_are_let_through(user: str | None) -> None:
    refuse_unknown_user(_spec(user=user), {"Config": {"User": ""}}, _FACTS)


@pytest.mark.parametrize(
    ("user", "own", "says"),
    [
        ("bob", "", "knows no user 'bob'"),
        ("ada:crew", "", "knows no group 'crew'"),
        ("4294967296", "", "too large"),
        ("-1", "", "knows no user '-1'"),
        (None, "bob", "knows no user 'bob'"),
    ],
)
def test_users_that_the_engine_would_not_find_are_refused(user: str | None, own: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        refuse_unknown_user(_spec(user=user), {"Config": {"User": own}}, _FACTS)


def test_an_image_older_than_the_shim_s_libc_is_refused_and_musl_is_let_through() -> None:
    refuse_old_libc(_spec(), _FACTS, (2, 31))
    refuse_old_libc(_spec(), replace(_FACTS, libc="musl", glibc_version=None), (2, 34))
    refuse_old_libc(_spec(), replace(_FACTS, libc=None, glibc_version=None), (2, 34))
    with pytest.raises(RequestError, match=r"has glibc 2.31, and this build of pgpu needs 2.34") as caught:
        refuse_old_libc(_spec(), _FACTS, (2, 34))
    assert caught.value.hint is not None
    with pytest.raises(RequestError, match="cannot be read"):
        refuse_old_libc(_spec(), replace(_FACTS, glibc_version=None), (2, 34))


def test_a_library_s_versions_are_compared_as_numbers() -> None:
    names = b"\x7fELF" + b"\0" * 14 + b"\x3e\0" + b"\0GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_2.9\0GLIBC_PRIVATE\0"
    assert newest_glibc(names) == (2, 17)
    assert architecture(names) == "amd64"
    assert newest_glibc(b"not a library") is None
    assert architecture(b"not a library") is None


def test_facts_survive_the_cache_and_a_damaged_or_newer_one_is_forgotten(tmp_path: Path) -> None:
    cache = FactsCache(tmp_path / "images")
    cache.store("sha256:abc", _FACTS)
    assert cache.load("sha256:abc") == _FACTS
    assert cache.load("sha256:def") is None
    for damage in ("", "{", "[]", '{"format": 999}', '{"format": 1}', '{"format": 1, "odd": 2}'):
        (tmp_path / "images" / "abc.json").write_text(damage)
        assert cache.load("sha256:abc") is None


def test_the_engine_is_looked_for_where_docker_looks(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert engine_url({**home, "DOCKER_HOST": "unix:///a", "CONTAINER_HOST": "unix:///b"}) == "unix:///a"
    assert engine_url({**home, "CONTAINER_HOST": "unix:///b"}) == "unix:///b"
    with pytest.raises(RuntimeUnavailableError, match="not a socket of this machine"):
        engine_url({**home, "DOCKER_HOST": "tcp://10.0.0.1:2376"})


def test_the_chosen_docker_context_is_followed(tmp_path: Path) -> None:
    folder = tmp_path / ".docker" / "contexts" / "meta" / "39d3c1a8d0ab4d68a5e09a5b9a9c6f3e"
    folder.mkdir(parents=True)
    (tmp_path / ".docker" / "config.json").write_text('{"currentContext": "lab"}')
    with pytest.raises(RuntimeUnavailableError, match="'lab' names no engine"):
        engine_url({"HOME": str(tmp_path)})

    folder.rename(folder.with_name(hashlib.sha256(b"lab").hexdigest()))
    meta = folder.with_name(hashlib.sha256(b"lab").hexdigest()) / "meta.json"
    meta.write_text('{"Name": "lab", "Endpoints": {"docker": {"Host": "unix:///run/lab.sock"}}}')
    assert engine_url({"HOME": str(tmp_path)}) == "unix:///run/lab.sock"


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ('OCI runtime create failed: exec: "foo": executable file not found in $PATH: unknown', CommandNotFoundError),
        ('exec: "/no": stat /no: no such file or directory: unknown', CommandNotFoundError),
        ("crun: executable file `foo` not found in $PATH: No such file or directory", CommandNotFoundError),
        ('exec: "/etc/passwd": permission denied: unknown', CommandNotExecutableError),
        ('exec: "/etc": is a directory: unknown', CommandNotExecutableError),
        ("error mounting /x to rootfs: no such file or directory", RuntimeUnavailableError),
        ("could not select device driver with capabilities: [[gpu]]", RuntimeUnavailableError),
    ],
)
def test_why_a_container_did_not_start_is_told_apart_as_docker_run_does(message: str, kind: type[PgpuError]) -> None:
    assert type(start_error(message)) is kind


def test_every_error_of_a_call_has_one_of_ours() -> None:
    for error in (OSError(2, "x"), TimeoutError("timed out"), ValueError("x"), KeyError("x"), TypeError("x")):
        assert isinstance(error, FOREIGN_ERRORS)
        assert type(pgpu_error(error, "trying")) is EngineAwayError
    refused = [(400, "why", RequestError), (409, "why", RequestError), (500, "why", RuntimeUnavailableError)]
    refused += [(404, "No such image: x", RequestError), (404, "No such container: x", RuntimeUnavailableError)]
    refused += [(400, "OCI runtime error", RuntimeUnavailableError)]
    for status, message, wanted in refused:
        refusal = CallRefusedError(HttpResponse(status, b"", json.dumps({"message": f"{message}\nnot"}).encode()))
        assert str(refusal) == f"{message} not"
        assert isinstance(refusal, FOREIGN_ERRORS)
        assert type(pgpu_error(refusal, "trying")) is wanted


def test_an_engine_s_message_is_one_line_whatever_it_answers() -> None:
    assert str(CallRefusedError(HttpResponse(500, b"", b""))) == "status 500"
    assert str(CallRefusedError(HttpResponse(500, b"", b"plain\ntext\n"))) == "plain text"
    assert str(CallRefusedError(HttpResponse(500, b"", b'["no message"]'))) == '["no message"]'


@pytest.mark.parametrize(
    ("lines", "group"),
    [
        ("0::/system.slice/docker-1.scope\n", "/sys/fs/cgroup/system.slice/docker-1.scope"),
        ("4:memory:/docker/1\n1:cpu,cpuacct:/docker/1\n0::/docker/1\n", "/sys/fs/cgroup/memory/docker/1"),
    ],
)
def test_a_container_s_own_control_group_is_found_in_both_hierarchies(tmp_path: Path, lines: str, group: str) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(lines)
    assert leaf_cgroup(7, tmp_path) == Path(group)
    with pytest.raises(EnforcementError):
        leaf_cgroup(8, tmp_path)
