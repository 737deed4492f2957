"""The agent of the queue is the only process of pgpu beside containers of `docker run --runtime=pgpu`; a new one takes them over."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.system.docker.oci_place import OciPlace, docker, inspected, opened_oci_place
from tests.system.storm_victims import agent, children
from tests.waiting import until

from pgpu.host.process_identity import is_alive, read_status
from pgpu.model import ProcessHolder

pytestmark = pytest.mark.docker

Eventually = Callable[[Callable[[], Any]], Any]

PROBE = ("/.pgpu/pgpu-probe", "allocate")


@pytest.fixture
def place(images: str, eventually: Eventually) -> Iterator[OciPlace]:
    with opened_oci_place(images) as made:
        yield made
        left = docker("ps", "--all", "--quiet", "--filter", f"name={made.runtime}-").stdout.split()
        if left:
            docker("rm", "--force", *left)
        eventually(made.is_empty)


def replaced_agent(place: OciPlace) -> None:
    """Kill the agent, and wait until its guard has started another one."""
    old = kill_agent(place)
    until(lambda: (found := agent(place.path / "run")) is not None and found != old and is_alive(found))


def kill_agent(place: OciPlace) -> ProcessHolder:
    old = agent(place.path / "run")
    assert old is not None
    os.kill(old.pid, signal.SIGKILL)
    until(lambda: not is_alive(old))
    return old


def words_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended
        return b""


def test_a_waiting_container_gets_its_memory_from_the_next_agent(place: OciPlace, eventually: Eventually) -> None:
    first = place.detach("first", "20GiB", "sleep", "600")
    eventually(lambda: place.job(first)["state"] == "running")
    second = place.detach("second", "20GiB", *PROBE, "1000000")
    eventually(lambda: "waits for 20 GiB on one GPU" in docker("logs", second).stderr)
    replaced_agent(place)
    eventually(lambda: docker("logs", second).stderr.count("waits for 20 GiB on one GPU") > 1)
    assert place.job(second)["state"] == "waiting"
    docker("rm", "--force", first)
    assert docker("wait", second).stdout == "0\n"
    assert docker("logs", second).stdout.splitlines()[-1] == "allocate 0"


def test_a_container_that_was_removed_without_an_agent_takes_its_request_back(
    place: OciPlace, eventually: Eventually
) -> None:
    first = place.detach("keeps", "20GiB", "sleep", "600")
    eventually(lambda: place.job(first)["state"] == "running")
    waiting = place.detach("leaves", "20GiB", "sleep", "600")
    removed = place.detach("removed", "20GiB", "sleep", "600")
    eventually(lambda: place.job(waiting)["state"] == place.job(removed)["state"] == "waiting")
    kill_agent(place)
    docker("rm", "--force", removed)
    eventually(lambda: place.job(removed)["state"] == "cancelled")
    assert place.job(waiting)["state"] == "waiting"
    docker("rm", "--force", waiting)
    eventually(lambda: place.job(waiting)["state"] == "cancelled")


def test_a_container_that_is_created_without_an_agent_waits_for_the_next_one(
    place: OciPlace, eventually: Eventually
) -> None:
    holder = place.detach("holder", "20GiB", "sleep", "600")
    eventually(lambda: place.job(holder)["state"] == "running")
    kill_agent(place)  # its guard has the lock, and is starting another
    done = place.run("--rm", "-e", "PGPU_MEMORY=2GiB", command=(*PROBE, "1000000"))
    assert done.stdout.splitlines()[-1] == "allocate 0"


def test_a_running_container_keeps_its_lease_under_the_next_agent_until_it_ends(
    place: OciPlace, eventually: Eventually
) -> None:
    name = place.detach("runs", "20GiB", "sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.05; done")
    eventually(lambda: place.job(name)["state"] == "running")
    old = agent(place.path / "run")
    replaced_agent(place)
    beside = place.detach("beside", "20GiB", "true")
    eventually(lambda: "waits for 20 GiB on one GPU" in docker("logs", beside).stderr)
    assert agent(place.path / "run") != old
    assert place.job(name)["state"] == "running"
    docker("kill", "--signal", "TERM", name)
    assert docker("wait", beside).stdout == "0\n"
    eventually(lambda: place.job(name)["exit_code"] == 9)


def test_a_container_outlives_its_agent_and_the_guard_at_once(place: OciPlace, eventually: Eventually) -> None:
    first = place.detach("rich", "20GiB", "sleep", "600")
    eventually(lambda: place.job(first)["state"] == "running")
    second = place.detach("poor", "20GiB", "true")
    eventually(lambda: place.job(second)["state"] == "waiting")
    found = agent(place.path / "run")
    assert found is not None
    status = read_status(found.pid)
    assert status is not None
    os.kill(status.parent_pid, signal.SIGKILL)
    kill_agent(place)
    place.jobs()  # any command starts an agent for those that wait
    docker("rm", "--force", first)
    assert docker("wait", second).stdout == "0\n"


def test_no_container_has_a_process_of_pgpu(place: OciPlace, eventually: Eventually) -> None:
    running = [place.detach(f"runs-{number}", "10GiB", "sleep", "600") for number in range(2)]
    eventually(lambda: all(place.job(name)["state"] == "running" for name in running))
    waiting = [place.detach(f"waits-{number}", "10GiB", "sleep", "600") for number in range(10)]
    eventually(lambda: all("waits" in docker("logs", name).stderr for name in waiting))
    assert all(inspected(name, ".State.Status") == "running" for name in waiting)
    found = agent(place.path / "run")
    status = None if found is None else read_status(found.pid)
    assert found is not None
    assert status is not None
    # Every process of pgpu but a monitor, which is the agent's child, has a directory of the place on its command line.
    processes = {int(path.parent.name): words_of(path) for path in Path("/proc").glob("[0-9]*/cmdline")}
    ours = {pid for pid, words in processes.items() if f"{place.path}/".encode() in words}
    assert ours == {found.pid, status.parent_pid}
    assert not children(found.pid)
    # Nor a thread beside the main and the spare one, while nothing happens to it.
    until(lambda: len(os.listdir(f"/proc/{found.pid}/task")) == 2)  # noqa: PTH208 - names, not paths
    docker("rm", "--force", running[0], waiting[-1])
    eventually(lambda: place.job(waiting[0])["state"] == "running")
    eventually(lambda: place.job(waiting[-1])["state"] == "cancelled")
