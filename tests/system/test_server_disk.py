"""A server whose disk fills up or whose ledger is damaged: it says so, what runs goes on, and nothing is lost."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.served import serving
from tests.system.conftest import opened_place
from tests.system.test_server import Served, checks, get

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")

Eventually = Callable[[Callable[[], Any]], Any]

TALKS = 'echo "$$" >>"$0"; while [ ! -e "$0.go" ]; do sleep 0.05; done; echo whole; exit 4'
"""A job that runs until it is let go of, and has something to say and an exit code then."""


@pytest.fixture
def small() -> Iterator[Path]:
    """A disk of 8 MiB."""
    path = Path(tempfile.mkdtemp(prefix="pgpu-small-", dir="/dev/shm"))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "small", str(path)], check=True)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)
    path.rmdir()


@pytest.fixture
def place(small: Path) -> Iterator[Served]:
    with opened_place() as made, serving(made.path / "run", state_dir=small / "state") as server:
        environment = {**made.environment, "PGPU_HOST": server.host, "PGPU_STATE_DIR": str(small / "state")}
        served = Served(made.path, environment, made.started)
        served.server = server
        yield served
        if server.process.poll() is not None:
            server.start()
        served.close()


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Leave no room on a disk, byte by byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    try:
        yield
    finally:
        ballast.unlink()


def started(place: Served, name: str, memory: str, eventually: Eventually) -> Path:
    """Start a job that talks at its end, and return the file in which it says that it began."""
    path = place.path / name
    place.detach(name, memory, ["sh", "-c", TALKS, str(path)])
    eventually(path.exists)
    return path


def let_go(path: Path) -> None:
    """Let a job of `started` end."""
    Path(f"{path}.go").touch()


def assert_one_clear_line(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 125, done
    assert len(done.stderr.splitlines()) == 2, done.stderr
    assert done.stderr.startswith("pgpu: "), done.stderr
    assert "pgpu: hint: " in done.stderr, done.stderr


def test_a_full_disk_is_said_and_ends_nothing_and_all_goes_on_once_there_is_room(
    place: Served, small: Path, eventually: Eventually
) -> None:
    running = started(place, "runs", "10GiB", eventually)
    ending = started(place, "ends", "2GiB", eventually)
    place.detach("waits", "20GiB", ["sh", "-c", 'echo "$$" >>"$0"', str(place.path / "waits")])
    with filled(small):
        eventually(lambda: get(place, "/readyz")[0] == 503)
        said = checks(place)["ledger"]["message"]
        assert "full" in said or "disk" in said, said
        refused = place.run("submit", "--name", "refused", "--memory", "1GiB", "--", "true")
        assert_one_clear_line(refused)
        assert "space" in refused.stderr, refused.stderr
        assert get(place, "/healthz")[0] == 200
        let_go(ending)  # its end cannot be written now
        eventually(lambda: get(place, "/readyz")[0] == 503)
        os.kill(int(running.read_text()), 0)
    eventually(lambda: get(place, "/readyz")[0] == 200)
    assert place.run("wait", "ends").stdout == "4\n"
    assert place.run("logs", "ends").stdout == "whole\n"
    assert place.job("runs")["state"] == "running"
    let_go(running)
    assert place.run("wait", "runs").stdout == "4\n"
    assert place.run("wait", "waits").stdout == "0\n"
    assert place.run("submit", "--name", "after", "--memory", "1GiB", "--", "true").returncode == 0
    assert place.run("wait", "after").stdout == "0\n"
    assert place.job("refused") is None
    assert all(len((place.path / name).read_text().split()) == 1 for name in ("runs", "ends", "waits"))


def test_a_server_killed_while_its_disk_is_full_says_why_it_cannot_come_back_and_comes_back(
    place: Served, small: Path, eventually: Eventually
) -> None:
    running = started(place, "runs", "2GiB", eventually)
    with filled(small):
        place.server.end(9)
        place.server.begin()
        eventually(lambda: place.server.process.poll() is not None or "listening at" in place.server.said())
        assert "Traceback" not in place.server.said()
        if place.server.process.poll() is None:
            assert get(place, "/readyz")[0] == 503
    if place.server.process.poll() is not None:
        place.server.start()
    eventually(lambda: get(place, "/readyz")[0] == 200)
    let_go(running)
    assert place.run("wait", "runs").stdout == "4\n"


def test_a_server_that_finds_a_damaged_ledger_says_so_and_what_to_do_and_works_once_that_was_done(
    place: Served, small: Path, eventually: Eventually
) -> None:
    place.server.end(9)
    ledger = small / "state" / "ledger.db"
    damaged = b"no database at all" * 100
    for part in ledger.parent.glob("ledger.db*"):
        part.unlink()
    ledger.write_bytes(damaged)
    place.server.start()
    eventually(lambda: "pgpu: not ready: the ledger" in place.server.said() and "move it away" in place.server.said())
    assert get(place, "/readyz")[0] == 503
    refused = place.run("run", "--memory", "1GiB", "--", "true")
    assert_one_clear_line(refused)
    assert "move it away" in refused.stderr
    assert ledger.read_bytes() == damaged
    ledger.rename(small / "damaged")
    eventually(lambda: "pgpu: ready again" in place.server.said() and get(place, "/readyz")[0] == 200)
    assert place.run("run", "--memory", "1GiB", "--", "true").returncode == 0
