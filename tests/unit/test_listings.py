"""What `ps`, `queue`, `gpus` and `history` print: one row for each job at any width, and forms for programs."""

import io
import itertools
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.fakes.client import GPU, NOW_SECONDS, FakeClient, Outcome
from tests.unit.conftest import Run
from tests.unit.test_cli import validate

from pgpu.cli.output import job_tables, waits
from pgpu.cli.output.plain_table import Column, FittedTable
from pgpu.cli.output.waits import DOUBTS, PLACES, RULES, start_basis
from pgpu.client import JobReport, QueueReport
from pgpu.enforcement import SliceUse
from pgpu.engine.admission.dependencies import BEGIN, DEPENDENCY, HELD
from pgpu.engine.admission.queue_order import PLACE_RULES
from pgpu.engine.admission.rounds import DOUBTS as FORECAST_DOUBTS
from pgpu.engine.admission.rounds import FITS
from pgpu.model import Job, JobSpec, JobState, Lease, Place, Request, Slice
from pgpu.scheduling import Cause
from pgpu.scheduling.forecast import MOST_JOBS
from pgpu.structs import replace
from pgpu.units import GIB, format_use

HOUR = 3600.0
NAMES = ("lr-sweep-7", "김민준-학습-실험-이름이-아주-긴-것", "", "Ärger")
REASON = "waits for 12 GiB on one GPU: at most 2.5 GiB free of 23.7 GiB on any of 4; 3 jobs ahead"


def report(number: int, *, is_advisory: bool = False, gpu_model: str | None = None) -> JobReport:
    """Return one of 30 jobs: 20 run on 4 GPUs, the others wait."""
    job = Job(
        f"{number * 0x9E3779B97F4:012x}"[-12:],
        JobSpec(("python", "train.py", "--lr", "0.1", "--data", "/x" * 30), "process", name=NAMES[number % 4] or None),
        Request(12 * GIB, compute_share=0.5 if number % 2 else None),
        JobState.WAITING,
        NOW_SECONDS - number * HOUR,
        reason=REASON,
        owner_uid=number % 3,
        gpu_model=gpu_model,
    )
    if number >= 20:
        return JobReport(job, ())
    uuid = f"GPU-{number % 4:08}"
    lease = Lease(job.id, (Slice(uuid, 12 * GIB),), 0.0, "shim", is_advisory=is_advisory)
    running = replace(job, state=JobState.RUNNING, started_at_seconds=job.created_at_seconds, lease=lease, reason=None)
    return JobReport(running, (SliceUse(uuid, number * GIB // 2, 11 * GIB, 3),), gpus=(str(number % 4),))


JOBS = [report(number) for number in range(30)]


def laid_out(reports: list[JobReport], width: int | None, *, is_uncut: bool = False) -> list[str]:
    table = job_tables.of_jobs(reports, is_uncut=is_uncut, now_seconds=NOW_SECONDS)
    return list(table.lines(width))


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (80, "JOB NAME USER GPU MEMORY SHARE STATE AGE REASON"),
        (100, "JOB NAME USER GPU MEMORY SHARE STATE AGE REASON"),
        (160, "JOB NAME USER GPU MEMORY SHARE STATE AGE REASON PEAK REFUSED COMMAND"),
    ],
)
def test_thirty_jobs_on_four_gpus_take_one_line_each(width: int, titles: str) -> None:
    header, *rows = laid_out(JOBS, width)
    assert header.split() == titles.split()
    assert len(rows) == 30
    assert max(map(cell_len, (header, *rows))) <= width
    # Columns are aligned: those behind the names of Korean letters as well.
    place = header.index("STATE")
    assert {line.split()[0] for line in rows} == {each.job.id[:8] for each in JOBS}
    for line in rows:
        cut = next(end for end in range(len(line) + 1) if cell_len(line[:end]) == place)
        assert line[cut:].split()[0] in {"running", "waiting"}


def test_a_row_shows_use_and_slice_gpu_user_share_and_a_short_reason() -> None:
    rows = laid_out(JOBS, 80)[1:]
    assert rows[3].split()[1:] == ["Ärger", "root", "3", "1.5/12", "GiB", "50%", "running", "3h"]
    assert rows[29].split()[3:10] == ["12", "GiB", "50%", "waiting", "1d", "at", "most"]
    assert rows[29].endswith("…")


@pytest.mark.parametrize(("width", "has_share"), [(78, False), (80, True), (100, True), (160, True)])
def test_beside_long_user_names_the_name_stays_before_the_share_and_ages_have_one_unit(
    monkeypatch: pytest.MonkeyPatch, width: int, has_share: bool
) -> None:
    monkeypatch.setattr(job_tables, "user_name", "firstname.lastname-{}".format)
    jobs = [replace(each.job, created_at_seconds=NOW_SECONDS - 3671.0 * n - 59) for n, each in enumerate(JOBS)]
    jobs = [replace(job, started_at_seconds=None if job.lease is None else job.created_at_seconds) for job in jobs]
    reports = [replace(each, job=job) for each, job in zip(JOBS, jobs, strict=True)]
    header, *rows = laid_out(reports, width)
    assert "NAME" in header
    assert ("SHARE" in header) is has_share
    assert max(map(cell_len, (header, *rows))) <= width
    for line in rows:
        assert re.search(r"(running|waiting)  \d+[smhd]( |$)", line), line


def test_a_pipe_and_the_wide_form_get_whole_ids_and_reasons() -> None:
    for lines in (laid_out(JOBS, None), laid_out(JOBS, 80, is_uncut=True)):
        assert JOBS[0].job.id in lines[1]
        assert lines[-1].count(REASON.removeprefix("waits for 12 GiB on one GPU: ")) == 1
    assert "/x" * 30 in laid_out(JOBS, 80, is_uncut=True)[1]


@pytest.mark.parametrize("width", [1, 40, 80, 100, 160])
def test_an_advisory_limit_is_shown_at_every_width(width: int) -> None:
    header, first, second, *_ = laid_out([report(0, is_advisory=True), *JOBS[1:]], width)
    assert "LIMIT" in header.split()
    assert "advisory" in first.split()
    assert "advisory" not in second.split()


def test_simulated_jobs_stand_in_the_heading_and_among_real_ones_in_a_column_of_their_own() -> None:
    simulated = [report(number, gpu_model="rtx-3090x4") for number in range(4)]
    heading, header, *_ = laid_out(simulated, 80)
    assert heading == "simulated GPUs (rtx-3090x4): kernels compute nothing"
    assert "SIMULATED" not in header
    heading, header, *rows = laid_out([*simulated, *JOBS[4:]], 80)
    assert "rtx-3090x4" in heading
    place = header.index("SIMULATED")
    assert [line[place : place + 10].strip() for line in rows[:5]] == ["rtx-3090x4"] * 4 + [""]


def test_ids_are_as_long_as_tells_them_apart() -> None:
    table = FittedTable((Column("JOB", 1, is_id=True),))
    for each in ("0123456789ab", "0123456789cd"):
        table.add_row(each)
    assert list(table.lines(80))[1:] == ["0123456789a", "0123456789c"]


@given(st.lists(st.text("a한漢é\u0301각…", max_size=30), min_size=1, max_size=4), st.integers(10, 60))
def test_no_row_is_wider_than_the_terminal_in_any_script(names: list[str], width: int) -> None:
    table = FittedTable((Column("A", 1, least=3, is_always=True), Column("B", 2, least=4, is_always=True)))
    for name in names:
        table.add_row(name, name[::-1])
    assert all(cell_len(line) <= width for line in table.lines(width))


def test_letters_of_a_syllable_that_terminals_join_count_once() -> None:
    table = FittedTable((Column("A", 1), Column("B", 1)))
    table.add_row("\u1112\u1161\u11ab", "x")  # 한 as macOS writes it: three letters, two cells
    assert list(table.lines(80))[1] == "\u1112\u1161\u11ab  x"


@pytest.mark.parametrize(
    ("used", "limit", "text"),
    [
        (0, 4 * GIB, "0/4 GiB"),
        (3 * GIB // 2, 4 * GIB, "1.5/4 GiB"),
        (641 << 20, 1205 << 20, "0.626/1.18 GiB"),
        (641 << 20, 1000 << 20, "641/1000 MiB"),
    ],
)
def test_use_has_the_unit_of_its_limit(used: int, limit: int, text: str) -> None:
    assert format_use(used, limit) == text


def test_the_queue_fits_a_terminal() -> None:
    waiting = [QueueReport(place, each.job) for place, each in enumerate(JOBS[20:], 1)]
    for width in (80, 100, 160):
        lines = list(waits.of_queue(waiting, is_uncut=False, now_seconds=NOW_SECONDS).lines(width))
        assert len(lines) == 11
        assert max(map(cell_len, lines)) <= width
        assert lines[0].split()[:2] == ["PLACE", "JOB"]
        assert all(" unknown " in line for line in lines[1:])


@pytest.fixture
def filled(run: Run, client: FakeClient, capsys: pytest.CaptureFixture[str]) -> Run:
    for name, memory in (("one", "2GiB"), ("two", "3GiB")):
        run("run", "-d", "--memory", memory, "--name", name, "--", "sleep", "9")
    run("run", "-d", "--memory", "4GiB", "--", "sleep", "9")
    client.outcome = Outcome(exit_code=7)
    run("run", "--memory", "1GiB", "--name", "ended", "--", "true")
    run("submit", "--memory", "23GiB", "--name", "waits", "--", "true")
    capsys.readouterr()
    return run


def shown(filled: Run, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert filled(*words) == 0
    return capsys.readouterr().out


def test_output_forms_of_ps(filled: Run, capsys: pytest.CaptureFixture[str]) -> None:
    ids = [f"{number:012x}" for number in (1, 2, 3, 5)]
    assert shown(filled, capsys, "ps", "-q").split() == ids
    assert shown(filled, capsys, "ps", "-o", "name").split() == ["one", "two", ids[2], "waits"]
    assert shown(filled, capsys, "ps", "-o", "json") == shown(filled, capsys, "ps", "--json")
    assert "sleep 9" in shown(filled, capsys, "ps", "--output=wide")
    assert shown(filled, capsys, "ps", "-n", "2", "-q").split() == ids[2:]
    assert shown(filled, capsys, "queue", "-q") == f"{ids[3]}\n"
    assert shown(filled, capsys, "queue", "-n", "0", "-q") == ""
    assert shown(filled, capsys, "gpus", "-q") == f"{GPU.uuid}\n"


@pytest.mark.parametrize("both", ["-a", "-aa"], ids=["direct parser", "Typer, which alone reads groups of letters"])
@pytest.mark.parametrize("form", [("--json",), ("-q",), ("--format", "{{.Job}}"), ("-o", "name")], ids=" ".join)
def test_whole_rows_may_be_asked_for_beside_another_form(
    filled: Run, capsys: pytest.CaptureFixture[str], both: str, form: tuple[str, ...]
) -> None:
    assert shown(filled, capsys, "ps", both, "--no-trunc", *form) == shown(filled, capsys, "ps", "--all", *form)


def test_a_template_is_filled_with_columns(filled: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(filled, capsys, "ps", "--format", "{{.Name}}={{ .MEMORY }}", "-n", "4").splitlines() == [
        "one=0/2 GiB",
        "two=0/3 GiB",
        "=0/4 GiB",
        "waits=23 GiB",
    ]
    lines = shown(filled, capsys, "ps", "--format", r"table {{.State}}\t{{.Name}}").splitlines()
    assert lines == [
        "simulated GPUs (rtx-3090): kernels compute nothing",
        "STATE    NAME",
        "running  one",
        "running  two",
        "running",
        "waiting  waits",
    ]


def test_filters_of_one_column_add_up_and_those_of_several_narrow_down(
    filled: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    def names(*words: str) -> list[str]:
        return [each["name"] for each in json.loads(shown(filled, capsys, "ps", "--json", *words))["jobs"]]

    assert names("--filter", "name=one", "--filter", "name=w*") == ["one", "waits"]
    assert names("-f", "state=running", "-f", "name=?*") == ["one", "two"]
    assert names("-f", "STATE=exited") == ["ended"]  # of jobs that ended, as they are asked for by state
    assert names("-f", "user=nobody") == []


@pytest.mark.parametrize(
    ("words", "says", "hints"),
    [
        (("ps", "-o", "yaml"), "'yaml' is no form of output", "wide, json, name"),
        (("ps", "-q", "--json"), "--json and --quiet contradict", "leave one"),
        (("queue", "-o", "wide", "--format", "{{.Job}}"), "contradict", "leave one"),
        (("gpus", "--format", "json"), "names no column", "-o json"),
        (("ps", "--format", "{{.Nothing}}"), "no column 'Nothing'", "job, name, user"),
        (("ps", "--filter", "state"), "not COLUMN=VALUE", "state=running"),
        (("ps", "--filter", "nothing=1"), "no column 'nothing'", "job, name, user"),
        (("ps", "-n", "many"), "many", "--help"),
        (("ps", "-o"), "requires an argument", "pgpu ps --help"),
        (("ps", "-n", "-1"), "--last -1 is no number of rows", "-n 10"),
        (("queue", "--last=-3"), "--last -3 is no number of rows", "-n 10"),
        (("history", "a", "b"), "unexpected extra argument", "--help"),
        (("ps", "--kubernetes", "-q"), "as a table or as --json", "leave out"),
    ],
)
def test_wrong_options_of_a_listing_exit_with_2(
    run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], says: str, hints: str
) -> None:
    assert run(*words) == 2
    error = capsys.readouterr().err
    if "--json" in words:
        content = validate("error", error)["error"]
        error = f"{content['message']}\nhint: {content['hint']}\n"
    line, hint = error.splitlines()
    assert says in line
    assert hints in hint


def test_watch_prints_until_it_is_interrupted(
    filled: Run, client: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgpu.cli.listings._REFRESH_SECONDS", 0.0)
    read = client.jobs
    calls: list[Any] = []

    def jobs(*, include_final: bool) -> Any:
        calls.append(include_final)
        if len(calls) > 3:
            raise KeyboardInterrupt
        if len(calls) == 3:
            client.stop("one", grace_seconds=0)
        return read(include_final=include_final)

    monkeypatch.setattr(client, "jobs", jobs)
    assert filled("ps", "--watch", "-q") == 130
    before = capsys.readouterr().out
    assert before.split() == [
        f"{number:012x}" for number in (1, 2, 3, 5, 2, 3, 5)
    ]  # what has not changed is not repeated
    calls.clear()
    assert filled("ps", "--watch", "--json") == 130
    for line in capsys.readouterr().out.splitlines():
        validate("jobs", line)


def test_a_notice_is_printed_once_for_each_state_directory(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--memory", "1GiB", "true") == 0
    assert "on a simulated rtx-3090, where kernels compute nothing" in capsys.readouterr().err
    assert run("run", "--memory", "1GiB", "true") == 0
    assert capsys.readouterr().err == ""
    assert Path(platformdirs.user_state_path("pgpu")).stat().st_mode & 0o777 == 0o700
    assert run("gpus") == 0
    assert "does not cover" in capsys.readouterr().err
    assert run("gpus") == 0
    assert capsys.readouterr().err == ""


def test_starts_are_shown_only_where_they_rest_on_runs() -> None:
    job = replace(JOBS[20].job, expected_start_seconds=NOW_SECONDS + 300)
    for report_, start in (
        (QueueReport(1, job, "memory", is_start_known=True), "in about 5m"),
        (QueueReport(1, job, "memory"), "unknown"),
        (QueueReport(1, job, "memory", not_before_seconds=NOW_SECONDS + 60), "in 1m or later"),
        (QueueReport(1, job, "memory", by_seconds=NOW_SECONDS + 600), "within 10m"),
        (
            QueueReport(1, job, "memory", not_before_seconds=NOW_SECONDS + 60, by_seconds=NOW_SECONDS + 600),
            "in 1m to 10m",
        ),
        (QueueReport(1, job, "memory", not_before_seconds=NOW_SECONDS - 9, by_seconds=NOW_SECONDS), "unknown"),
        (QueueReport(1, replace(job, expected_start_seconds=NOW_SECONDS), "fits"), "soon"),
    ):
        assert waits.start_text(report_, NOW_SECONDS) == start
        assert f" {start} " in list(waits.of_queue([report_], is_uncut=True, now_seconds=NOW_SECONDS).lines())[1]


def test_the_queue_explains_one_job_and_lists_those_of_an_array(
    filled: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown(filled, capsys, "queue", "waits").splitlines()
    assert lines[0] == "simulated GPUs (rtx-3090): kernels compute nothing"
    facts = dict(line.strip().split(maxsplit=1) for line in lines[1:8])
    assert list(facts) == ["job", "waits", "needs", "order", "rule", "figures", "starts"]
    assert facts["job"].endswith(" waits")
    assert "place 1 of 1, priority 0" in facts["waits"]
    assert facts["needs"] == "23 GiB on one GPU, time-slice"
    assert facts["rule"] == "memory: a slice is granted only where its memory is really free"
    assert facts["figures"] == "no room"
    assert facts["order"] == "first: no job goes before it"
    assert lines[8].split() == ["GPU", "GRANTABLE", "GRANTED", "NAME"]
    content = validate("queue", shown(filled, capsys, "queue", "waits", "--json"))
    assert [each["uuid"] for each in content["gpus"]] == [GPU.uuid]
    found = content["queue"]
    assert [(each["rule"], each["is_start_known"]) for each in found] == [("memory", True)]
    filled("submit", "--memory", "23GiB", "--array", "0-1", "--name", "many", "true")
    array_id = capsys.readouterr().out.strip()
    assert len(shown(filled, capsys, "queue", array_id, "-q").split()) == 2
    for form in ((), ("--json",), ("-q",), ("--format", "{{.Job}}"), ("--watch",)):
        assert filled("queue", "one", *form) == 125
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "does not wait: it is running" in captured.err
    for form in (("-f", "job=x"), ("-n", "1"), ("-o", "wide")):
        assert filled("queue", "waits", *form) == 2
        assert "explains one job" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_watch_draws_lines_of_the_terminals_width_on_a_screen_of_its_own(
    filled: Run, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgpu.cli.listings._REFRESH_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "20")
    monkeypatch.setenv("TERM", "xterm")
    read = client.queue
    for words in (
        ("queue", "waits", "--watch"),
        ("queue", "--watch", "-o", "wide"),
        ("queue", "-w", "--format", "{{.Job}}" * 9),
    ):
        calls = itertools.count()

        def queue(simulate: str | None = None, calls: Iterator[int] = calls) -> Any:
            if next(calls):
                raise KeyboardInterrupt
            return read(simulate)

        monkeypatch.setattr(client, "queue", queue)
        monkeypatch.setattr("sys.stdout", terminal := Terminal())
        assert filled(*words) == 130
        text = terminal.getvalue()
        assert text.startswith("\x1b[?1049h\x1b[H")
        assert text.endswith("\x1b[?1049l")
        lines = [re.sub(r"\x1b\[[?\d]*\w", "", line) for line in text.splitlines()]
        assert max(map(cell_len, lines)) == 40
        if words[1] == "waits":
            assert any(line.strip().startswith("figures") for line in lines)


def test_watch_that_is_ended_by_sigterm_gives_the_screen_back(
    filled: Run, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "queue", lambda _simulate=None: signal.raise_signal(signal.SIGTERM))
    monkeypatch.setattr("sys.stdout", terminal := Terminal())
    with pytest.raises(SystemExit) as ended:
        filled("queue", "--watch")
    assert ended.value.code == 143
    assert terminal.getvalue().endswith("\x1b[?1049l")


def test_every_doubt_about_a_start_is_explained_and_names_the_job() -> None:
    assert set(DOUBTS) == set(FORECAST_DOUBTS)
    assert f" {MOST_JOBS} " in DOUBTS["far"]  # written out, since a listing loads no scheduler
    for doubt, text in DOUBTS.items():
        for doubted, named in ((None, "a job"), ("a" * 12, "job " + "a" * 12)):
            found = start_basis(QueueReport(1, JOBS[20].job, "memory", doubt=doubt, doubted=doubted))
            assert found == text.replace("{job}", named)


def test_every_rule_of_the_scheduler_is_explained() -> None:
    assert set(RULES) == {*(cause.value for cause in Cause), DEPENDENCY, BEGIN, HELD, FITS}
    assert set(PLACES) == set(PLACE_RULES)
    guide = (Path(__file__).parent.parent.parent / "docs" / "guide" / "queue.md").read_text("utf-8")
    for rule in (*RULES, *PLACES):
        assert f"| `{rule}` |" in guide


def test_a_place_in_an_array_changes_nothing_of_a_row() -> None:
    job = replace(JOBS[0].job, place=Place(array_id="a" * 12, array_index=3))
    assert laid_out([JobReport(job, JOBS[0].use, gpus=("0",))], 80) == laid_out([JOBS[0]], 80)
