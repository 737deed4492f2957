"""What the ledger promises: durable before acknowledged, whole or not at all, and one clear line when it cannot."""

import os
import random
import resource
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pgpu.errors import JobNotFoundError, LedgerError, RequestError
from pgpu.ledger import Entry, Ledger
from pgpu.ledger.connection import explained
from pgpu.ledger.schema import MIGRATIONS, VERSION
from pgpu.model import (
    ContainerHolder,
    Gpu,
    Job,
    JobSpec,
    JobState,
    Lease,
    Mount,
    ProcessHolder,
    Request,
    Slice,
)

STORM = Path(__file__).with_name("ledger_storm.py")
OLD = Path(__file__).with_name("ledger_version_1.sql")
NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    made = Ledger(path)
    yield made
    made.close()


def waiting(job_id: str = "0123456789ab", **words: object) -> Entry:
    spec = JobSpec(("true",), "process", **words)  # type: ignore[arg-type]
    return Entry(Job(job_id, spec, Request(5, 2), JobState.WAITING, 1.0))


def add(ledger: Ledger, entry: Entry) -> Entry:
    with ledger.decision() as decision:
        return decision.add(entry, ())


def full_entry() -> Entry:
    spec = JobSpec(
        command=("a", "b\udcff", "ü"),
        runtime="docker",
        image="img",
        environment=(("A", "1"),),
        volumes=(Mount("/a", "/b", "ro"), Mount("v", "/c")),
        working_directory="/w",
        user="1:2",
        name="n",
        wants_tty=True,
        wants_stdin=True,
        remove=False,
        wait_for_memory_seconds=2.5,
    )
    lease = Lease("0123456789ab", (Slice("GPU-1", 5), Slice("GPU-0", 6)), 3.0, "shim", is_advisory=True)
    job = Job(
        id="0123456789ab",
        spec=spec,
        request=Request(5, 2),
        state=JobState.EXITED,
        created_at_seconds=1.5,
        started_at_seconds=2.5,
        finished_at_seconds=3.5,
        exit_code=7,
        reason="r",
        error="e",
        wait_timed_out=True,
        peak_bytes=9,
        warning="w",
        lease=lease,
        holder=ContainerHolder("c" * 64, "unix:///x"),
        gpu_model="rtx-3090x2",
    )
    return Entry(job, 0, 9.5, ProcessHolder(1, 2, "b"), 4.5, 10.0, 8.5)


def test_everything_of_a_job_comes_back_as_it_was(ledger: Ledger, path: Path) -> None:
    entry = full_entry()
    bare = replace(entry, job=replace(entry.job, lease=None), lease_released_at_seconds=None)
    with ledger.decision() as decision:
        entry = replace(entry, sequence=decision.add(bare, ()).sequence)
        decision.put(entry)
    another = Ledger(path)
    assert another.entry(entry.job.id) == entry
    another.close()


def test_the_queue_keeps_the_order_of_arrival(ledger: Ledger) -> None:
    for number in range(20):
        add(ledger, waiting(f"{997 * number % 101:012x}"))
    order = [entry.job.id for entry in ledger.entries(include_final=False)]
    assert order == [f"{997 * number % 101:012x}" for number in range(20)]


def test_an_entry_is_live_until_it_is_final_and_its_memory_is_free(ledger: Ledger) -> None:
    entry = add(ledger, waiting())
    lease = Lease(entry.job.id, (Slice("GPU-0", 5),), 1.0)
    ended = replace(entry, job=replace(entry.job, state=JobState.EXITED, lease=lease))
    with ledger.decision() as decision:
        decision.put(ended)
        assert [found.job.id for found in decision.live()] == [entry.job.id]
        decision.put(replace(ended, lease_released_at_seconds=2.0))
        assert decision.live() == []
    assert ledger.entries(include_final=False) == []
    assert len(ledger.entries(include_final=True)) == 1


def test_a_decision_that_fails_changes_nothing(ledger: Ledger) -> None:
    entry = add(ledger, waiting())

    def fail() -> None:
        with ledger.decision() as decision:
            decision.put(replace(entry, job=replace(entry.job, state=JobState.RUNNING)))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert ledger.job(entry.job.id).state is JobState.WAITING


def test_decisions_of_many_threads_never_lose_one_another(ledger: Ledger) -> None:
    entry = add(ledger, waiting())

    def count() -> None:
        for _ in range(25):
            with ledger.decision() as decision:
                found = decision.entry(entry.job.id)
                decision.put(replace(found, job=replace(found.job, peak_bytes=(found.job.peak_bytes or 0) + 1)))

    threads = [threading.Thread(target=count) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.job(entry.job.id).peak_bytes == 200


def test_a_name_belongs_to_one_unfinished_job(ledger: Ledger) -> None:
    first = add(ledger, waiting("a" * 12, name="one"))
    with pytest.raises(RequestError, match=first.job.id):
        add(ledger, waiting("b" * 12, name="one"))
    with ledger.decision() as decision:
        decision.put(replace(first, job=replace(first.job, state=JobState.EXITED)))
    second = add(ledger, waiting("b" * 12, name="one"))
    assert ledger.find("one").job.id == second.job.id


def test_a_job_is_found_by_a_beginning_that_only_one_has(ledger: Ledger) -> None:
    for job_id in ("aab000000000", "aac000000000"):
        add(ledger, waiting(job_id))
    assert ledger.find("aab").job.id == "aab000000000"
    for wrong in ("aa", "b", "", "%", "aab_"):
        with pytest.raises(JobNotFoundError):
            ledger.find(wrong)


def test_only_the_newest_of_the_dead_are_remembered(ledger: Ledger) -> None:
    entries = [add(ledger, waiting(f"{number:012x}")) for number in range(6)]
    with ledger.decision() as decision:
        for entry in entries[1:]:
            decision.put(replace(entry, job=replace(entry.job, state=JobState.EXITED)))
        assert decision.forget_oldest(2) == [entry.job.id for entry in entries[1:4]]
    assert [entry.sequence for entry in ledger.entries(include_final=True)] == [1, 5, 6]


def test_facts_are_kept(ledger: Ledger, path: Path) -> None:
    assert ledger.facts.get("k") is None
    ledger.facts.put("k", "1")
    ledger.facts.put("k", "2")
    another = Ledger(path)
    assert another.facts.get("k") == "2"
    another.close()


def test_gpus_that_were_seen_are_kept(ledger: Ledger, path: Path) -> None:
    with ledger.decision() as decision:
        decision.see([Gpu("GPU-0", "N", 0, 5, "1", is_simulated=False)], 1.0)
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT uuid, memory_bytes FROM gpus").fetchall() == [("GPU-0", 5)]
    connection.close()


def test_the_ledger_is_closed_to_other_users(ledger: Ledger, path: Path) -> None:
    add(ledger, waiting())
    assert path.parent.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in path.parent.iterdir())


def test_it_is_written_through_to_the_disk_in_a_write_ahead_log(ledger: Ledger) -> None:
    with ledger._connections.reading() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_threads_that_come_later_do_not_let_other_processes_take_the_journal_away(ledger: Ledger, path: Path) -> None:
    """Closing a descriptor of the database drops this process's locks on it: so none is ever opened beside SQLite."""
    ledger.facts.get("key")
    later = threading.Thread(target=ledger.facts.get, args=("key",))
    later.start()
    later.join()
    code = (
        "import sys; from pathlib import Path; from pgpu.ledger import Ledger;"
        "ledger = Ledger(Path(sys.argv[1])); ledger.facts.put('key', 'value'); ledger.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert path.with_name(f"{path.name}-wal").exists()
    assert ledger.facts.get("key") == "value"


def test_a_ledger_of_an_older_version_is_brought_forward_with_its_jobs(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.executescript(OLD.read_text())
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
    connection.close()
    ledger = Ledger(path)
    (running, waiting) = ledger.entries(include_final=False)
    assert (running.job.id, running.job.state, running.job.peak_bytes) == ("aaaaaaaaaaaa", JobState.RUNNING, None)
    assert running.job.lease == Lease("aaaaaaaaaaaa", (Slice("GPU-0", 1 << 30),), 2.0, "shim")
    assert (waiting.job.spec.name, waiting.wait_deadline_seconds) == ("queued", 99.0)
    add(ledger, full_waiting())
    ledger.close()


def full_waiting() -> Entry:
    return waiting("c" * 12, name="new")


def test_the_oldest_tables_are_those_of_the_fixture() -> None:
    """A released migration is never changed: the fixture was written by the program that released it."""
    fixture, first = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    fixture.executescript(OLD.read_text())
    first.executescript(MIGRATIONS[0])
    query = "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"
    assert first.execute(query).fetchall() == fixture.execute(query).fetchall()
    fixture.close()
    first.close()


def test_a_ledger_of_a_newer_version_is_refused_untouched(ledger: Ledger, path: Path) -> None:
    add(ledger, waiting())
    ledger.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    connection.close()
    with pytest.raises(LedgerError, match="newer pgpu") as refusal:
        Ledger(path).entries(include_final=True)
    assert refusal.value.hint is not None


def test_a_failed_migration_leaves_the_old_version(path: Path) -> None:
    path.parent.mkdir()
    with sqlite3.connect(path) as connection:
        connection.executescript(OLD.read_text())
        connection.execute("ALTER TABLE jobs ADD COLUMN warning TEXT")
    connection.close()
    with pytest.raises(LedgerError):
        Ledger(path).entries(include_final=True)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 1
        assert "peak_bytes" not in str(connection.execute("SELECT sql FROM sqlite_schema").fetchall())
    connection.close()


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
    mine = explained(error, Path("/x/ledger.db"))
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
def test_a_file_that_is_no_ledger_is_refused_and_left_as_it_is(path: Path, garbage: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(garbage)
    with pytest.raises(LedgerError) as refusal:
        Ledger(path).entries(include_final=True)
    assert refusal.value.hint is not None
    assert path.read_bytes() == garbage


def test_a_ledger_with_a_damaged_page_is_refused(ledger: Ledger, path: Path) -> None:
    for number in range(50):
        add(ledger, waiting(f"{number:012x}"))
    ledger.close()
    data = bytearray(path.read_bytes())
    for page in range(4096, len(data), 4096):
        data[page : page + 200] = random.Random(page).randbytes(200)
    path.write_bytes(data)
    with pytest.raises(LedgerError) as refusal:
        Ledger(path).entries(include_final=True)
    assert refusal.value.hint is not None
    assert "\n" not in str(refusal.value)


def test_a_state_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="cannot be opened") as refusal:
        Ledger(tmp_path / "file" / "ledger.db").entries(include_final=True)
    assert refusal.value.hint is not None


def test_a_writer_that_holds_it_for_ever_is_named(ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add(ledger, waiting())
    monkeypatch.setattr("pgpu.ledger.connection.BUSY_TIMEOUT_SECONDS", 0.05)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="locked") as refusal:
        add(ledger, waiting("b" * 12))
    assert refusal.value.hint == "another process holds it: look for a stopped pgpu process"
    assert len(ledger.entries(include_final=True)) == 1
    blocker.close()
    add(ledger, waiting("b" * 12))


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


def test_a_full_disk_is_one_clear_line_and_what_was_acknowledged_stays(ledger: Ledger, path: Path) -> None:
    add(ledger, waiting())
    ledger.close()
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPT, str(path)],
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


def test_kills_at_random_points_lose_nothing_acknowledged_and_leave_nothing_half_done(
    ledger: Ledger, path: Path
) -> None:
    add(ledger, waiting())
    chance = random.Random(7)
    acknowledged: set[str] = set()
    for round_number in range(15):
        storms = [
            subprocess.Popen([sys.executable, str(STORM), str(path), f"{round_number}-{side}"], stdout=subprocess.PIPE)
            for side in range(2)
        ]
        for storm in storms:
            assert storm.stdout is not None
            for _ in range(chance.randint(1, 25)):
                acknowledged.add(storm.stdout.readline().decode().strip())
            storm.kill()
            rest = storm.stdout.read().decode().splitlines(keepends=True)
            acknowledged.update(line.strip() for line in rest if line.endswith("\n"))
            storm.wait()
            storm.stdout.close()
    found = {entry.job.id: entry for entry in ledger.entries(include_final=True)}
    assert acknowledged <= set(found)
    for job_id, entry in found.items():
        assert job_id == "0123456789ab" or (entry.job.lease is not None and len(entry.job.lease.slices) == 2)
    with ledger._connections.reading() as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
