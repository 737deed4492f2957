"""A request costs what it says: long specs are stored once, are in no list, and go; sizes are bounded; the ledger shrinks."""

import asyncio
import gc
import json
import logging
import os
import sqlite3
import struct
from contextlib import AsyncExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.contract.in_process import AsPeer, answer_of, asked, make_app, make_engine
from tests.ledger_entries import add, waiting

from pgpu.app.machine_checks import leftovers
from pgpu.app.settings import Settings
from pgpu.cli.output.job_tables import job_cells
from pgpu.engine.leases.recovery import recover
from pgpu.engine.submitter import Submitter
from pgpu.errors import CapacityError, LedgerError, RequestError
from pgpu.ledger import Ledger
from pgpu.ledger.decision import MOST_LONG_BYTES
from pgpu.ledger.schema import MIGRATIONS, VERSION
from pgpu.model import Array, Job, JobSpec, JobState, Submission
from pgpu.model import Request as Amount
from pgpu.model.finding import Result
from pgpu.model.validation import check_submission
from pgpu.server.peer_credentials import PeerCredentials
from pgpu.server.routes import REQUESTS_AT_ONCE
from pgpu.services import wire
from pgpu.services.job_answers import JOBS, ArrayElement, restore
from pgpu.services.messages import JobReport
from pgpu.structs import replace
from pgpu.units import GIB, MIB

LONG = JobSpec(("train", *["--option=1"] * 100), "process", environment=(("A", "x" * 100_000),), working_directory="/")
USER = 4242


def long_specs(path: Path) -> int:
    with closing(sqlite3.connect(path)) as ledger:
        return int(ledger.execute("SELECT count(*) FROM long_specs").fetchone()[0])


def elements(count: int, spec: JobSpec = LONG) -> Submission:
    return Submission(spec, Amount(GIB), array=Array(tuple(range(count))))


def test_a_long_spec_is_stored_once_for_an_array_and_is_in_no_list(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    jobs = engine.submit_all([elements(5, replace(LONG, name="train"))])
    assert [job.spec.name for job in jobs] == [f"train-{index}" for index in range(5)]
    assert long_specs(engine.ledger.path) == 1
    assert len(jobs[0].signature) < 1100
    with closing(sqlite3.connect(engine.ledger.path)) as ledger:
        assert ledger.execute("SELECT max(length(spec)) FROM jobs").fetchone()[0] < 2048
    listed = [entry.job.spec for entry in engine.ledger.entries(include_final=False)]
    for job, spec in zip(jobs, listed, strict=True):
        assert job.spec == spec
        assert spec.is_abridged
        assert (spec.environment, spec.command[:2]) == ((), ("train", "--option=1"))
        assert sum(map(len, spec.command)) <= 520
        assert engine.ledger.spec(job.id) == replace(LONG, name=job.spec.name)


def test_what_a_list_abridged_cannot_be_submitted(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    with pytest.raises(RequestError, match="the beginning of a command cannot be submitted"):
        engine.submit_all([Submission(LONG.abridged(), Amount(GIB))])


def test_a_long_spec_goes_with_the_last_job_that_has_it(ledger: Ledger, ledger_path: Path) -> None:
    with ledger.decision() as decision:
        for number in range(2):
            decision.add(replace(waiting(f"{number:012x}"), job=replace(waiting(f"{number:012x}").job, spec=LONG)), ())
    for number in range(2):
        assert long_specs(ledger_path) == 1
        with ledger.decision() as decision:
            decision.cancel_waiting([f"{number:012x}"], 2.0)
            decision.forget_oldest(0)
    assert long_specs(ledger_path) == 0


def test_of_ended_jobs_the_long_parts_of_the_newest_are_kept(ledger: Ledger, ledger_path: Path) -> None:
    spec = replace(LONG, environment=(("A", "x" * (MOST_LONG_BYTES // 2 - 10_000)),))
    for number in range(3):
        own = replace(waiting(f"{number:012x}").job, spec=replace(spec, environment=tuple(spec.environment)))
        own = replace(own, spec=replace(own.spec, command=(f"program{number}",)))
        with ledger.decision() as decision:
            decision.add(replace(waiting(), job=own), ())
            decision.cancel_waiting([own.id], 2.0)
            decision.forget_oldest(1000)
    assert long_specs(ledger_path) == 2
    assert [ledger.spec(f"{number:012x}").is_abridged for number in range(3)] == [True, False, False]
    assert ledger.spec("0" * 12).command == ("program0",)


def test_the_answer_to_an_array_has_the_ids_of_its_elements(tmp_path: Path) -> None:
    root = AsPeer(make_app(tmp_path), PeerCredentials(1, 0, 0, frozenset()))
    body = wire.encode({"submissions": [elements(50, replace(LONG, name="train"))]})
    status, _, text = asked(root, "POST", "/v1/jobs", body)
    assert status == 201
    first, *others = json.loads(text)
    assert first["spec"]["name"] == "train-0"
    assert [sorted(each) for each in others] == [["array_index", "id"]] * 49
    jobs = list(restore(wire.decode(JOBS, json.loads(text))))
    _, _, listed = asked(root, "GET", "/v1/jobs")
    stored = [replace(wire.decode(Job, row["job"]), reason=None) for row in json.loads(listed)]
    assert jobs == stored
    _, _, one = asked(root, "GET", f"/v1/jobs/{jobs[3].id}")
    assert wire.decode(Job, json.loads(one)["job"]).spec == replace(LONG, name="train-3")
    cancel = json.dumps({"jobs": [job.id for job in jobs], "grace_seconds": 0}).encode()
    status, _, text = asked(root, "POST", "/v1/jobs/cancel", cancel)
    answer = wire.decode(JOBS, json.loads(text))
    assert sum(isinstance(each, ArrayElement) for each in answer) == 49
    assert {job.state for job in restore(answer)} == {JobState.CANCELLED}


@pytest.mark.parametrize(("target", "count"), [("/v1/jobs", 101), ("/v1/jobs/dry-run", 1)])
def test_a_user_with_many_requests_that_cost_much_waits_behind_own_ones_alone(
    tmp_path: Path, target: str, count: int
) -> None:
    app = make_app(tmp_path)
    root, other = (AsPeer(app, PeerCredentials(1, uid, uid, frozenset())) for uid in (0, USER))
    body = wire.encode({"submissions": [elements(count)]})

    async def submit() -> None:
        async with app.state.many_jobs_of[0]:  # as while another request of root is handled
            waiting = asyncio.create_task(answer_of(root, "POST", target, body))
            status, _, _ = await answer_of(other, "POST", target, body)
            assert status == 403  # handled: the user is in no group of submitters
            assert not waiting.done()
        assert (await waiting)[0] in {200, 201}

    asyncio.run(submit())


@pytest.mark.parametrize("target", ["cancel", "hold", "release"])
def test_a_change_of_many_jobs_waits_until_another_long_request_is_over(tmp_path: Path, target: str) -> None:
    app = make_app(tmp_path)
    root = AsPeer(app, PeerCredentials(1, 0, 0, frozenset()))
    one, many = (
        json.dumps({"jobs": [f"{number:012x}" for number in range(count)], "grace_seconds": 0}).encode()
        for count in (1, 101)
    )

    async def change() -> None:
        async with app.state.many_jobs:  # as while another long request is handled
            waiting = asyncio.create_task(answer_of(root, "POST", f"/v1/jobs/{target}", many))
            assert (await answer_of(root, "POST", f"/v1/jobs/{target}", one))[0] == 404  # handled: no such job
            assert not waiting.done()
        assert (await waiting)[0] == 404

    asyncio.run(change())


def test_a_user_with_many_requests_at_once_keeps_no_other_user_waiting(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    user, other, root = (AsPeer(app, PeerCredentials(1, uid, uid, frozenset())) for uid in (USER, USER + 1, 0))

    async def ask() -> None:
        async with AsyncExitStack() as stack:
            for _ in range(REQUESTS_AT_ONCE):  # as while so many requests of the user are handled
                await stack.enter_async_context(app.state.turns_of[USER])
            waiting = [asyncio.create_task(answer_of(user, "GET", target)) for target in ("/v1/jobs", "/v1/queue")]
            for each in (other, root):
                assert [(await answer_of(each, "GET", target))[0] for target in ("/v1/jobs", "/v1/queue")] == [200, 200]
            assert not any(each.done() for each in waiting)
        assert [(await each)[0] for each in waiting] == [200, 200]

    asyncio.run(ask())


def test_the_waiting_jobs_of_others_that_ask_for_the_same_are_one_in_a_list(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    engine = app.state.engines.own
    user, root = (AsPeer(app, PeerCredentials(1, uid, uid, frozenset())) for uid in (USER, 0))
    engine.submit_all([elements(3)], Submitter(USER + 1, (), None))
    engine.submit_all([elements(2)], Submitter(USER, (), None))
    engine.submit_all([elements(4), replace(elements(5), request=Amount(2 * GIB))], Submitter(USER + 2, (), None))

    def listed(peer: AsPeer, target: str = "/v1/jobs") -> list[tuple[int, int, int]]:
        reports = json.loads(asked(peer, "GET", target)[2])
        return [
            (each["job"]["owner_uid"], each["job"]["request"]["memory_bytes"] // GIB, each["count"]) for each in reports
        ]

    assert listed(user) == [(-1, 1, 7), (USER, 1, 1), (USER, 1, 1), (-1, 2, 5)]
    assert len(listed(root)) == 14
    assert {count for _, _, count in listed(root)} == {1}
    _, headers, text = asked(user, "GET", "/v1/jobs?limit=3")
    following = headers["link"].partition(">")[0].lstrip("<")
    assert [each["count"] for each in json.loads(text)] == [7, 1, 1]
    assert listed(user, following) == [(-1, 2, 5)]
    reports = wire.decode(tuple[JobReport, ...], json.loads(text))
    assert job_cells(reports[0], 0.0, set(), is_uncut=True)["REASON"] == "7 of other users"


def test_a_request_that_would_take_too_much_of_the_ledger_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    engine = make_engine(tmp_path, most_waiting_bytes=MIB)
    assert len(engine.submit_all([elements(100)])) == 100
    before = engine.submit_all([elements(300, replace(LONG, environment=()))])
    for large in (
        elements(100, replace(LONG, notify="x" * 20_000)),
        replace(elements(300), after=(before[0].place.array_id or "",)),
    ):
        with pytest.raises(
            RequestError, match=r"this request would take .* of the ledger, and one may take 1 MiB"
        ) as refusal:
            engine.submit_all([large])
        assert "waiting_size" in (refusal.value.hint or "")
    assert len(engine.ledger.entries(include_final=False)) == 400


@pytest.mark.parametrize("models", [("A100",) * 17, ("A" * 129,)])
def test_a_request_names_so_many_gpu_models_and_no_more(models: tuple[str, ...]) -> None:
    with pytest.raises(RequestError, match="at most 16 GPU models, of up to 128 characters"):
        check_submission(Submission(JobSpec(("true",), "process"), Amount(GIB, gpu_models=models)))


@pytest.mark.parametrize("uid", [USER, 0])
def test_the_waiting_jobs_of_a_user_take_so_much_of_the_ledger_and_those_of_root_any_amount(
    tmp_path: Path, uid: int
) -> None:
    engine = make_engine(tmp_path, most_waiting_bytes=MIB)
    one, other = (
        Submission(replace(LONG, environment=tuple((name, "x" * 130_000) for name in names)), Amount(GIB))
        for names in ("ABC", "DEF")
    )
    engine.submit_all([one, other], Submitter(uid, (), None))
    variables = Submitter(uid, tuple((f"A{number}", "x" * 130_000) for number in range(3)), None)
    if uid == 0:
        assert engine.submit_all([one], variables)
        return
    with pytest.raises(
        CapacityError, match=f"^the waiting jobs of user {uid} would take more than 1 MiB of the ledger"
    ):
        engine.submit_all([replace(one, spec=JobSpec(("true",), "process"))], variables)
    assert engine.submit_all([one], Submitter(uid + 1, (), None))
    engine.ask_all_to_stop([entry.job.id for entry in engine.ledger.entries(include_final=False)], 0.0)
    assert engine.submit_all([one], Submitter(uid, (), None))


def test_a_user_reads_own_jobs_of_the_queue_with_their_positions_among_all(tmp_path: Path) -> None:
    engine = make_engine(tmp_path)
    one = Submission(JobSpec(("true",), "process", working_directory="/"), Amount(GIB))
    theirs = [engine.submit_all([one], Submitter(uid, (), None))[0].id for uid in (USER, USER + 1, USER)]
    everything = {each.job.id: each for each in engine.admissions.read_queue()}
    own = engine.admissions.read_queue(USER)
    assert {each.job.id for each in own} == {theirs[0], theirs[2]}
    assert own == sorted((everything[each] for each in (theirs[0], theirs[2])), key=lambda each: each.position or 0)


def test_the_ledger_gives_back_what_it_no_longer_needs(ledger: Ledger, ledger_path: Path) -> None:
    ledger.facts.put("large", "x" * (8 * MIB))
    ledger.facts.put("large", "")
    ledger.shrink()
    log = ledger_path.with_name(f"{ledger_path.name}-wal")
    assert ledger_path.stat().st_size < 2 * MIB
    assert log.stat().st_size == 0


def test_a_ledger_that_shrinks_keeps_one_idle_connection(ledger: Ledger) -> None:
    def count_connections() -> int:
        return sum(isinstance(each, sqlite3.Connection) for each in gc.get_objects())

    ledger.facts.put("one", "more")
    before = count_connections()
    with ledger.view(), ledger.view(), ledger.view():
        pass
    assert count_connections() == before + 2
    ledger.shrink()
    assert count_connections() == before


def test_a_ledger_of_the_version_before_shrinks_once_it_was_migrated(ledger_path: Path) -> None:
    ledger_path.parent.mkdir()
    with closing(sqlite3.connect(ledger_path, isolation_level=None)) as old:
        for script in MIGRATIONS[:-1]:
            old.executescript(script)
        old.execute(f"PRAGMA user_version = {VERSION - 1}")
        old.execute("INSERT INTO facts VALUES ('large', ?, 1.0)", ("x" * (8 * MIB),))
        old.execute("DELETE FROM facts")
    assert ledger_path.stat().st_size > 8 * MIB
    ledger = Ledger(ledger_path)
    add(ledger, waiting())
    ledger.close()
    assert ledger_path.stat().st_size < 2 * MIB
    with closing(sqlite3.connect(ledger_path)) as connection:
        assert connection.execute("PRAGMA auto_vacuum").fetchone()[0] == 2


@pytest.mark.parametrize("at", [0, 5, 8, 17, 24, 31])
def test_a_write_ahead_log_with_a_damaged_header_is_refused_and_left_as_it_is(
    ledger: Ledger, ledger_path: Path, at: int
) -> None:
    add(ledger, waiting())
    log = ledger_path.with_name(f"{ledger_path.name}-wal")
    crashed, sound = ledger_path.with_name("crashed.db"), ledger_path.with_name("sound.db")
    for path, flipped in ((sound, 0), (crashed, 0x10)):
        path.write_bytes(ledger_path.read_bytes())
        data = bytearray(log.read_bytes())
        data[at] ^= flipped
        path.with_name(f"{path.name}-wal").write_bytes(data)
    recovered = Ledger(sound)
    assert [entry.job.id for entry in recovered.entries(include_final=False)] == [waiting().job.id]
    recovered.close()
    with pytest.raises(
        LedgerError, match=r"^the write-ahead log .*crashed\.db-wal of the ledger is damaged"
    ) as refusal:
        Ledger(crashed).entries(include_final=False)
    assert refusal.value.hint is not None
    assert crashed.with_name("crashed.db-wal").read_bytes() == data


@pytest.mark.parametrize("data", [b"", bytes(31), bytes(32), struct.pack(">8I", *range(8))])
def test_a_log_that_a_crash_left_without_a_frame_is_no_damage(ledger: Ledger, ledger_path: Path, data: bytes) -> None:
    add(ledger, waiting())
    ledger.close()
    ledger_path.with_name(f"{ledger_path.name}-wal").write_bytes(data)
    assert len(Ledger(ledger_path).entries(include_final=False)) == 1


@pytest.mark.parametrize("trace", ["slices", "ended", "started"])
def test_jobs_that_the_ledger_lacks_are_told_once_by_their_slices_and_records(tmp_path: Path, trace: str) -> None:
    engine = make_engine(tmp_path)
    job = engine.submit_all([Submission(JobSpec(("true",), "process", working_directory="/"), Amount(GIB))])[0]
    lost, settings = os.urandom(6).hex(), engine.settings
    directory = settings.runtime_directory / "slices" if trace == "slices" else settings.spool
    directory.mkdir(parents=True, exist_ok=True)
    for job_id in (job.id, lost):
        (directory / (job_id if trace == "slices" else f"{trace}-{job_id}.1")).touch()
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign] # collects
    logging.getLogger("pgpu").addHandler(handler)
    try:
        for _ in range(2):
            recover(engine)
    finally:
        logging.getLogger("pgpu").removeHandler(handler)
    [message] = [each for each in records if "lacks jobs" in each]
    assert lost in message
    assert job.id not in message


def test_the_doctor_names_the_files_of_jobs_that_the_ledger_lacks(tmp_path: Path) -> None:
    record = tmp_path / "state" / "spool" / "ended-0123456789ab.1"
    record.parent.mkdir(parents=True)
    with TemporaryDirectory(dir="/dev/shm") as directory:
        settings = Settings(state_dir=tmp_path / "state", runtime_dir=Path(directory))
        assert [each.result for each in leftovers(settings)] == [Result.OK]
        record.touch()
        [found] = leftovers(settings)
    assert (found.result, "0123456789ab" in found.finding) == (Result.FAILURE, True)
    assert str(record) in (found.remedy or "")
