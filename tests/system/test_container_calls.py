"""How the creation of a container reaches the agent of its queue, with the standard library alone, or starts one."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from socket import SOCK_STREAM
from threading import Thread
from typing import Any

import pytest
from tests.system.engine_worlds import World, world
from tests.waiting import until

from pgpu.app.oci.agent_call import hand_over
from pgpu.app.oci.runc_call import ContainerRefusedError
from pgpu.engine.agent.agents import AgentIdentity, try_lock
from pgpu.engine.settings import agent_paths
from pgpu.engine.unix_sockets import bind
from pgpu.host.process_identity import is_alive, myself
from pgpu.libraries import MONITOR, library_path
from pgpu.runtimes.container_record import RECORD

SLICE = "0123456789ab"


@pytest.fixture
def machine() -> Iterator[World]:
    with world() as made:
        made.engine.ledger.first_waiting("fake")  # makes the ledger
        yield made
        for record in made.engine.settings.runtime_directory.glob(f"slices/*/{RECORD}"):
            record.with_name("pid").unlink(missing_ok=True)
        until(lambda: not list(made.engine.settings.runtime_directory.glob(f"slices/*/{RECORD}")))


def facts(machine: World) -> dict[str, Any]:
    """Return what `pgpu.app.oci.installation` prepares."""
    settings, places = machine.engine.settings, agent_paths(machine.engine.settings, "fake")
    code = AgentIdentity.of_this_code(myself())
    script = Path(__file__).parents[1] / "fakes" / "agent.py"
    return {
        "lock": str(places.lock),
        "wake": str(places.wake_socket),
        "door": str(places.door_socket),
        "guard": str(library_path(MONITOR)),
        "spool": str(settings.spool),
        "command": [sys.executable, str(script), str(machine.root), "fake"],
        "log": str(settings.state_directory / "agent.log"),
        "version": code.version,
        "package": code.package,
    }


def laid_out(machine: World, name: str = SLICE, model: str = "fake") -> Path:
    """Make a slice with the record of a container whose first process is this test's."""
    home = machine.engine.settings.runtime_directory / "slices" / name
    home.mkdir(parents=True)
    (home / "pid").write_text(str(os.getpid()))
    record: dict[str, Any] = {
        "container_id": "c",
        "runc": ["runc"],
        "engine": "",
        "bundle": "/b",
        "pid_file": str(home / "pid"),
    }
    record |= {"creator": os.getpid(), "memory_bytes": 1, "gpu_count": 1, "wait_timeout_seconds": None}
    record |= {"has_timeout": False, "command": [], "user": "0:0", "image": "", "image_id": "", "name": ""}
    (home / RECORD).write_text(json.dumps({**record, "glibc": True, "config": "/c", "gpu_model": model}))
    return home


def attended_by(home: Path) -> int:
    until((home / "attended").exists)
    return int((home / "attended").read_text() or 0)


def test_the_first_container_starts_the_agent_and_the_next_one_finds_it(machine: World) -> None:
    first = laid_out(machine)
    hand_over(facts(machine), first.name)
    until(lambda: attended_by(first) != 0)
    second = laid_out(machine, "ba9876543210")
    hand_over(facts(machine), second.name)
    until(lambda: attended_by(second) != 0)
    assert attended_by(first) == attended_by(second) == machine.until_kept().pid


def test_the_next_agent_attends_the_containers_of_a_killed_one(machine: World) -> None:
    home, elsewhere = laid_out(machine), laid_out(machine, "ba9876543210", model="another")
    hand_over(facts(machine), home.name)
    until(lambda: attended_by(home) != 0)
    old = machine.kill_agent()
    until(lambda: attended_by(home) not in {0, old.pid})
    assert not (elsewhere / "attended").exists()
    (elsewhere / RECORD).unlink()


def test_containers_that_an_agent_finds_submit_their_requests_in_the_order_of_their_creation(machine: World) -> None:
    names = [f"{number * 7919 % 100:012x}" for number in range(16)]
    homes = [laid_out(machine, name) for name in names]
    hand_over(facts(machine), names[-1])
    until(lambda: all(attended_by(home) for home in homes))
    assert (machine.engine.settings.state_directory / "order").read_text().split() == names


@pytest.mark.parametrize("change", [{"package_time_ns": 0}, {"version": 0}])
def test_an_agent_of_an_upgraded_installation_is_replaced_and_its_successor_takes_all(
    machine: World, change: dict[str, int]
) -> None:
    first = laid_out(machine)
    hand_over(facts(machine), first.name)
    until(lambda: attended_by(first) != 0)
    old = machine.until_kept()
    lock = Path(facts(machine)["lock"])
    lock.write_text(json.dumps({**json.loads(lock.read_text()), **change}))
    second = laid_out(machine, "ba9876543210")
    hand_over(facts(machine), second.name)
    until(lambda: not is_alive(old))
    until(lambda: attended_by(first) == attended_by(second) != 0)
    assert attended_by(second) == machine.until_kept().pid != old.pid


def test_a_slice_without_a_record_is_refused(machine: World) -> None:
    home = laid_out(machine)
    hand_over(facts(machine), home.name)
    until(lambda: attended_by(home) != 0)
    with pytest.raises(ContainerRefusedError, match="cannot take another container"):
        hand_over(facts(machine), "ffffffffffff")


def test_an_agent_that_knows_no_containers_refuses_them(machine: World) -> None:
    lock = try_lock(machine.engine.settings, "fake")
    assert lock is not None
    with closing(bind(SOCK_STREAM, agent_paths(machine.engine.settings, "fake").door_socket)) as door:
        door.setblocking(True)
        door.listen()
        Thread(target=_close_each, args=(door,), daemon=True).start()
        with pytest.raises(ContainerRefusedError, match="takes no containers"):
            hand_over(facts(machine), SLICE)
        os.close(lock)


def test_a_guard_that_cannot_be_started_refuses_the_container(machine: World) -> None:
    with pytest.raises(ContainerRefusedError, match="can be started"):
        hand_over({**facts(machine), "guard": "/nonexistent"}, SLICE)
    assert try_lock(machine.engine.settings, "fake") is not None


def _close_each(door: Any) -> None:
    with suppress(OSError):
        while True:
            door.accept()[0].close()
