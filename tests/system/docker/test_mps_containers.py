"""Containers under MPS: clients of a daemon of which they see the pipe directory alone, as users that are known."""

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.system.conftest import Place
from tests.system.docker.oci_place import OciPlace, docker, opened_oci_place
from tests.system.test_auto_choice import LIGHT
from tests.system.test_auto_sharing import ledger_of, remember

from pgpu.model import SharingMode
from pgpu.structs import replace

pytestmark = pytest.mark.docker

HOLD = ("/.pgpu/pgpu-probe", "hold")


def test_a_container_is_a_client_and_sees_nothing_of_the_daemon_but_its_pipes(shared_place: Place, images: str) -> None:
    words = ("run", "--sharing", "mps", "--compute", "25%", "--memory", "1GiB", "--image", f"{images}:latest", "--")
    done = shared_place.run(*words, "sh", "-c", f"ls /.pgpu/mps; exec {' '.join(HOLD)}")
    assert done.returncode == 0, done.stderr
    assert "mps 1\n" in done.stdout
    assert "multiprocessors 20\n" in done.stdout
    assert {"control", "nvidia-cuda-mps-control.pid"} <= set(done.stdout.split())
    assert "control.log" not in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="another's daemon takes clients of other users from root alone")
def test_a_container_of_a_numbered_user_is_a_client(shared_place: Place, images: str) -> None:
    words = ("run", "--sharing", "mps", "--memory", "1GiB", "--user", "1000", "--image", f"{images}:latest", "--")
    done = shared_place.run(*words, *HOLD)
    assert done.returncode == 0, done.stderr
    assert "mps 1\n" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs images whose user is another")
def test_an_image_whose_user_is_another_says_which_and_starts_once_that_is_named(
    shared_place: Place, images: str
) -> None:
    words = ("run", "--sharing", "mps", "--memory", "1GiB", "--image", f"{images}:user")
    refused = shared_place.run(*words, "--", *HOLD)
    assert refused.returncode == 125
    assert "add --user 1000" in refused.stderr
    done = shared_place.run(*words, "--user", "1000", "--", *HOLD)
    assert "mps 1\n" in done.stdout, done.stderr


def test_a_user_that_only_the_image_knows_is_refused_before_anything_is_stored(
    shared_place: Place, images: str
) -> None:
    words = ("run", "--sharing", "mps", "--memory", "1GiB", "--user", "nobody", "--image", f"{images}:latest", "--")
    done = shared_place.run(*words, *HOLD)
    assert done.returncode == 125
    assert "in numbers" in done.stderr


@pytest.fixture(scope="module")
def oci_place(images: str) -> Iterator[OciPlace]:
    with opened_oci_place(images) as made:
        yield made


MPS = ("-e", "PGPU_MEMORY=1GiB", "-e", "PGPU_SHARING=mps")


def test_a_container_of_docker_run_is_a_client_and_so_is_what_docker_exec_starts(
    oci_place: OciPlace, eventually: Callable[[Callable[[], Any]], Any]
) -> None:
    """Its mounts were made before anybody knew of which daemon it would be a client."""
    name = oci_place.detach(
        "client", "1GiB", "sh", "-c", f"{' '.join(HOLD)}; sleep 600", words=(*MPS, "-e", "PGPU_COMPUTE=25%")
    )
    eventually(lambda: "multiprocessors" in docker("logs", name).stdout)
    told = docker("logs", name).stdout
    assert "mps 1\n" in told
    assert "multiprocessors 20\n" in told
    inside = docker("exec", name, "sh", "-c", f"ls /.pgpu/mps; {' '.join(HOLD)} < /dev/null").stdout
    assert "mps 1\n" in inside
    assert "control" in inside.split()
    assert "control.log" not in inside.split()
    assert oci_place.job(name)["lease"]["sharing"] == "mps"
    docker("rm", "--force", name)
    eventually(oci_place.is_empty)


def test_an_ordinary_user_of_a_read_only_container_is_a_client_too(oci_place: OciPlace) -> None:
    words = ("--rm", "--read-only", "--user", "1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    done = oci_place.run(*words, *MPS, command=HOLD)
    assert "mps 1\n" in done.stdout, done.stderr


def test_two_gpus_under_mps_are_refused_before_the_container_is_there(oci_place: OciPlace) -> None:
    done = oci_place.run("--rm", *MPS, "-e", "PGPU_GPUS=2", command=HOLD, check=False)
    assert done.returncode == 125
    assert "MPS is for containers on one GPU" in done.stderr


@pytest.mark.soak
def test_auto_takes_a_container_as_a_client_whose_profile_says_so(shared_place: Place, images: str) -> None:
    ledger = ledger_of(shared_place)

    def mode(image: str, name: str) -> tuple[SharingMode, str]:
        words = ("run", "--sharing", "auto", "--memory", "1GiB", "--name", name, "--image", f"{images}:{image}", "--")
        done = shared_place.run(*words, *HOLD)
        assert done.returncode == 0, done.stderr
        ended = next(entry.job for entry in ledger.entries(include_final=True) if entry.job.spec.name == name)
        assert ended.lease is not None
        return ended.lease.sharing, ended.signature

    for image, joined in (("latest", SharingMode.MPS), ("user", SharingMode.TIME_SLICE)):
        sharing, signature = mode(image, f"unknown-{image}")
        assert sharing is SharingMode.TIME_SLICE
        model = "simulated NVIDIA GeForce RTX 3090"
        remember(shared_place, replace(LIGHT, signature=signature, gpu_name=model, owner_uid=os.getuid()))
        assert mode(image, f"known-{image}")[0] is joined
