"""What SQLite or the disk refuses becomes one clear line, and nothing acknowledged is lost by it."""

import gc
import os
import random
import resource
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.ledger_entries import add, waiting
from tests.waiting import DEADLINE_SECONDS

from pgpu.errors import LedgerError
from pgpu.ledger import Ledger
from pgpu.ledger.sqlite_connections import explain_error

NOBODY = 65534


REPAIR = """
import fcntl, os, sys, threading
journal = os.open(sys.argv[1], os.O_RDWR)
for lock in (120, 122):  # WAL_WRITE_LOCK and WAL_RECOVER_LOCK
    fcntl.lockf(journal, fcntl.LOCK_EX, 1, lock)
os.pwrite(journal, bytes(96), 0)
print("repairing", flush=True)
threading.Event().wait(0.3)
"""
"""What SQLite does after a writer died in the middle of the journal's index, but slowly."""


def codes() -> list[str]:
    """Every primary and extended result code that SQLite's binding names, except the ones that mean success."""
    success = {"SQLITE_OK", "SQLITE_ROW", "SQLITE_DONE"}
    errors = [name for name in dir(sqlite3) if name.startswith("SQLITE_") and name not in success]
    primary = "BUSY CANTOPEN CONSTRAINT CORRUPT ERROR FULL INTERNAL INTERRUPT IOERR LOCKED MISMATCH MISUSE NOLFS NOMEM"
    primary += " NOTADB PERM PROTOCOL READONLY SCHEMA TOOBIG AUTH ABORT EMPTY FORMAT NOTFOUND RANGE"
    wanted = tuple(f"SQLITE_{name}" for name in primary.split())
    return [name for name in errors if name.startswith(wanted)]


@pytest.mark.parametrize("name", codes())
def test_every_error_of_sqlite_becomes_one_clear_line(name: str) -> None:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorname = name
    mine = explain_error(error, Path("/x/ledger.db"))
    assert str(mine) == "the ledger /x/ledger.db cannot be used: disk I/O error"
    if name.startswith(
        ("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CORRUPT", "SQLITE_BUSY", "SQLITE_CANTOPEN")
    ):
        assert mine.hint is not None


@pytest.mark.parametrize("kind", [*sqlite3.Error.__subclasses__(), *sqlite3.DatabaseError.__subclasses__()])
def test_every_class_of_sqlites_errors_becomes_ours_at_the_edge(ledger: Ledger, kind: type[sqlite3.Error]) -> None:
    def fail() -> None:
        with ledger.decision():
            raise kind("the reason")

    with pytest.raises(LedgerError, match="the reason"):
        fail()


@pytest.mark.parametrize("garbage", [b"this is not a database at all, only text" * 100, b"\0" * 8192])
def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_is(ledger_path: Path, garbage: bytes) -> None:
    ledger_path.parent.mkdir()
    ledger_path.write_bytes(garbage)
    with pytest.raises(LedgerError) as refusal:
        Ledger(ledger_path).entries(include_final=True)
    assert refusal.value.hint is not None
    assert ledger_path.read_bytes() == garbage


def test_a_ledger_with_a_damaged_page_is_refused(ledger: Ledger, ledger_path: Path) -> None:
    for number in range(50):
        add(ledger, waiting(f"{number:012x}"))
    ledger.close()
    data = bytearray(ledger_path.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 200] = random.Random(page).randbytes(200)
    ledger_path.write_bytes(data)
    with pytest.raises(LedgerError) as refusal:
        Ledger(ledger_path).entries(include_final=True)
    assert refusal.value.hint is not None
    assert "\n" not in str(refusal.value)


def test_a_state_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be opened") as refusal:
        Ledger(tmp_path / "file" / "ledger.db").entries(include_final=True)
    assert refusal.value.hint is not None


def test_a_writer_that_holds_it_for_ever_is_named(ledger_path: Path) -> None:
    ledger = Ledger(ledger_path, busy_timeout_seconds=0.05)
    add(ledger, waiting())
    blocker = sqlite3.connect(ledger_path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked") as refusal:
        add(ledger, waiting("b" * 12))
    assert refusal.value.hint == "another process holds it: look for a stopped pgpu process"
    assert len(ledger.entries(include_final=True)) == 1
    blocker.close()
    add(ledger, waiting("b" * 12))
    ledger.close()


ATTEMPT = """
import os, sys; from pathlib import Path
from pgpu.errors import LedgerError; from pgpu.ledger import Entry, Ledger
from pgpu.model import Job, JobSpec, JobState, Request
ledger = Ledger(Path(sys.argv[1]))
if len(sys.argv) > 2: os.setuid(int(sys.argv[2]))
try:
    for number in range(2000):
        with ledger.decision() as decision:
            job = Job(f"x{number}", JobSpec(("true",), "process"), Request(1), JobState.WAITING, 0.0)
            decision.add(Entry(job), (("A", "y" * 5000),))
        print(number, flush=True)
except LedgerError as exc:
    print(f"refused: {exc} ({exc.hint})")
"""


def test_a_full_disk_is_one_clear_line_and_what_was_acknowledged_stays(ledger: Ledger, ledger_path: Path) -> None:
    add(ledger, waiting())
    ledger.close()
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPT, str(ledger_path)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)),
    )
    *acknowledged, last = done.stdout.splitlines()
    assert last.startswith("refused: the ledger")
    assert "None" not in last
    assert len(ledger.entries(include_final=True)) == 1 + len(acknowledged)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_ledger_that_may_only_be_read_is_one_clear_line() -> None:
    directory = Path("/dev/shm") / f"pgpu-ledger-{os.getpid()}"
    directory.mkdir(mode=0o755)
    try:
        Ledger(directory / "ledger.db").close()
        done = subprocess.run(
            [sys.executable, "-c", ATTEMPT, str(directory / "ledger.db"), str(NOBODY)],
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.startswith("refused: the ledger")
        assert "choose another --state-dir" in done.stdout
    finally:
        for file in directory.iterdir():
            file.unlink()
        directory.rmdir()


def test_who_reads_while_another_repairs_the_journal_waits_for_it(ledger: Ledger, ledger_path: Path) -> None:
    ledger.facts.put("key", "value")
    index = ledger_path.with_name(f"{ledger_path.name}-shm")
    with subprocess.Popen([sys.executable, "-c", REPAIR, str(index)], stdout=subprocess.PIPE) as repair:
        assert repair.stdout is not None
        assert repair.stdout.readline() == b"repairing\n"
        assert ledger.facts.get("key") == "value"
        assert repair.wait() == 0


def test_a_ledger_that_was_moved_away_is_not_written_any_more(ledger: Ledger, ledger_path: Path) -> None:
    ledger.facts.put("key", "old")
    for part in list(ledger_path.parent.iterdir()):
        part.rename(part.with_name(f"moved-{part.name}"))
    assert ledger.facts.get("key") is None
    ledger.facts.put("key", "new")
    other = Ledger(ledger_path)
    assert other.facts.get("key") == "new"
    other.close()


def test_a_ledger_that_came_back_is_used_again(ledger: Ledger, ledger_path: Path) -> None:
    ledger.facts.put("key", "old")
    for part in list(ledger_path.parent.iterdir()):
        part.rename(part.with_name(f"moved-{part.name}"))
    ledger_path.write_bytes(b"no database at all" * 100)
    with pytest.raises(LedgerError):
        ledger.facts.get("key")
    for part in list(ledger_path.parent.glob("moved-*")):
        part.rename(part.with_name(part.name.removeprefix("moved-")))
    assert ledger.facts.get("key") == "old"


def descriptors() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


def test_threads_that_ended_leave_no_descriptors_behind(ledger: Ledger) -> None:
    ledger.facts.put("key", "value")

    def burst() -> int:
        together = threading.Barrier(30)

        def ask() -> None:
            with ledger.view():
                together.wait(DEADLINE_SECONDS)

        threads = [threading.Thread(target=ask) for _ in range(together.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_SECONDS)
        gc.collect()  # what earlier tests left is not counted
        return len(descriptors())

    first = burst()
    assert [burst() for _ in range(2)] == [first, first]
    assert ledger.facts.get("key") == "value"
    before = len(descriptors())
    ledger.close()
    assert len(descriptors()) <= before - 4


def test_a_ledger_that_is_closed_amid_a_view_keeps_nothing_open(ledger: Ledger, ledger_path: Path) -> None:
    with ledger.view() as view:
        ledger.close()
        view.live()
    assert ledger_path.resolve() not in [entry.resolve() for entry in descriptors()]
