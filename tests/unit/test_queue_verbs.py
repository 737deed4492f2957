"""The verbs of the queue over a client that runs nothing: words and job files in, ids, documents and lines out."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.client import GPU, OWNER_UID, FakeClient
from tests.unit.conftest import Run
from tests.unit.test_cli import validate

from pgpu.app.settings import Settings, load_settings
from pgpu.cli.job_arguments import KEYS, read_job_file
from pgpu.client import UsageReport, UserShare
from pgpu.errors import RequestError
from pgpu.model import (
    DOCKER_UID,
    GpuHours,
    Job,
    JobSpec,
    JobState,
    Objective,
    OnTimeLimit,
    Outsider,
    Period,
    ProcessHolder,
    Request,
    UserUsage,
)
from pgpu.structs import replace
from pgpu.units import GIB

SUBMIT = ("submit", "--memory", "2GiB")
FILE = """
[defaults]
memory = "2GiB"
priority = "low"
env = { A = "0", B = 1 }

[jobs.train]
command = ["python", "train.py"]
after = "prepare"
array = "0-9:3%2"
env = { A = "own" }
wait-timeout = "5m"

[jobs.prepare]
command = "sh -c 'echo two words'"
memory = "4GiB"
gpus = 1
priority = 7
"""


def named(client: FakeClient) -> dict[str | None, Job]:
    return {job.spec.name: job for job in client.stored.values()}


def test_what_is_submitted_is_left_to_itself_and_its_id_printed(run: Run, client: FakeClient, capsys: Any) -> None:
    assert run(*SUBMIT, "--name", "one", "--priority", "high", "--wait-timeout", "5m", "--", "true", "--json") == 0
    captured = capsys.readouterr()
    job = named(client)["one"]
    assert captured.out == f"{job.id}\n"
    assert "simulated" in captured.err
    assert job.spec.command == ("true", "--json")
    assert (job.request.priority, client.waits) == (50, [300.0])


@pytest.mark.parametrize(("words", "priority"), [("-100", -100), ("low", -50), ("normal", 0), ("+3", 3), ("100", 100)])
def test_priorities_are_classes_or_numbers(run: Run, client: FakeClient, words: str, priority: int) -> None:
    assert run("run", "-d", "--memory", "2GiB", "--priority", words, "--", "true") == 0
    assert run(*SUBMIT, "--priority", words, "--", "true") == 0
    assert [job.request.priority for job in client.stored.values()] == [priority, priority]


def test_models_of_gpus_are_of_the_command_line_or_of_the_file(
    run: Run, client: FakeClient, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text('[defaults]\nmemory = "2GiB"\n[jobs.file]\ncommand = "true"\ngpu-model = ["A100", "H100"]\n')
    assert run("submit", str(path)) == 0
    assert run(*SUBMIT, "--name", "given", "--gpu-model", "A100", "--", "true") == 0
    assert run(*SUBMIT, "--name", "plain", "--", "true") == 0
    models = {name: job.request.gpu_models for name, job in named(client).items()}
    assert models == {"file": ("A100", "H100"), "given": ("A100",), "plain": ()}
    capsys.readouterr()
    assert run(*SUBMIT, "--gpu-model", " ", "--", "true") == 125
    assert "--gpu-model names no model" in capsys.readouterr().err
    assert run("submit", "--gpus", "0", "--gpu-model", "A100", "--", "true") == 125


def test_an_objective_is_of_the_command_line_or_of_the_file(
    run: Run, client: FakeClient, tmp_path: Path, capsys: Any
) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(
        '[defaults]\nobjective = "soonest"\n[jobs.file]\ncommand = "true"\n[jobs.cpu]\ncommand = "true"\ngpus = 0\n'
        '[jobs.own]\ncommand = "true"\nobjective = "response"\n'
    )
    assert run("submit", str(path)) == 0
    assert run(*SUBMIT, "--name", "plain", "--", "true") == 0
    assert run(*SUBMIT, "--name", "given", "--objective", "soonest", "--", "true") == 0
    assert run("run", "-d", "--memory", "2GiB", "--name", "run", "--", "true") == 0
    soonest = {name for name, job in named(client).items() if job.request.objective is Objective.SOONEST}
    assert soonest == {"file", "cpu", "given", "run"}
    capsys.readouterr()
    assert run(*SUBMIT, "--objective", "makespan", "--", "true") == 125
    assert capsys.readouterr().err == (
        "pgpu: --objective 'makespan' is no objective [Ec1ff8]\npgpu: hint: write response or soonest\n"
    )


def test_a_dry_run_prints_a_table_or_a_queue_and_submits_nothing(
    run: Run, client: FakeClient, tmp_path: Path, capsys: Any
) -> None:
    assert run(*SUBMIT, "--dry-run", "--array", "3-4", "--", "true") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "simulated GPUs (rtx-3090): kernels compute nothing"
    assert lines[1].split() == ["JOB", "MEMORY", "PLACE", "STARTS", "GPU", "REASON"]
    assert [line.split() for line in lines[2:]] == [
        ["3", "2", "GiB", "1", "soon", GPU.place],
        ["4", "2", "GiB", "2", "soon", GPU.place],
    ]
    path = tmp_path / "jobs.toml"
    path.write_text(FILE)
    assert run("submit", "--dry-run", "--json", str(path)) == 0
    found = validate("queue", capsys.readouterr().out)
    assert {each["job"]["name"] for each in found["queue"]} == {"train-0", "train-3", "train-6", "train-9", "prepare"}
    assert found["queue"][0]["job"]["expected_gpu_uuids"] == [GPU.uuid]
    assert run(*SUBMIT, "--memory", "100GiB", "--dry-run", "--", "true") == 125
    assert client.stored == {}


def test_without_an_amount_pgpu_chooses_one(run: Run, client: FakeClient, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text("[jobs.one]\ncommand = 'true'")
    for words in (("--", "true"), ("--memory", "auto", "--", "true"), (str(path),)):
        assert run("submit", *words) == 0
    assert [job.request.is_estimated for job in client.stored.values()] == [True] * 3


def test_a_job_waits_for_those_that_it_goes_after(run: Run, client: FakeClient) -> None:
    for name in ("first", "second"):
        run(*SUBMIT, "--name", name, "--", "true")
    assert run(*SUBMIT, "--name", "last", "--after", "first", "--after", "second", "--", "true") == 0
    assert run("run", "-d", "--memory", "2GiB", "--name", "too", "--after", "first", "--", "true") == 0
    jobs = named(client)
    assert jobs["last"].place.after == (jobs["first"].id, jobs["second"].id)
    assert jobs["too"].place.after == (jobs["first"].id,)


def test_a_process_may_have_a_name_of_one_letter_and_arguments_of_any_bytes(run: Run, client: FakeClient) -> None:
    assert run(*SUBMIT, "--name", "x", "--", "true", "\udcff") == 0
    assert named(client)["x"].spec.command == ("true", "\udcff")


@pytest.mark.parametrize(
    ("words", "indices", "most"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("0-9:4", (0, 4, 8), None),
        ("7,1,3", (7, 1, 3), None),
        ("5", (5,), None),
        ("0-1,1-2,9%3", (0, 1, 2, 9), 3),
    ],
)
def test_an_array_is_a_job_for_each_index(
    run: Run, client: FakeClient, capsys: Any, words: str, indices: Sequence[int], most: int | None
) -> None:
    assert run(*SUBMIT, "--array", words, "--", "true") == 0
    jobs = list(client.stored.values())
    assert [job.place.array_index for job in jobs] == list(indices)
    assert {job.place.array_most_at_once for job in jobs} == {most}
    assert capsys.readouterr().out == f"{jobs[0].place.array_id}\n"


def test_a_file_of_jobs_is_read_with_its_defaults(run: Run, client: FakeClient, capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(FILE)
    assert run("submit", str(path)) == 0
    jobs = named(client)
    assert list(jobs) == ["prepare", "train-0", "train-3", "train-6", "train-9"]
    prepare, train = jobs["prepare"], jobs["train-3"]
    assert prepare.spec.command == ("sh", "-c", "echo two words")
    assert (prepare.request.memory_bytes, train.request.memory_bytes) == (4 * GIB, 2 * GIB)
    assert (prepare.request.priority, train.request.priority) == (7, -50)
    assert train.place.after == (prepare.id,)
    assert dict(train.spec.environment) == {"A": "own", "B": "1"}
    assert (train.place.array_id, train.place.array_index) == (jobs["train-0"].place.array_id, 3)
    assert train.place.array_most_at_once == 2
    assert client.waits == [None, 300.0, 300.0, 300.0, 300.0]
    assert capsys.readouterr().out.split() == [prepare.id, train.place.array_id]


def test_a_file_that_is_an_argument_of_an_image_is_no_file_of_jobs(run: Run, client: FakeClient) -> None:
    assert run(*SUBMIT, "--image", "img", "--", "config.toml") == 0
    assert next(iter(client.stored.values())).spec.command == ("config.toml",)


def test_submitted_jobs_are_printed_as_their_schema_promises(run: Run, capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(FILE)
    assert run("submit", "--json", str(path)) == 0
    shown = validate("jobs", capsys.readouterr().out)["jobs"]
    assert [job["place"]["array_index"] for job in shown] == [None, 0, 3, 6, 9]


BAD_WORDS = [
    ((*SUBMIT,), "no command", None),
    ((*SUBMIT, "--priority", "urgent", "--", "true"), "--priority 'urgent' is not a priority", "-100 to 100"),
    ((*SUBMIT, "--priority", "101", "--", "true"), "--priority '101' is not a priority", "-100 to 100"),
    ((*SUBMIT, "--after", "nobody", "--", "true"), "0 jobs are called nobody", None),
    ((*SUBMIT, "--array", "", "--", "true"), "--array '' cannot be read", "0-9:2"),
    ((*SUBMIT, "--array", "a-b", "--", "true"), "cannot be read", "0-9:2"),
    ((*SUBMIT, "--array", "3:2", "--", "true"), "cannot be read", "0-9:2"),
    ((*SUBMIT, "--array", "0-9:0", "--", "true"), "cannot be read", "0-9:2"),
    ((*SUBMIT, "--array", "9-0", "--", "true"), "nothing from 9 to 0", "0-9:2"),
    ((*SUBMIT, "--array", "0-9%", "--", "true"), "not a number", "0-99%4"),
    ((*SUBMIT, "--array", "0-9%0", "--", "true"), "at least one", "0-9%2"),
    ((*SUBMIT, "--array", "0-10000", "--", "true"), "at most 10000", "several"),
    ((*SUBMIT, "--array", "0-99999999999999", "--", "true"), "cannot be read", None),
    ((*SUBMIT, "--array", "0-9999,10000-10001", "--", "true"), "at most 10000", "several"),
    ((*SUBMIT, "--wait-timeout", "soon", "--", "true"), "not a duration", "30s"),
    ((*SUBMIT, "--priority", "9" * 5000, "--", "true"), "--priority '999", "-100 to 100"),
    ((*SUBMIT, "--wait-timeout", "9" * 5000, "--", "true"), "not a duration", "30s"),
    (("submit", "--memory", "9" * 5000 + "GiB", "--", "true"), "not an amount", "4GiB"),
    ((*SUBMIT, "--gpus", "9" * 5000, "--", "true"), "--gpus", None),
    ((*SUBMIT, "--gpus", "0", "--", "true"), "requests none", None),
    ((*SUBMIT, "--", ""), "no command", None),
    ((*SUBMIT, "--env", "A=" + "x" * (128 << 10), "--", "true"), "a variable is longer than 128 KiB", "a file"),
    ((*SUBMIT, "--image", "img", "--name", "x", "--", "true"), "'x' is not a valid container name", "two characters"),
    ((*SUBMIT, "--image", "img", "--", "a\udcff"), "an argument of a container must be UTF-8: 'a\\udcff'", None),
    ((*SUBMIT, "--name", "", "--", "true"), "'' is not a valid name", "letters"),
    ((*SUBMIT, "--name", "-x", "--", "true"), "'-x' is not a valid name", "letters"),
    *(
        ((*SUBMIT, "--name", name, "--", "true"), "is not a valid name", "letters")
        for name in ("\u3164", "a\u115f", "\u1160b", "x\uffa0", "k\u17b4", "k\u17b5", "v\ufe0f", "g\u034f")
    ),
    ((*SUBMIT, "--name", "x" * 127, "--array", "0-10", "--", "true"), "is too long", "index included"),
    ((*SUBMIT, "--workdir", "\udcff", "--", "true"), "no such directory", None),
    ((*SUBMIT, "--env-file", "\udcff", "--", "true"), "cannot be read", None),
    ((*SUBMIT, "--image", "img", "--volume", "~nobody-here:/a", "--", "true"), "is not a home directory", None),
    (("submit", "nowhere.toml"), "nowhere.toml cannot be read", None),
    (("submit", "--memory", "2GiB", "nowhere.toml"), "--memory is for one job", "[defaults]"),
    ((*SUBMIT, "--time-limit", "60", "--", "true"), "'60' is ambiguous as a time limit", "60m"),
    ((*SUBMIT, "--on-time-limit", "mark", "--", "true"), "--on-time-limit needs a limit", "--time-limit"),
    ((*SUBMIT, "--begin", "soon", "--", "true"), "'soon' is not a time", "16:00"),
    (("hold", "x"), "0 jobs", None),
    (("cancel",), "Missing argument", "--help"),
    (("cancel", "x"), "0 jobs", None),
    (("cancel", "--time", "soon", "x"), "not a duration", None),
]


def complains(run: Run, client: FakeClient, capsys: Any, words: Sequence[str], says: str, hint: str | None) -> None:
    assert run(*words) == 125
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert says in lines[0]
    assert len(lines) <= 2
    assert hint is None or hint in lines[1]
    assert not client.stored


@pytest.mark.parametrize(
    ("words", "says", "hint"), BAD_WORDS, ids=lambda value: " ".join(value)[:80] if isinstance(value, tuple) else ""
)
def test_bad_words_get_one_line_and_change_nothing(
    run: Run, client: FakeClient, capsys: Any, words: tuple[str, ...], says: str, hint: str | None
) -> None:
    complains(run, client, capsys, words, says, hint)


GOOD_JOB = '[jobs.good]\nmemory = "2GiB"\ncommand = "true"\n'
BAD_FILES = [
    ("jobs = 3", "no jobs in it", "[jobs.NAME]"),
    ("", "no jobs in it", "[jobs.NAME]"),
    ("[jobs", "is not TOML", None),
    ('[default]\nmemory = "2GiB"\n' + GOOD_JOB, "'default' is no key", "did you mean defaults?"),
    (GOOD_JOB + "[jobs.bad]\nmemroy = 3", "jobs.bad: 'memroy' is no key", "did you mean memory?"),
    (GOOD_JOB + "[jobs.bad]\nxyzzy = 3", "'xyzzy' is no key", "the keys are command"),
    (GOOD_JOB + "[jobs]\nbad = 3", "jobs.bad is no table", "[jobs.bad]"),
    ("jobs.bad = 3\n" + GOOD_JOB, "jobs.bad is no table", "[jobs.bad]"),
    (GOOD_JOB + "[jobs.bad]\nmemory = '2GiB'", "jobs.bad: there is no command", None),
    (GOOD_JOB + "[jobs.bad]\nmemory = '4G'\ncommand = 'x'", "ambiguous", None),
    (GOOD_JOB + "[jobs.bad]\nmemory = '99GiB'\ncommand = 'x'", "no GPU here has that much", None),
    (GOOD_JOB + '[jobs.bad]\ncommand = "it\'s"', "jobs.bad: command must be a command", None),
    (GOOD_JOB + "[jobs.bad]\ncommand = [1, 2]", "command must be text or a list of texts", None),
    (GOOD_JOB + "[jobs.bad]\ngpus = true", "gpus must be a whole number", None),
    (GOOD_JOB + "[jobs.bad]\ngpus = " + "9" * 5000, "is not TOML", None),
    (GOOD_JOB + "[jobs.bad]\ngpus = 0x" + "f" * 5000, "jobs.bad: gpus must be a number of at most 18 digits", None),
    (GOOD_JOB + "[jobs.bad]\npriority = 0x" + "f" * 5000, "priority must be a number of at most 18 digits", None),
    (GOOD_JOB + "[jobs.bad]\ncommand = 'x'\npriority = '" + "9" * 5000 + "'", "jobs.bad: --priority '999", None),
    (GOOD_JOB + "[jobs.bad]\ncommand = 'x'\nmemory = '" + "9" * 5000 + "'", "jobs.bad: '999", "4GiB"),
    (GOOD_JOB + "[jobs.bad]\ncommand = 'x'\nmemory = nan", "jobs.bad: 'nan' is not an amount", "4GiB"),
    (GOOD_JOB + "[jobs.bad]\ncommand = ['a', 'b\\u0000']".replace("'", '"'), "an argument holds a zero byte", None),
    (GOOD_JOB + '[jobs.bad]\ncommand = "x"\nenv = { A = "\\u0000" }', "jobs.bad: --env 'A=", None),
    (
        GOOD_JOB + '[jobs.bad]\ncommand = "x"\nenv = { "A=B" = 3 }',
        "env must be a table of variables, whose names",
        None,
    ),
    (GOOD_JOB + '[jobs.bad]\ncommand = "x"\nworkdir = "\\u0000"', "no such directory", None),
    (GOOD_JOB + '[jobs.bad]\ncommand = "x"\nenv-file = "\\u0000"', "cannot be read", None),
    (GOOD_JOB + '[jobs.bad]\ncommand = "x"\nafter = "\\u0000"', "0 jobs are called", None),
    (GOOD_JOB + '[jobs.bad]\ncommand = "x"\nimage = "\\u0000"', "the image holds a zero byte", None),
    (GOOD_JOB + '[jobs.bad]\ncommand = ""', "jobs.bad: there is no command", None),
    (GOOD_JOB + '[jobs.bad]\ncommand = [""]', "jobs.bad: there is no command", None),
    (GOOD_JOB + '[jobs.""]\ncommand = "x"', "'' is not a valid name", "letters"),
    ("a = " + "[" * 5000, "is not TOML", None),
    ("[[jobs]]\ncommand = 'x'", "there are no jobs in it", "[jobs.NAME]"),
    ("defaults = 3\n" + GOOD_JOB, "defaults is no table", "[defaults]"),
    (GOOD_JOB + "[jobs.bad]\nrm = 'no'", "rm must be true or false", None),
    (GOOD_JOB + "[jobs.bad]\nenv = { A = [] }", "env must be a table", None),
    (GOOD_JOB + "[jobs.bad]\nenv = 3", "env must be text or a list of texts", None),
    (GOOD_JOB + "[jobs.bad]\nimage = 3", "image must be text", None),
    (GOOD_JOB + "[jobs.bad]\nmemory = true", "memory must be text or a number", None),
    (GOOD_JOB + "[jobs.'a b']\nmemory = '2GiB'\ncommand = 'x'", "not a valid name", None),
    (GOOD_JOB + "[jobs.bad]\nmemory = '2GiB'\ncommand = 'x'\nafter = 'who'", "0 jobs are called who", None),
    (GOOD_JOB + "[jobs.bad]\nmemory = '2GiB'\ncommand = 'x'\narray = '9-0'", "jobs.bad: --array '9-0'", None),
    (GOOD_JOB + "[jobs.bad]\nmemory = '2GiB'\ncommand = 'x'\nwait-timeout = 'soon'", "jobs.bad: 'soon'", None),
    (
        "[defaults]\nmemory = '2GiB'\ncommand = 'x'\n[jobs.aa]\nafter = 'bb'\n[jobs.bb]\nafter = ['aa']",
        "would wait for each other: aa → bb → aa",
        "leave one",
    ),
]


@pytest.mark.parametrize(("text", "says", "hint"), BAD_FILES, ids=[says for _, says, _ in BAD_FILES])
def test_a_bad_file_of_jobs_gets_one_line_and_changes_nothing(
    run: Run, client: FakeClient, capsys: Any, tmp_path: Path, text: str, says: str, hint: str | None
) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    complains(run, client, capsys, ("submit", str(path)), says, hint)


TOML_TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["2GiB", "auto", "0-9%2", "5m", "good"]),
)
TOML_VALUES = st.recursive(
    st.one_of(
        TOML_TEXTS.map(json.dumps),
        st.integers().map(str),
        st.floats().map(str),
        st.sampled_from(["true", "1979-05-27T07:32:00Z", "07:32:00", "0x" + "f" * 4000, '"\\u0000"', '""', "[]"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.dictionaries(TOML_TEXTS.map(json.dumps), inner, max_size=3).map(
            lambda parts: "{ " + ", ".join(f"{key} = {value}" for key, value in parts.items()) + " }"
        ),
    ),
    max_leaves=4,
)
TABLES = st.dictionaries(st.sampled_from(sorted(KEYS)), TOML_VALUES, max_size=4)


def read_settings(flags: Mapping[str, str | None]) -> Settings:
    return load_settings(flags, {}, Path("/nowhere"))


@settings(max_examples=100, deadline=None)
@given(TABLES, TABLES, TOML_TEXTS.map(json.dumps))
def test_whatever_a_file_of_jobs_holds_it_is_read_or_refused_with_its_name(
    tmp_path_factory: pytest.TempPathFactory, defaults: dict[str, str], job: dict[str, str], name: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    lines = ["[defaults]", *map(" = ".join, defaults.items()), f"[jobs.{name}]", *map(" = ".join, job.items())]
    path.write_text("\n".join(lines), encoding="utf-8")
    refusal, submissions = "", []
    try:
        submissions = read_job_file(path, read_settings)
    except RequestError as exc:
        refusal = str(exc)
    assert submissions or refusal.startswith(str(path))


def test_a_file_of_bytes_is_refused(run: Run, client: FakeClient, capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_bytes(b"\xff\xfe")
    complains(run, client, capsys, ("submit", str(path)), "cannot be read", None)


def test_the_queue_shows_places_starts_and_those_that_are_held(run: Run, capsys: Any) -> None:
    run(*SUBMIT, "--name", "runs", "--", "true")
    run("submit", "--memory", "23GiB", "--name", "large", "--", "true")
    run(*SUBMIT, "--name", "later", "--after", "runs", "--", "true")
    capsys.readouterr()
    assert run("queue") == 0
    lines = capsys.readouterr().out.splitlines()
    titles = ["PLACE", "JOB", "NAME", "USER", "PRIORITY", "MEMORY", "WAITED", "STARTS", "REASON"]
    assert lines[1].split() == titles
    assert [line.split()[0] for line in lines[2:]] == ["1", "dependency"]
    assert "no room" in lines[2]
    assert run("queue", "--json") == 0
    shown = validate("queue", capsys.readouterr().out)["queue"]
    assert [(each["position"], each["job"]["name"]) for each in shown] == [(1, "large"), (None, "later")]


def test_cancel_takes_single_jobs_and_whole_arrays(run: Run, client: FakeClient, capsys: Any) -> None:
    run(*SUBMIT, "--name", "runs", "--", "true")
    capsys.readouterr()
    run(*SUBMIT, "--array", "0-2", "--after", "runs", "--", "true")
    array_id = capsys.readouterr().out.strip()
    assert run("cancel", array_id, "runs") == 0
    assert len(capsys.readouterr().out.split()) == 4
    states = [job.state for job in client.stored.values()]
    assert states == [JobState.EXITED, *[JobState.CANCELLED] * 3]
    assert run("cancel", "--json", "runs") == 0
    validate("jobs", capsys.readouterr().out)


def test_one_word_that_names_no_job_cancels_nothing(run: Run, client: FakeClient, capsys: Any) -> None:
    run(*SUBMIT, "--name", "runs", "--", "true")
    capsys.readouterr()
    assert run("cancel", "runs", "nobody") == 125
    assert named(client)["runs"].state is JobState.RUNNING


def test_stop_and_wait_take_whole_arrays(run: Run, client: FakeClient, capsys: Any) -> None:
    run(*SUBMIT, "--array", "0-2", "--", "true")
    array_id = capsys.readouterr().out.strip()
    assert run("wait", array_id) == 0
    assert capsys.readouterr().out == "0\n0\n0\n"
    assert run("stop", array_id, "nobody") == 125
    assert len(capsys.readouterr().out.split()) == 3
    assert all(job.state is JobState.EXITED for job in client.stored.values())


def test_ps_says_which_leases_are_on_offer_or_taken(run: Run, client: FakeClient, capsys: Any) -> None:
    spec = JobSpec(("front",), "process", serves="detector")
    first, second = (client.submit(spec, Request(9 * GIB), wait_timeout_seconds=None) for _ in range(2))
    client.offer(first.id, 0.5)
    client.stored[second.id] = replace(second, offered_value=1.0, reclaimed_at_seconds=1.0)
    assert run("ps") == 0
    shown = capsys.readouterr().out.splitlines()
    assert " idle " in shown[2]
    assert " leaving " in shown[3]
    assert "serves detector" in shown[3]
    assert run("ps", "--json") == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    told = [(job["serves"], job["offered_value"], job["reclaimed_at_seconds"]) for job in jobs]
    assert told == [("detector", 0.5, None), ("detector", 1.0, 1.0)]


def test_ps_marks_processes_outside_of_every_lease(run: Run, client: FakeClient, capsys: Any) -> None:
    for words in (("ps",), ("ps", "--json"), ("ps", "-q")):
        client.outside = [Outsider(GPU.uuid, ProcessHolder(4711, 1, "boot"), 2 * GIB, "python3", 1000)]
        assert run(*words) == 0
        is_marked = "process 4711 (python3) of user 1000 holds 2 GiB" in capsys.readouterr().err
        assert is_marked is (words == ("ps",))


def test_a_limit_a_begin_and_a_hold_reach_the_client_from_words_and_from_a_file(
    run: Run, client: FakeClient, tmp_path: Path
) -> None:
    assert run(*SUBMIT, "--name", "word", "--time", "90m", "--on-time-limit", "mark", "--hold", "--", "true") == 0
    path = tmp_path / "jobs.toml"
    path.write_text('[jobs.file]\ncommand = "true"\nmemory = "2GiB"\ntime-limit = "1:30:00"\nbegin = "now+1h"\n')
    assert run("submit", str(path)) == 0
    jobs = named(client)
    assert jobs["word"].request.time_limit_seconds == jobs["file"].request.time_limit_seconds == 5400
    assert (jobs["word"].request.on_time_limit, jobs["word"].held_by_uid) == (OnTimeLimit.MARK, OWNER_UID)
    assert jobs["file"].begin_at_seconds is not None


def test_hold_and_release_print_ids_and_ps_shows_who_is_held(run: Run, client: FakeClient, capsys: Any) -> None:
    run(*SUBMIT, "--name", "one", "--hold", "--", "true")
    capsys.readouterr()
    assert run("ps") == 0
    assert " held " in capsys.readouterr().out
    assert run("release", "one") == 0
    assert capsys.readouterr().out.strip() == named(client)["one"].id
    assert run("hold", "one", "--json") == 0
    [job] = validate("jobs", capsys.readouterr().out)["jobs"]
    assert job["held_by_uid"] == OWNER_UID
    assert run("queue") == 0
    assert capsys.readouterr().out.splitlines()[2].split()[0] == "held"


def test_ps_shows_what_is_left_of_a_time_limit(run: Run, capsys: Any) -> None:
    run(*SUBMIT, "--name", "one", "--time-limit", "2h", "--", "true")
    capsys.readouterr()
    assert run("ps", "-o", "wide") == 0
    titles, row = capsys.readouterr().out.splitlines()[1:]
    assert "LEFT" in titles
    assert " 2h " in row


def test_usage_shows_hours_waste_and_quota(run: Run, client: FakeClient, capsys: Any) -> None:
    hours = GpuHours(100.0, Period.WEEK, 12.5, 2e9)
    client.usages = [
        UsageReport(UserUsage(0, 3, 7200.0, 7200.0 * 8 * GIB, 7200.0 * 2 * GIB), hours),
        UsageReport(UserUsage(61001)),
    ]
    assert run("usage") == 0
    titles, first, second = capsys.readouterr().out.splitlines()
    assert "GPU HOURS" in titles
    assert first.split() == ["root", "3", "2.00", "16.00", "4.00", "75%", "12.50", "of", "100", "this", "week"]
    assert second.split() == ["61001", "0", "0.00", "0.00", "0.00"]
    assert run("usage", "--user", "root", "--since", "30d", "-o", "json") == 0
    [user] = validate("usage", capsys.readouterr().out)["users"]
    assert (user["uid"], user["gpu_hours_quota"]["used"]) == (0, 12.5)
    complains(run, client, capsys, ("usage", "--since", "ever"), "no time of the past", "7d")
    complains(run, client, capsys, ("usage", "--user", "no-such-user"), "has no user", None)


def test_usage_shares_names_the_next_user_and_how_far_others_are_behind(
    run: Run, client: FakeClient, capsys: Any
) -> None:
    client.users = [
        UserShare(0, 1.0, 0.25, 3, 0.0),
        UserShare(-1, 2.0, 0.75, 1, 5400.0),
        UserShare(DOCKER_UID, 1.0, 0.0, 0, None),
    ]
    assert run("usage", "--shares") == 0
    titles, first, second, third = (line.strip() for line in capsys.readouterr().out.splitlines())
    assert titles.split() == ["USER", "WEIGHT", "HOLDS", "WAITING", "TURN"]
    assert first.endswith("next: it has had least of the machine, by weight")
    assert second.startswith("another user")
    assert second.endswith("later: it has had 1h 30m more of the whole machine, by weight")
    assert third.split()[:4] == ["docker", "1", "0%", "0"]
    assert run("usage", "--shares", "--json") == 0
    shares = validate("shares", capsys.readouterr().out)["shares"]
    assert [each["behind_seconds"] for each in shares] == [0.0, 5400.0, None]
    for words, says in ((("--user", "root"), "all users"), (("-q",), "a line for each user")):
        assert run("usage", "--shares", *words) == 2
        assert says in capsys.readouterr().err
