"""The container engine goes away under a server with jobs, and comes back: nobody fails for it, and nothing starts twice."""

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.served import serving
from tests.system.conftest import opened_place
from tests.system.docker.own_engine import OwnEngine, started_engine
from tests.system.test_server import Served, checks, get

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a second Docker engine"),
]

Eventually = Callable[[Callable[[], Any]], Any]

TALKS = 'echo begin >>"$0"; while [ ! -e "$0.go" ]; do sleep 0.1; done; echo whole; exit 5'


@pytest.fixture
def engine(images: str) -> Iterator[OwnEngine]:
    with started_engine(f"{images}:tiny", **{"live-restore": True}) as own:
        yield own


@pytest.fixture
def place(engine: OwnEngine) -> Iterator[Served]:
    docker = {"DOCKER_HOST": engine.host}
    with (
        opened_place() as made,
        serving(made.path / "run", state_dir=made.path / "state", environment=docker) as server,
    ):
        served = Served(made.path, {**made.environment, **docker, "PGPU_HOST": server.host}, made.started)
        served.server = server
        yield served
        served.close()


def container(place: Served, image: str, name: str, memory: str, script: str) -> None:
    """Ask for a container with this place's files in /place."""
    words = ["--name", name, "--memory", memory, "--image", image, "--volume", f"{place.path}:/place"]
    done = place.run("submit", *words, "--", "sh", "-c", script, f"/place/{name}-says")
    assert done.returncode == 0, done.stderr


def supervisor_of(place: Served, name: str) -> int:
    """Return the process that looks after a job."""
    with sqlite3.connect(f"file:{place.path / 'state' / 'ledger.db'}?mode=ro", uri=True) as ledger:
        query = "SELECT json_extract(supervisor, '$.pid') FROM jobs WHERE name = ?"
        return int(ledger.execute(query, (name,)).fetchone()[0] or 0)


@pytest.mark.soak
def test_an_engine_that_is_away_for_a_while_fails_no_job(
    place: Served, engine: OwnEngine, images: str, eventually: Eventually
) -> None:
    image = f"{images}:tiny"
    container(place, image, "runs", "8GiB", TALKS)
    eventually((place.path / "runs-says").exists)
    place.detach("holds", "12GiB", ["sleep", "600"])
    container(place, image, "waits", "10GiB", 'echo begin >>"$0"; exit 0')
    container(place, image, "unwanted", "4GiB", 'echo begin >>"$0"')
    eventually(lambda: [place.job(name)["state"] for name in ("waits", "unwanted")] == ["waiting", "waiting"])
    eventually(lambda: checks(place)["docker"]["is_good"])

    engine.tell("stop")
    eventually(lambda: not checks(place)["docker"]["is_good"])
    assert "does not answer" in checks(place)["docker"]["message"]
    assert get(place, "/readyz")[0] == 200
    refused = place.run("run", "--memory", "1GiB", "--image", image, "--", "true")
    assert refused.returncode == 125
    assert "pgpu: the container engine does not answer" in refused.stderr
    assert place.run("run", "--memory", "1GiB", "--", "true").returncode == 0
    place.run("stop", "--time", "0", "holds")
    eventually(lambda: "does not answer" in (place.job("waits")["reason"] or ""))
    assert "starting: the container engine does not answer" in place.run("ps").stdout
    eventually(lambda: place.job("unwanted")["state"] == "starting")
    assert place.run("cancel", "unwanted").returncode == 0
    first = supervisor_of(place, "runs")
    os.kill(first, signal.SIGKILL)
    eventually(lambda: supervisor_of(place, "runs") not in {0, first})
    assert (place.job("runs")["state"], place.job("waits")["state"]) == ("running", "starting")

    engine.tell("start")
    assert place.run("wait", "waits").stdout == "0\n"
    assert place.job("runs")["state"] == "running"
    Path(place.path / "runs-says.go").touch()
    assert place.run("wait", "runs").stdout == "5\n"
    assert "whole" in place.run("logs", "runs").stdout
    assert place.job("unwanted")["state"] == "cancelled"
    assert not (place.path / "unwanted-says").exists()
    for name in ("runs", "waits"):
        assert (place.path / f"{name}-says").read_text() == "begin\n"
    eventually(lambda: checks(place)["docker"]["is_good"])
