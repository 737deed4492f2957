"""The runtime `pgpu` on a machine with two GPUs: which one a container was granted is known after its creation."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.system.docker.oci_place import OciPlace, docker, opened_oci_place

pytestmark = pytest.mark.docker

Eventually = Callable[[Callable[[], Any]], Any]

PROBE = ("/.pgpu/pgpu-probe", "allocate", "1000000")


@pytest.fixture(scope="module")
def place(images: str) -> Iterator[OciPlace]:
    with opened_oci_place(images, "RTX 3090x2") as made:
        yield made


def _devices(name: str) -> str:
    found = docker("exec", name, "sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"')
    return found.stdout.strip()


def test_what_joins_a_container_joins_its_lease(place: OciPlace, eventually: Eventually) -> None:
    names = [place.detach(name, "20GiB", "sleep", "600") for name in ("one", "two")]
    eventually(lambda: [place.job(name)["state"] for name in names] == ["running", "running"])
    granted = [place.job(name)["lease"]["slices"][0]["gpu_uuid"] for name in names]
    assert granted[0] != granted[1]
    assert [_devices(name) for name in names] == granted
    assert [docker("exec", name, *PROBE).stdout.splitlines()[-1] for name in names] == ["allocate 0", "allocate 0"]
    docker("rm", "--force", *names)


def test_what_joins_may_still_choose_among_its_own(place: OciPlace, eventually: Eventually) -> None:
    name = place.detach("chooser", "1GiB", "sleep", "600", words=("-e", "PGPU_GPUS=2"))
    eventually(lambda: place.job(name)["state"] == "running")
    first, second = _devices(name).split(",")
    assert first != second
    done = docker("exec", "-e", f"CUDA_VISIBLE_DEVICES={second}", name, *PROBE)
    assert done.stdout.splitlines()[-1] == "allocate 0"
    docker("rm", "--force", name)


def test_two_slices_are_two_gpus_of_that_size(place: OciPlace) -> None:
    done = place.run("--rm", "-e", "PGPU_MEMORY=1GiB", "-e", "PGPU_GPUS=2", command=("env",))
    line = next(line for line in done.stdout.splitlines() if line.startswith("CUDA_VISIBLE_DEVICES="))
    assert line.count("GPU-") == 2
