"""Time limits, begins, holds and quotas of GPU hours: how they are written, what they mean, and which rule they name."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgpu.app.settings import load_settings
from pgpu.cli.job_arguments import read_submission
from pgpu.cli.job_options import JobOptions
from pgpu.engine.admission.dependencies import BEGIN, DEPENDENCY, HELD, judge_peers
from pgpu.engine.admission.rounds import RoundOutcome
from pgpu.engine.admission.situation import Situation
from pgpu.engine.event_loop import EventLoop
from pgpu.errors import RequestError
from pgpu.ledger import JobPeer
from pgpu.ledger.charges import bounds_of
from pgpu.model import (
    Gpu,
    GpuHours,
    Job,
    JobSpec,
    JobState,
    OnTimeLimit,
    Period,
    Place,
    Request,
    Slice,
    Submission,
)
from pgpu.model.validation import check_submission
from pgpu.scheduling import Candidate, GpuRoom, Held, Quota, admit, expected_starts
from pgpu.scheduling.admission_round import Cause
from pgpu.structs import replace
from pgpu.units import GIB, parse_past_time, parse_time, parse_time_limit_seconds

NOW = 10_000.0
SPEC = JobSpec(("true",), "process", working_directory="/")
ROOM = GpuRoom(Gpu("GPU-0", "Test", 0, 24 * GIB, "1.0", is_simulated=False), 0, 0, 0)


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def candidate(name: str, gib: int = 20, lasts: float | None = 100, uid: int = 0, **words: Any) -> Candidate:
    return Candidate(name, Request(gib * GIB, **words), None, uid, NOW, lasts)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90m", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("30:00", 1800),
        ("01:30:00", 5400),
        ("2-0", 172_800),
        ("1-12:30", 131_400),
        ("1-12:00:05", 129_605),
    ],
)
def test_a_time_limit_is_a_duration_or_one_of_slurm_s(text: str, seconds: float) -> None:
    assert parse_time_limit_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "60", "1:2:3:4", "-1-0", "1-", "an hour", "1:5:"])
def test_a_time_limit_without_a_unit_or_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refusal:
        parse_time_limit_seconds(text)
    assert refusal.value.hint is not None


@pytest.mark.usefixtures("in_berlin")
def test_a_time_is_the_next_one_of_the_clock_a_date_or_some_time_from_now() -> None:
    now = parse_time("2026-03-28T12:00", 0)
    assert parse_time("16:00", now) == now + 4 * 3600
    assert parse_time("11:30", now) == now + 22.5 * 3600  # the clocks go forward in that night
    assert parse_time("2026-03-28T12:00:00+00:00", now) == now + 3600
    assert parse_time("now+90", now) == parse_time("now+90seconds", now) == now + 90
    assert parse_time("now+2hours", now) == parse_time("now+2h", now) == now + 7200
    assert parse_time("now+1day", now) == now + 86_400


@pytest.mark.parametrize("text", ["", "25:00", "12:60", "tomorrow-ish", "now+", "now-1h", "2026-13-01", "16"])
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(RequestError) as refusal:
        parse_time(text, NOW)
    assert refusal.value.hint is not None


@pytest.mark.usefixtures("in_berlin")
def test_a_time_of_the_past_is_so_far_back_or_a_date() -> None:
    now = parse_time("2026-11-28T12:00", 0)
    assert parse_past_time("7d", now) == now - 7 * 86_400
    assert parse_past_time("2026-11-28", now) == now - 12 * 3600
    with pytest.raises(RequestError):
        parse_past_time("last week", now)


@pytest.mark.usefixtures("in_berlin")
def test_days_weeks_and_months_begin_at_midnight_of_this_machine() -> None:
    now = parse_time("2026-12-02T12:00", 0)
    for period, begin, end in (
        (Period.DAY, "2026-12-02", "2026-12-03"),
        (Period.WEEK, "2026-11-30", "2026-12-07"),
        (Period.MONTH, "2026-12-01", "2027-01-01"),
    ):
        assert bounds_of(period, now) == (parse_time(begin, 0), parse_time(end, 0))


def read(**words: Any) -> Submission:
    options = JobOptions(command=("true",), memory="1GiB", **words)
    return read_submission(options, load_settings(options.settings(), {}, Path("/nowhere")))


def test_a_limit_stops_unless_the_job_or_the_settings_only_mark() -> None:
    assert read(time_limit="2h").request.time_limit_seconds == 7200
    assert read(time_limit="2h").request.on_time_limit is OnTimeLimit.STOP
    assert read(time_limit="2h", on_time_limit="mark").request.on_time_limit is OnTimeLimit.MARK
    options = JobOptions(command=("true",), memory="1GiB", time_limit="2h")
    marking = load_settings({}, {"PGPU_ON_TIME_LIMIT": "mark"}, Path("/nowhere"))
    assert read_submission(options, marking).request.on_time_limit is OnTimeLimit.MARK
    with pytest.raises(RequestError, match="needs a limit"):
        read(on_time_limit="mark")


def test_a_begin_and_a_hold_are_part_of_a_submission() -> None:
    found = read(begin="now+1h", hold=True)
    assert found.is_held
    assert found.begin_at_seconds is not None
    assert 3590 < found.begin_at_seconds - time.time() <= 3600
    assert not read().is_held


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan"), 1e12])
def test_limits_and_begins_that_no_clock_has_are_refused(seconds: float) -> None:
    with pytest.raises(RequestError):
        check_submission(Submission(SPEC, Request(GIB, time_limit_seconds=seconds)))
    if seconds:
        with pytest.raises(RequestError):
            check_submission(Submission(SPEC, Request(GIB), begin_at_seconds=seconds))


def test_replicas_claims_and_containers_of_docker_have_no_limit() -> None:
    limited = Request(GIB, time_limit_seconds=60.0)
    check_submission(Submission(SPEC, limited))
    check_submission(Submission(SPEC, Request(0, 0, time_limit_seconds=60.0)))
    for spec in (replace(SPEC, serves="detector"), JobSpec((), "claim"), replace(SPEC, runtime="oci")):
        with pytest.raises(RequestError, match="time limit"):
            check_submission(Submission(spec, limited))


def test_only_a_limit_that_stops_changes_how_long_a_run_is_expected_to_take() -> None:
    request = Request(GIB, time_limit_seconds=60.0)
    assert [request.expected_seconds(usual) for usual in (None, 50.0, 70.0)] == [60.0, 50.0, 60.0]
    marked = replace(request, on_time_limit=OnTimeLimit.MARK)
    assert [marked.expected_seconds(usual) for usual in (None, 70.0)] == [None, 70.0]


def test_a_job_stopped_at_its_limit_ends_with_124_whatever_its_command_returned() -> None:
    request = Request(GIB, time_limit_seconds=60.0)
    job = Job("a", SPEC, request, JobState.RUNNING, NOW, hit_time_limit=True)
    assert job.ended(143, NOW).exit_code == job.ended(0, NOW).exit_code == 124
    marked = replace(job, request=replace(request, on_time_limit=OnTimeLimit.MARK))
    assert marked.ended(0, NOW).exit_code == replace(job, hit_time_limit=False).ended(0, NOW).exit_code == 0


def peer(job_id: str, *after: str, **words: Any) -> JobPeer:
    return JobPeer(job_id, None, JobState.WAITING, None, None, Place(after), 7, **words)


def test_a_hold_and_a_begin_keep_a_job_each_with_its_rule() -> None:
    jobs = [
        peer("own", held_by_uid=7),
        peer("other", held_by_uid=0),
        peer("later", begin_at_seconds=NOW + 1),
        peer("due", begin_at_seconds=NOW),
        peer("after", "own", begin_at_seconds=NOW + 1),
    ]
    found = judge_peers(jobs, {each.job_id: each for each in jobs}, {}, NOW)
    assert found.dormant == {"own": HELD, "other": HELD, "later": BEGIN}
    assert found.hindered["own"] == "held by its owner until it is released"
    assert found.hindered["other"] == "held by an administrator until it is released"
    assert found.hindered["later"].startswith("waits for its begin on 1970-01-01 ")
    assert "due" not in found.hindered
    assert found.hindered["after"] == "waits for the end of job own"
    assert DEPENDENCY not in found.dormant.values()


def test_a_held_element_takes_no_place_of_its_array() -> None:
    place = Place((), "array", 0, 1)
    jobs = [replace(peer("first", held_by_uid=7), place=place), replace(peer("second"), place=place)]
    assert judge_peers(jobs, {}, {}, NOW).hindered.keys() == {"first"}


def starts(queue: list[Candidate], **words: Any) -> dict[str, float]:
    return {job_id: start.at_seconds for job_id, start in expected_starts([ROOM], queue, NOW, **words).items()}


def test_a_forecast_knows_begins() -> None:
    later = replace(candidate("later", lasts=50), eligible_at_seconds=NOW + 130)
    assert starts([], later=[(later, ())]) == {"later": NOW + 130}
    # It joins the queue at its begin, and delays nobody before.
    both = starts([candidate("first"), candidate("second")], later=[(later, ())])
    assert both == {"first": NOW, "second": NOW + 100, "later": NOW + 200}


def test_a_job_that_waits_for_others_starts_no_earlier_than_its_begin() -> None:
    running = Held("running", 0, (Slice("GPU-0", 20 * GIB),), NOW, 0.0, 60)
    later = replace(candidate("later"), eligible_at_seconds=NOW + 130)
    room = replace(ROOM, granted_bytes=20 * GIB)
    found = expected_starts([room], [], NOW, held=[running], later=[(later, {"running"})])
    assert found["later"].at_seconds == NOW + 130


def test_a_job_that_only_something_unpredictable_keeps_has_no_start() -> None:
    assert starts([], later=[(candidate("later"), ())]) == {}


SPENT = Quota(gpu_hours=GpuHours(10.0, Period.WEEK, 12.5, NOW + 500))


def test_spent_gpu_hours_keep_new_jobs_with_a_gpu_and_no_others() -> None:
    queue = [candidate("mine", 2, uid=1), candidate("theirs", 2, uid=2)]
    without = Candidate("without", Request(0, 0), owner_uid=1, eligible_at_seconds=NOW)
    found = admit([ROOM], [*queue, without], NOW, quotas={1: SPENT})
    assert {grant.job_id for grant in found.grants} == {"theirs", "without"}
    [wait] = found.waits
    assert (wait.job_id, wait.cause) == ("mine", Cause.QUOTA)
    assert "12.5 of 10 GPU hours a week are used" in wait.reason
    assert "next week, which begins on 1970-01-01" in wait.reason


def test_spent_gpu_hours_keep_no_parked_job_from_its_gpu() -> None:
    """It has begun already, and holds memory of the host meanwhile."""
    back = replace(candidate("back", 2, uid=1), gpu_uuid=ROOM.gpu.uuid)
    found = admit([ROOM], [back, candidate("mine", 2, uid=1)], NOW, quotas={1: SPENT})
    assert [grant.job_id for grant in found.grants] == ["back"]


def test_what_is_left_of_gpu_hours_is_no_reason_to_wait() -> None:
    for hours in (
        GpuHours(10.0, used=9.9, renewed_at_seconds=NOW + 500),
        GpuHours(10.0, used=12.5, renewed_at_seconds=NOW),
    ):
        found = admit([ROOM], [candidate("mine", 2, uid=1)], NOW, quotas={1: Quota(gpu_hours=hours)})
        assert [grant.job_id for grant in found.grants] == ["mine"]


def test_a_forecast_knows_the_next_period_of_a_quota() -> None:
    assert starts([candidate("mine", uid=1)], quotas={1: SPENT}) == {"mine": NOW + 500}


def test_an_agent_polls_for_no_job_that_only_its_begin_or_a_release_lets_start() -> None:
    later = {"begins": "waits for its begin", "held": "held by its owner", "after": "waits for the end of job a"}
    situation = Situation((ROOM,), (candidate("queued"),), (), {}, later, {}, dormant={"begins": BEGIN, "held": HELD})
    outcome = RoundOutcome(situation)
    assert outcome.waiting_ids == {"queued", *later}
    assert outcome.polled_ids == {"queued", "after"}


def test_a_timer_may_be_due_in_more_days_than_epoll_waits() -> None:
    loop = EventLoop(lambda: 0.0)
    loop.call_later(400 * 86_400.0, lambda: None)
    timeout = loop.timeout_seconds()
    loop.close()
    assert timeout is not None
    assert timeout <= 24 * 86_400
