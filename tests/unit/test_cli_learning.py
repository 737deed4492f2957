"""What `pgpu history` and `pgpu waste` show, over a client that has runs and no GPU."""

import json
import re
import time
from collections.abc import Callable

import pytest
from tests.fakes.client import FakeClient

from pgpu.advising.memory_demand import right_size_bytes
from pgpu.cli.invocation import Invocation
from pgpu.cli.main import main
from pgpu.model import GpuSeries, Run
from pgpu.structs import replace
from pgpu.units import GIB, MIB

PROGRAM = "train.py@0a1b2c3d python --batch-size 32"
Verb = Callable[..., int]


def a_run(
    job_id: str, slice_bytes: int, peak_bytes: int, *, uid: int = 0, refusals: int = 0, exit_code: int = 0
) -> Run:
    return Run(
        signature=PROGRAM,
        gpu_name="RTX 3090",
        job_id=job_id,
        owner_uid=uid,
        slice_bytes=slice_bytes,
        peak_bytes=peak_bytes,
        context_bytes=254 * MIB,
        refusals=refusals,
        duration_seconds=3600.0,
        ended_at_seconds=1_700_000_000.0,
        exit_code=exit_code,
    )


@pytest.fixture
def client() -> FakeClient:
    return FakeClient(runs=[a_run("a" * 12, 22_885 * MIB, 1205 * MIB)])


@pytest.fixture
def verb(client: FakeClient) -> Verb:
    return lambda *words: main(words, Invocation(make_client=lambda _settings: client))


def test_waste_shows_how_many_times_too_much_was_reserved_and_what_to_ask(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("waste") == 0
    shown = capsys.readouterr().out
    for text in ("22.35 GiB", "1.18 GiB", "19.0x", "1.49 GiB", "root"):
        assert text in shown


def test_waste_sums_up_by_user_what_ended_jobs_held_over_time(
    verb: Verb, client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.runs += [a_run("b" * 12, 4 * GIB, 2 * GIB, uid=54321), a_run("c" * 12, 2 * GIB, GIB, uid=54321)]
    assert verb("waste") == 0
    shown = capsys.readouterr().out
    assert re.search("USER +JOBS +RESERVED PER GPU +USED PER GPU", shown)
    (line,) = (line for line in shown.splitlines() if line.startswith("54321"))
    assert line.split()[1:] == ["2", "6.00", "GiB", "h", "3.00", "GiB", "h", "2.0x"]


def test_waste_asks_for_nothing_where_a_peak_is_no_need(
    verb: Verb, client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    client.runs = [
        replace(a_run("a" * 12, 2 * GIB, 2 * GIB), sizes_itself=True),
        a_run("b" * 12, 2 * GIB, 2 * GIB, refusals=4, exit_code=1),
        a_run("c" * 12, 2 * GIB, 0),
    ]
    assert verb("waste") == 0
    shown = capsys.readouterr().out
    for text in ("it took all it saw", "it hit its limit", "no GPU memory"):
        assert text in shown


def test_waste_as_json_has_the_figures_and_no_words(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("waste", "--json") == 0
    (wasted,) = json.loads(capsys.readouterr().out)["jobs"]
    assert wasted["factor"] == pytest.approx(22_885 / 1205)
    assert wasted["should_ask_bytes"] == right_size_bytes(1205 * MIB)


def test_history_lists_programs_and_of_one_its_runs(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("history") == 0
    assert "aaaaaaaaaaaa" not in capsys.readouterr().out
    assert verb("history", "train.py") == 0
    shown = capsys.readouterr().out
    assert PROGRAM.split(maxsplit=1)[0] in shown
    assert "aaaaaaaaaaaa" in shown


def test_history_of_what_never_ran_is_one_line_and_exit_code_125(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("history", "nothing") == 125
    caught = capsys.readouterr()
    assert caught.out == ""
    assert "no run of 'nothing' is known" in caught.err


def test_history_of_gpus_has_a_line_for_each_day_and_its_means(
    verb: Verb, client: FakeClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    noon = int(time.time()) // 86_400 * 86_400 - 43_200
    ats = (noon, noon + 60, noon + 86_400)
    client.series = [GpuSeries("GPU-gone", ats, (4 * GIB, 2 * GIB, GIB), (3 * GIB, GIB, GIB), (40, None, 10))]
    assert verb("history", "--gpu", "--since", "3d") == 0
    days = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("GPU-gone")]
    assert days[0][2:] == ["2m", "3", "GiB", "2", "GiB", "3", "GiB", "40%"]
    assert days[1][2:] == ["1m", "1", "GiB", "1", "GiB", "1", "GiB", "10%"]


@pytest.mark.parametrize("words", [("--since", "7d"), ("--gpu", "train.py"), ("--gpu", "--since", "yesterday")])
def test_history_refuses_what_it_cannot_show(
    verb: Verb, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert verb("history", *words) != 0
    assert "hint:" in capsys.readouterr().err
