"""Docker Compose with services on the runtime `pgpu`: what fits runs together, and what waits says so."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.docker.compose_project import Project
from tests.system.docker.oci_place import OciPlace, docker, opened_oci_place

pytestmark = pytest.mark.docker

Eventually = Callable[[Callable[[], Any]], Any]


@pytest.fixture(scope="module")
def place(images: str) -> Iterator[OciPlace]:
    if shutil.which("docker-compose") is None:
        pytest.skip("docker-compose is not installed")
    with opened_oci_place(images) as made:
        yield made


@pytest.fixture
def project(place: OciPlace, tmp_path: Path, eventually: Eventually) -> Iterator[Project]:
    made = Project(place, tmp_path)
    yield made
    down = made.compose("down", "--timeout", "0")
    assert down.returncode == 0, down.stderr
    eventually(place.is_empty)


def _sleeper(memory: str, **words: Any) -> dict[str, Any]:
    return {"command": ["sleep", "600"], "environment": {"PGPU_MEMORY": memory}, **words}


def test_two_services_run_side_by_side_in_their_slices(project: Project, eventually: Eventually) -> None:
    project.write(train=_sleeper("8GiB"), serve=_sleeper("4GiB", depends_on=["train"]))
    up = project.compose("up", "--detach")
    assert up.returncode == 0, up.stderr
    eventually(lambda: project.states() == {"train": "running", "serve": "running"})
    probe = project.compose("exec", "-T", "serve", "/.pgpu/pgpu-probe", "allocate", str(4 << 30))
    assert probe.stdout.splitlines()[-1] == "allocate 2"


def test_a_service_that_does_not_fit_beside_the_one_it_depends_on_says_so_and_starts_later(
    project: Project, eventually: Eventually
) -> None:
    project.write(first=_sleeper("20GiB"), second=_sleeper("20GiB", depends_on=["first"]))
    assert project.compose("up", "--detach").returncode == 0
    eventually(lambda: project.states() == {"first": "running", "second": "waiting"})
    eventually(lambda: "waits for 20 GiB on one GPU" in project.compose("logs", "second").stdout)
    assert project.compose("stop", "--timeout", "0", "first").returncode == 0
    eventually(lambda: project.states()["second"] == "running")


def test_a_service_that_is_to_be_healthy_and_waits_fails_its_dependants_instead_of_hanging(
    project: Project, eventually: Eventually
) -> None:
    can_allocate = "/.pgpu/pgpu-probe allocate 1000000 | grep -qx 'allocate 0'"
    check = {"test": ["CMD-SHELL", can_allocate], "interval": "200ms", "retries": 3}
    project.write(
        holder=_sleeper("20GiB"),
        model=_sleeper("20GiB", depends_on={"holder": {"condition": "service_started"}}, healthcheck=check),
        client=_sleeper("1GiB", depends_on={"model": {"condition": "service_healthy"}}),
    )
    assert project.compose("up", "--detach", "holder").returncode == 0
    eventually(lambda: project.states().get("holder") == "running")
    up = project.compose("up", "--detach", "client")
    assert up.returncode != 0
    assert "unhealthy" in up.stderr
    assert "waits for 20 GiB" in project.compose("logs", "model").stdout


def test_two_services_that_wait_for_memory_are_in_the_queue_and_start_in_their_order_once_it_is_free(
    project: Project, eventually: Eventually
) -> None:
    holder = project.place.detach("holder", "20GiB", "sleep", "600")
    eventually(lambda: project.place.job(holder)["state"] == "running")
    project.write(first=_sleeper("10GiB"), second=_sleeper("12GiB", depends_on=["first"]))
    up = project.compose("up", "--detach")
    assert up.returncode == 0, up.stderr
    eventually(lambda: project.states() == {"first": "waiting", "second": "waiting"})
    queue = json.loads(project.place.pgpu("queue", "--json").stdout)["queue"]
    assert [(row["position"], row["job"]["name"].split("_")[1]) for row in queue] == [(1, "first"), (2, "second")]
    assert all(row["job"]["reason"] for row in queue), queue
    for name, amount in (("first", "10 GiB"), ("second", "12 GiB")):
        eventually(lambda name=name, amount=amount: f"waits for {amount}" in project.compose("logs", name).stdout)  # type: ignore[misc]
    docker("rm", "--force", holder)
    eventually(lambda: project.states() == {"first": "running", "second": "running"})


def test_services_that_can_never_run_together_and_need_each_other_say_so_and_can_be_ended(
    project: Project, tmp_path: Path, eventually: Eventually
) -> None:
    """The first holds all memory until the second is up, which waits for that memory: no order of starts can help."""
    needs = "until [ -e /shared/second ]; do sleep 0.1; done"
    shared = [f"{tmp_path}:/shared"]
    project.write(
        first=_sleeper("20GiB", volumes=shared) | {"command": ["sh", "-c", needs]},
        second=_sleeper("20GiB", volumes=shared, depends_on=["first"]) | {"command": ["touch", "/shared/second"]},
    )
    assert project.compose("up", "--detach").returncode == 0
    eventually(lambda: project.states() == {"first": "running", "second": "waiting"})
    shown = project.place.pgpu("queue").stdout
    assert "_second_" in shown, shown
    assert "20 GiB" in shown, shown
    eventually(lambda: "waits for 20 GiB on one GPU" in project.compose("logs", "second").stdout)
    (second,) = [job for job in project.place.jobs() if "_second_" in job["name"] and job["state"] == "waiting"]
    assert project.place.pgpu("cancel", second["name"]).returncode == 0
    assert docker("wait", second["name"]).stdout == "130\n"
    assert project.states() == {"first": "running", "second": "cancelled"}
