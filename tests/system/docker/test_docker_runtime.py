"""`docker run --runtime=pgpu -e PGPU_MEMORY=…` on a real engine: what its users do, and what must not go wrong."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.docker.oci_place import OciPlace, docker, inspected, opened_oci_place
from tests.system.storm_victims import agent
from tests.waiting import until

pytestmark = pytest.mark.docker

Eventually = Callable[[Callable[[], Any]], Any]

PROBE = ("/.pgpu/pgpu-probe", "allocate")
GIB = 1 << 30


@pytest.fixture(scope="module")
def place(images: str) -> Iterator[OciPlace]:
    with opened_oci_place(images) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left(place: OciPlace, eventually: Eventually) -> Iterator[None]:
    yield
    left = docker("ps", "--all", "--quiet", "--filter", f"name={place.runtime}-").stdout.split()
    if left:
        docker("rm", "--force", *left)
    eventually(place.is_empty)


def test_a_container_gets_a_slice_and_no_more(place: OciPlace) -> None:
    ok = place.run("--rm", "-e", "PGPU_MEMORY=2GiB", command=(*PROBE, str(GIB)))
    too_much = place.run("--rm", "-e", "PGPU_MEMORY=2GiB", command=(*PROBE, str(2 * GIB)))
    assert ok.stdout.splitlines()[-1] == "allocate 0"
    assert too_much.stdout.splitlines()[-1] == "allocate 2"


def test_an_ordinary_user_without_privileges_in_a_read_only_container_gets_one_too(place: OciPlace) -> None:
    words = ("--rm", "--read-only", "--user", "1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    done = place.run(*words, "-e", "PGPU_MEMORY=2GiB", command=(*PROBE, str(2 * GIB)))
    assert done.stdout.splitlines()[-1] == "allocate 2"


def test_the_job_is_listed_with_its_container_and_its_end(place: OciPlace) -> None:
    name = place.detach("seven", "2GiB", "sh", "-c", "exit 7")
    assert docker("wait", name).stdout.strip() == "7"
    # Docker and the job's supervisor notice the end independently of each other.
    until(lambda: place.job(name)["state"] == "exited")
    job = place.job(name)
    assert (job["runtime"], job["exit_code"]) == ("oci", 7)
    assert job["image"] == f"{place.images}:latest"
    assert job["is_simulated"]


def test_streams_and_exit_codes_are_those_of_docker_run(place: OciPlace) -> None:
    done = place.run(
        "--rm", "-e", "PGPU_MEMORY=1GiB", command=("sh", "-c", "echo out; echo err >&2; exit 3"), check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 3)


def test_a_command_that_is_not_there_ends_with_127_before_it_waits(place: OciPlace) -> None:
    done = place.run("--rm", "-e", "PGPU_MEMORY=1GiB", command=("nonesuch",), check=False)
    assert done.returncode == 127
    assert 'exec: "nonesuch"' in done.stderr


def test_without_a_request_runc_gets_the_container_as_it_is(place: OciPlace) -> None:
    before = len(place.jobs())
    done = place.run("--rm", command=("sh", "-c", "tr '\\0' ' ' </proc/1/cmdline; ls -d /.pgpu"), check=False)
    assert done.stdout.startswith("sh -c")
    assert "No such file" in done.stderr
    assert len(place.jobs()) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-e", "PGPU_MEMORY=4G"), "'4G' is ambiguous"),
        (("-e", "PGPU_MEMORY=lots"), "'lots' is not an amount of memory"),
        (("-e", "PGPU_MEMORY=1GiB", "-e", "PGPU_GPUS=0"), "is no number of GPUs"),
        (("-e", "PGPU_MEMORY=1GiB", "-v", "/tmp:/.pgpu"), "a volume lies where pgpu mounts the slice"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(place: OciPlace, words: tuple[str, ...], said: str) -> None:
    before = len(place.jobs())
    done = place.run("--rm", *words, command=("true",), check=False)
    assert done.returncode == 125
    assert said in done.stderr
    assert len(place.jobs()) == before


def test_what_can_never_fit_ends_with_125_and_says_so(place: OciPlace) -> None:
    done = place.run("--rm", "-e", "PGPU_MEMORY=200GiB", command=("true",), check=False)
    assert done.returncode == 125
    assert "200 GiB can never be granted" in done.stderr


def test_a_request_of_the_image_itself_asks_for_nothing(place: OciPlace, tmp_path: Path) -> None:
    tag = f"{place.images}:{place.runtime}"
    (tmp_path / "Dockerfile").write_text(f"FROM {place.images}:latest\nENV PGPU_MEMORY=3GiB\n")
    docker("build", "--quiet", "--tag", tag, str(tmp_path))
    try:
        before = len(place.jobs())
        done = place.run("--rm", image=place.runtime, command=("ls", "-d", "/.pgpu"), check=False)
        assert done.returncode != 0
        assert len(place.jobs()) == before
        place.run("--rm", "-e", "PGPU_MEMORY=1GiB", image=place.runtime, command=("ls", "/.pgpu/limit"))
        assert place.jobs()[-1]["request"]["memory_bytes"] == GIB
    finally:
        docker("rmi", "--force", tag)


def test_a_waiting_container_says_why_and_answers_its_engine(place: OciPlace, eventually: Eventually) -> None:
    first = place.detach("first", "20GiB", "sleep", "600")
    second = place.detach("second", "20GiB", "sleep", "600")
    eventually(lambda: "waits for 20 GiB on one GPU" in docker("logs", second).stderr)
    assert place.job(second)["state"] == "waiting"
    assert inspected(second, ".State.Status") == "running"
    assert second in docker("ps", "--format", "{{.Names}}").stdout
    assert docker("exec", second, "echo", "hello").stdout == "hello\n"
    docker("stop", "--time", "45", second)
    assert inspected(second, ".State.ExitCode") == "143", "it was killed after the engine's patience"
    eventually(lambda: place.job(second)["state"] == "cancelled")
    assert place.job(first)["state"] == "running"


def test_cuda_is_refused_to_whoever_comes_before_the_grant(place: OciPlace, eventually: Eventually) -> None:
    place.detach("holder", "20GiB", "sleep", "600")
    waiting = place.detach("early", "20GiB", "sleep", "600")
    eventually(lambda: place.job(waiting)["state"] == "waiting")
    done = docker("exec", waiting, *PROBE, "1000")
    assert done.stdout == "init 800\n"
    assert "CUDA is refused" in done.stderr


def test_a_waiting_container_starts_when_memory_is_free_as_the_same_user(
    place: OciPlace, eventually: Eventually
) -> None:
    first = place.detach("ahead", "20GiB", "sleep", "600")
    second = place.detach("behind", "20GiB", "sh", "-c", "id -u; id -g", words=("--user", "1234:56"))
    eventually(lambda: place.job(second)["state"] == "waiting")
    docker("rm", "--force", first)
    assert docker("wait", second).stdout == "0\n"
    assert docker("logs", second).stdout == "1234\n56\n"


def test_a_wait_has_an_end_where_its_user_set_one(place: OciPlace) -> None:
    place.detach("sitter", "20GiB", "sleep", "600")
    words = ("--rm", "-e", "PGPU_MEMORY=20GiB", "-e", "PGPU_WAIT_TIMEOUT=500ms")
    done = place.run(*words, command=("true",), check=False)
    assert done.returncode == 124
    assert "given up" in done.stderr


def test_a_removed_waiting_container_takes_its_request_back(place: OciPlace, eventually: Eventually) -> None:
    place.detach("keeps", "20GiB", "sleep", "600")
    waiting = place.detach("leaves", "20GiB", "sleep", "600")
    eventually(lambda: place.job(waiting)["state"] == "waiting")
    docker("rm", "--force", waiting)
    eventually(lambda: place.job(waiting)["state"] == "cancelled")


def test_a_restart_takes_a_new_lease(place: OciPlace, eventually: Eventually) -> None:
    name = place.detach("again", "2GiB", "sleep", "600")
    eventually(lambda: place.job(name)["state"] == "running")
    first = place.job(name)["id"]
    docker("restart", "--time", "0", name)
    eventually(lambda: place.jobs()[-1]["id"] != first and place.jobs()[-1]["state"] == "running")
    docker("exec", name, *PROBE, "1000000")


def test_an_exec_takes_no_lease_and_shares_its_containers_slice(place: OciPlace, eventually: Eventually) -> None:
    name = place.detach("shared", "2GiB", "sleep", "600")
    eventually(lambda: place.job(name)["state"] == "running")
    before = len(place.jobs())
    done = docker("exec", name, *PROBE, str(2 * GIB))
    assert done.stdout.splitlines()[-1] == "allocate 2"
    assert len(place.jobs()) == before


def test_pgpu_stop_resize_logs_and_top_work_on_it(place: OciPlace, eventually: Eventually) -> None:
    name = place.detach("seen", "2GiB", "sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.05; done")
    eventually(lambda: place.job(name)["state"] == "running")
    assert place.pgpu("resize", name, "--memory", "3GiB").returncode == 0
    assert docker("exec", name, *PROBE, str(2 * GIB)).stdout.splitlines()[-1] == "allocate 0"
    assert f"docker logs {name}" in eventually(lambda: place.pgpu("logs", name).stderr)
    assert place.pgpu("stop", name).returncode == 0
    assert inspected(name, ".State.ExitCode") == "9"
    assert place.job(name)["exit_code"] == 9


def test_all_such_containers_are_one_owners_with_one_quota(place: OciPlace, eventually: Eventually) -> None:
    assert place.pgpu("admin", "quota", "docker", "--memory", "3GiB").returncode == 0
    try:
        first = place.detach("within", "2GiB", "sleep", "600")
        eventually(lambda: place.job(first)["state"] == "running")
        second = place.detach("beyond", "2GiB", "sleep", "600")
        eventually(lambda: place.job(second)["state"] == "waiting")
        eventually(lambda: "waits" in docker("logs", second).stderr)
        docker("rm", "--force", first)
        eventually(lambda: place.job(second)["state"] == "running")
    finally:
        assert place.pgpu("admin", "quota", "docker", "--remove").returncode == 0


@pytest.mark.parametrize("who", ["container", "shim", "agent"])
def test_memory_comes_back_whoever_is_killed(place: OciPlace, eventually: Eventually, who: str) -> None:
    name = place.detach(f"killed-{who}", "20GiB", "sleep", "600")
    eventually(lambda: place.job(name)["state"] == "running")
    main = int(inspected(name, ".State.Pid"))
    victims = {"container": lambda: main, "shim": lambda: _parent(main), "agent": lambda: _agent(place)}
    os.kill(victims[who](), signal.SIGKILL)
    if who != "container":
        docker("rm", "--force", name)
    done = place.run("--rm", "-e", "PGPU_MEMORY=20GiB", command=(*PROBE, "1000000"))
    assert done.stdout.splitlines()[-1] == "allocate 0"


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _agent(place: OciPlace) -> int:
    found = agent(place.path / "run")
    assert found is not None
    return found.pid
