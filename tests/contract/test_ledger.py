"""What the ledger promises: durable before acknowledged, and whole or not at all."""

import random
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.ledger_entries import add, waiting

from pgpu.errors import JobNotFoundError, RequestError
from pgpu.ledger import Entry, Ledger
from pgpu.model import (
    ContainerHolder,
    Gpu,
    Job,
    JobSpec,
    JobState,
    Lease,
    Mount,
    Objective,
    ProcessHolder,
    Request,
    SharingMode,
    SharingWish,
    Slice,
)
from pgpu.structs import replace

STORM = Path(__file__).with_name("ledger_storm.py")


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
    slices = (Slice("GPU-1", 5, 0.3), Slice("GPU-0", 6, resident_bytes=4))
    lease = Lease("0123456789ab", slices, 3.0, "shim", is_advisory=True, sharing=SharingMode.MPS)
    request = Request(
        5,
        2,
        0.3,
        is_strict=True,
        sharing=SharingWish.AUTO,
        oversubscribes=True,
        preempts=True,
        measures=True,
        priority=-7,
        objective=Objective.SOONEST,
        gpu_models=("A100", "H100"),
    )
    job = Job(
        id="0123456789ab",
        spec=spec,
        request=request,
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


def test_everything_of_a_job_comes_back_as_it_was(ledger: Ledger, ledger_path: Path) -> None:
    entry = full_entry()
    bare = replace(entry, job=replace(entry.job, lease=None), lease_released_at_seconds=None)
    with ledger.decision() as decision:
        entry = replace(entry, sequence=decision.add(bare, ()).sequence)
        decision.put(entry)
    another = Ledger(ledger_path)
    assert another.entry(entry.job.id) == entry
    another.close()


def test_those_who_wait_are_read_with_all_that_they_ask_for(ledger: Ledger) -> None:
    request = replace(full_entry().job.request, basis=None)
    entry = waiting()
    add(ledger, replace(entry, job=replace(entry.job, request=request)))
    with ledger.view() as view:
        assert [each.request for each in view.waiting(None)] == [request]


def test_the_queue_keeps_the_order_of_arrival(ledger: Ledger) -> None:
    for number in range(20):
        add(ledger, waiting(f"{997 * number % 101:012x}"))
    order = [entry.job.id for entry in ledger.entries(include_final=False)]
    assert order == [f"{997 * number % 101:012x}" for number in range(20)]


def test_those_of_several_jobs_that_wait_are_cancelled_in_one_step_and_their_environment_goes(ledger: Ledger) -> None:
    ids = [f"{number:012x}" for number in range(4)]
    with ledger.decision() as decision:
        for each in ids:
            entry = waiting(each)
            decision.add(replace(entry, job=replace(entry.job, warning="is started again")), (("A", "secret"),))
        started = decision.entry(ids[1])
        decision.put(replace(started, job=replace(started.job, state=JobState.RUNNING)))
        decision.cancel_waiting([*ids[:3], "no job"], 7.0)
    jobs = [entry.job for entry in ledger.entries_of(ids)]
    states = {job.id: (job.state, job.finished_at_seconds, job.warning is None) for job in jobs}
    ended, running = (JobState.CANCELLED, 7.0, True), (JobState.RUNNING, None, False)
    assert states == dict(zip(ids, (ended, running, ended, (JobState.WAITING, None, False)), strict=True))
    assert [ledger.inheritance(each)[0] for each in ids[:2]] == [(), (("A", "secret"),)]


def test_the_models_that_jobs_wait_for_are_each_found_once(ledger: Ledger) -> None:
    models = [None, "b", "a", "b", "c", None]
    for number, model in enumerate(models):
        entry = waiting(f"{number:012x}")
        add(ledger, replace(entry, job=replace(entry.job, gpu_model=model)))
        with ledger.view() as view:
            assert view.queues() == set(models[: number + 1])
    with ledger.decision() as decision:
        decision.cancel_waiting([f"{number:012x}" for number in (0, 2, 5)], 1.0)
        assert decision.queues() == {"b", "c"}


def test_several_jobs_are_read_in_the_order_asked_for(ledger: Ledger) -> None:
    for number in range(3):
        add(ledger, waiting(f"{number:012x}"))
    wanted = [f"{number:012x}" for number in (2, 7, 0)]
    assert [entry.job.id for entry in ledger.entries_of(wanted)] == [wanted[0], wanted[2]]


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


def test_the_asker_s_environment_is_kept_until_its_job_is_final_and_then_gone_from_the_disk(
    ledger: Ledger, ledger_path: Path
) -> None:
    entry = waiting()
    with ledger.decision() as decision:
        entry = decision.add(entry, tuple((f"TOKEN_{number}", "a-secret" * 100) for number in range(100)))
    assert len(ledger.inheritance(entry.job.id)[0]) == 100
    with ledger.decision() as decision:
        decision.put(replace(entry, job=replace(entry.job, state=JobState.EXITED)))
    assert ledger.inheritance(entry.job.id)[0] == ()
    ledger.close()
    assert b"a-secret" not in ledger_path.read_bytes()


def test_jobs_that_were_asked_for_together_share_an_environment_until_the_last_of_them_is_final(
    ledger: Ledger, ledger_path: Path
) -> None:
    environment = tuple((f"TOKEN_{number}", "a-secret" * 100) for number in range(100))
    with ledger.decision() as decision:
        first, second = (decision.add(waiting(letter * 12), environment) for letter in "ab")
    with ledger.decision() as decision:
        other = decision.add(waiting("c" * 12), (("A", "1"),))
        third = decision.add(waiting("d" * 12), tuple(environment))
    ledger.close()
    assert ledger_path.read_bytes().count(b"TOKEN_99") == 2, "once, and once in the index that finds it"
    for entry in (first, second, third):
        assert ledger.inheritance(entry.job.id)[0] == environment
        with ledger.decision() as decision:
            decision.put(replace(entry, job=replace(entry.job, state=JobState.CANCELLED)))
        assert ledger.inheritance(entry.job.id)[0] == ()
    assert ledger.inheritance(other.job.id)[0] == (("A", "1"),)
    ledger.close()
    assert b"a-secret" not in ledger_path.read_bytes()


def test_facts_are_kept(ledger: Ledger, ledger_path: Path) -> None:
    assert ledger.facts.get("k") is None
    ledger.facts.put("k", "1")
    ledger.facts.put("k", "2")
    another = Ledger(ledger_path)
    assert another.facts.get("k") == "2"
    another.close()


def test_facts_that_are_kept_for_so_long_are_forgotten_when_another_of_them_is_put(ledger: Ledger) -> None:
    ledger.facts.put("kind_of", "another's")
    for name in ("%", "2"):
        ledger.facts.put_for("kind/", name, name, 1000.0)
    assert [ledger.facts.get(key) for key in ("kind/%", "kind/2")] == ["%", "2"]
    ledger.facts.put_for("kind/", "3", "3", 0.0)
    assert [ledger.facts.get(key) for key in ("kind/%", "kind/2", "kind/3", "kind_of")] == [
        None,
        None,
        "3",
        "another's",
    ]


def test_gpus_that_were_seen_are_kept(ledger: Ledger, ledger_path: Path) -> None:
    with ledger.decision() as decision:
        decision.put_gpus([Gpu("GPU-0", "N", 0, 5, "1", is_simulated=False)], 1.0)
    with sqlite3.connect(ledger_path) as connection:
        assert connection.execute("SELECT uuid, memory_bytes FROM gpus").fetchall() == [("GPU-0", 5)]
    connection.close()


def test_the_ledger_is_closed_to_other_users(ledger: Ledger, ledger_path: Path) -> None:
    add(ledger, waiting())
    assert ledger_path.parent.stat().st_mode & 0o077 == 0
    assert all(file.stat().st_mode & 0o077 == 0 for file in ledger_path.parent.iterdir())


def test_it_is_written_through_to_the_disk_in_a_write_ahead_log(ledger: Ledger) -> None:
    with ledger._connections.reading() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2


def test_threads_that_come_later_do_not_let_other_processes_take_the_journal_away(
    ledger: Ledger, ledger_path: Path
) -> None:
    """Closing a descriptor of the database drops this process's locks on it: so none is ever opened beside SQLite."""
    ledger.facts.get("key")
    later = threading.Thread(target=ledger.facts.get, args=("key",))
    later.start()
    later.join()
    code = (
        "import sys; from pathlib import Path; from pgpu.ledger import Ledger;"
        "ledger = Ledger(Path(sys.argv[1])); ledger.facts.put('key', 'value'); ledger.close()"
    )
    subprocess.run([sys.executable, "-c", code, str(ledger_path)], check=True)
    assert ledger_path.with_name(f"{ledger_path.name}-wal").exists()
    assert ledger.facts.get("key") == "value"


def test_kills_at_random_points_lose_nothing_acknowledged_and_leave_nothing_half_done(
    ledger: Ledger, ledger_path: Path
) -> None:
    add(ledger, waiting())
    chance = random.Random(7)
    acknowledged: set[str] = set()
    for round_number in range(15):
        storms = [
            subprocess.Popen(
                [sys.executable, str(STORM), str(ledger_path), f"{round_number}-{side}"], stdout=subprocess.PIPE
            )
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


def owned(entry: Entry, owner_uid: int, **words: object) -> Entry:
    return replace(entry, job=replace(entry.job, owner_uid=owner_uid, **words))  # type: ignore[arg-type]


def test_one_users_many_jobs_push_no_job_of_another_out(ledger: Ledger) -> None:
    ended = [owned(waiting(f"{number:012x}"), 1 if number == 0 else 2, state=JobState.EXITED) for number in range(5)]
    for entry in ended:
        add(ledger, entry)
    with ledger.decision() as decision:
        assert decision.forget_oldest(2) == [entry.job.id for entry in ended[1:3]]


def test_two_users_have_jobs_of_one_name_and_each_finds_their_own(ledger: Ledger) -> None:
    mine = add(ledger, owned(waiting("aa0000000000", name="train"), 1))
    theirs = add(ledger, owned(waiting("aa0000000001", name="train"), 2))
    with pytest.raises(RequestError):
        add(ledger, owned(waiting("aa0000000002", name="train"), 1))
    for word in ("train", "aa"):
        assert ledger.find(word, 1).job.id == mine.job.id
        assert ledger.find(word, 2).job.id == theirs.job.id
    with pytest.raises(JobNotFoundError):
        ledger.find(theirs.job.id, 1)


def test_a_token_is_found_until_it_is_removed(ledger: Ledger) -> None:
    ledger.tokens.put("00000000", 7, "digest")
    found = ledger.tokens.get("00000000")
    assert found is not None
    assert (found.uid, found.digest, ledger.tokens.all()) == (7, "digest", [found])
    assert [ledger.tokens.remove("00000000"), ledger.tokens.remove("00000000")] == [True, False]
    assert ledger.tokens.get("00000000") is None


def test_a_gpu_is_closed_until_it_is_opened(ledger: Ledger) -> None:
    with ledger.decision() as decision:
        decision.close_gpu("GPU-1", 1.0)
        decision.close_gpu("GPU-1", 2.0)
        assert decision.closed_gpus() == {"GPU-1"}
        decision.open_gpu("GPU-1")
        assert decision.closed_gpus() == frozenset()
