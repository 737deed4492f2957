"""The command line over a client that runs nothing: words in, documents, lines and exit codes out."""

import json
import signal
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource
from tests.fakes.client import FakeClient, Outcome
from tests.unit.conftest import Run

from pgpu.cli import exits, options
from pgpu.cli.invocation import Invocation
from pgpu.cli.main import main
from pgpu.cli.output import documents
from pgpu.client import Client
from pgpu.errors import RequestError
from pgpu.lab.report import Report, Table
from pgpu.model import GpuSeries, Job, JobSpec, JobState, Request
from pgpu.structs import fields, replace
from pgpu.units import GIB, MIB


def _schemas() -> dict[str, Any]:
    folder = files("pgpu.cli") / "schemas"
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".json")}
    return {name: json.loads(text) for name, text in texts.items()}


def validate(name: str, text: str) -> Any:
    schemas = _schemas()
    registry: Registry[Any] = Registry().with_resources(
        (key, Resource.from_contents(schema)) for key, schema in schemas.items()
    )
    content = json.loads(text)
    jsonschema.Draft202012Validator(schemas[f"{name}.schema.json"], registry=registry).validate(content)
    return content


def test_a_job_s_exit_code_is_the_exit_code(run: Run, client: FakeClient) -> None:
    client.outcome = Outcome(exit_code=7)
    assert run("run", "--memory", "2GiB", "--", "true") == 7


def test_stdout_belongs_to_the_job(run: Run, client: FakeClient, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    client.outcome = Outcome(stdout=b"\x00job", stderr=b"complaint\n")
    run("run", "--memory", "2GiB", "--", "true")
    captured = capfdbinary.readouterr()
    assert captured.out == b"\x00job"
    assert b"simulated rtx-3090" in captured.err


def test_a_command_keeps_its_own_options_without_a_separator(run: Run, client: FakeClient) -> None:
    assert run("run", "-m", "2GiB", "python", "-c", "1", "--json") == 0
    assert client.job("1".rjust(12, "0")).job.spec.command == ("python", "-c", "1", "--json")


def test_words_of_run_become_a_job(run: Run, client: FakeClient, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PASSED", "on")
    (tmp_path / "env").write_text("# comment\n\nA=1\nPASSED\nUNSET_BEFORE\n")
    words = (
        f"run -d --memory 4g --gpus 2 --image img --env-file {tmp_path}/env -e A=2 -e B=x=y -v /data:/data:ro"
        " -v vol:/v -w /w --user 1000:1000 --name one --keep --wait-for-memory 30s -i -t -- CMD a b"
    )
    assert run(*words.split()) == 0
    job = client.job("one").job
    assert job.request.memory_bytes == 4 * 2**30
    assert job.request.gpu_count == 2
    assert job.spec.environment == (("A", "1"), ("PASSED", "on"), ("A", "2"), ("B", "x=y"))
    assert [(mount.source, mount.target, mount.options) for mount in job.spec.volumes] == [
        ("/data", "/data", "ro"),
        ("vol", "/v", ""),
    ]
    assert (job.spec.runtime, job.spec.image, job.spec.user) == ("docker", "img", "1000:1000")
    assert (job.spec.working_directory, job.spec.remove, job.spec.wait_for_memory_seconds) == ("/w", False, 30)
    assert job.spec.wants_stdin
    assert job.spec.wants_tty


def test_a_relative_host_path_is_made_absolute(run: Run, client: FakeClient, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    run("run", "-d", "-m", "2GiB", "--image", "img", "-v", "./data:/data")
    assert client.job("0").job.spec.volumes[0].source == str(tmp_path / "data")


def test_a_process_starts_where_its_asker_is(run: Run, client: FakeClient, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    run("run", "-d", "-m", "2GiB", "true")
    assert client.job("0").job.spec.working_directory == str(tmp_path)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [((), None), (("--wait-timeout", "5m"), 300.0), (("--no-wait",), 0.0), (("--wait-timeout", "forever"), None)],
)
def test_the_wait_is_as_long_as_asked(run: Run, client: FakeClient, words: tuple[str, ...], seconds: Any) -> None:
    run("run", "--memory", "2GiB", *words, "--", "true")
    assert client.waits == [seconds]


def test_the_environment_may_say_how_long_to_wait(run: Run, client: FakeClient, monkeypatch: Any) -> None:
    monkeypatch.setenv("PGPU_WAIT_TIMEOUT", "7s")
    run("run", "--memory", "2GiB", "--", "true")
    assert client.waits == [7.0]


@pytest.mark.parametrize(("code", "error"), [(127, "no such command"), (126, "no permission"), (None, "lost")])
def test_a_job_that_could_not_start_says_why(run: Run, client: FakeClient, capsys: Any, code: Any, error: str) -> None:
    client.outcome = Outcome(exit_code=code, error=error)
    assert run("run", "--memory", "2GiB", "--", "x") == (code or 125)
    assert f"pgpu: {error}" in capsys.readouterr().err


BAD = [
    (("run", "--", "true"), "--memory is missing", "--memory 2GiB"),
    (("run", "--memory", "0", "--", "true"), "less than 1 MiB", "4GiB"),
    (("run", "--memory", "-1", "--", "true"), "'-1' is not an amount", "4GiB"),
    (("run", "--memory", "12 parsecs", "--", "true"), "'12 parsecs' is not an amount", "4GiB"),
    (("run", "--memory", "4G", "--", "true"), "ambiguous", "GiB for powers of 1024"),
    (("run", "--memory", "999GiB", "--", "true"), "no GPU here has that much", None),
    (("run", "--memory", "2GiB"), "no command", "-- COMMAND"),
    (("run", "--memory", "2GiB", "--gpus", "0", "true"), "requests none", None),
    (("run", "--memory", "2GiB", "--gpus", "-1", "true"), "not a number of GPUs", None),
    (("run", "--gpus", "0", "--compute", "30%", "true"), "without a GPU", None),
    (("run", "--memory", "2GiB", "--gpus", "two", "true"), "--gpus", "--help"),
    (("run", "--memory", "2GiB", "-v", "/a:/a", "true"), "--volume needs a container", "--image"),
    (("run", "--memory", "2GiB", "-u", "1", "true"), "--user needs a container", "--image"),
    (("run", "--memory", "2GiB", "--image", "i", "-v", "nowhere", "true"), "not HOST:CONTAINER", "/data"),
    (("run", "--memory", "2GiB", "-e", "=x", "true"), "not KEY=VALUE", None),
    (("run", "--memory", "2GiB", "--env-file", "/nowhere", "true"), "cannot be read", None),
    (("run", "--memory", "2GiB", "--name", "a b", "true"), "not a valid name", "letters"),
    (("run", "--memory", "2GiB", "-w", "/nowhere", "true"), "no such directory", None),
    (("run", "--memory", "2GiB", "--wait-timeout", "soon", "true"), "not a duration", "30s"),
    (("run", "--memory", "2GiB", "--wait-for-memory", "soon", "true"), "not a duration", "30s"),
    (("run", "--memory", "2GiB", "-i", "-t", "true"), "needs a terminal", None),
    (("run", "--bogus"), "No such option", "pgpu run --help"),
    (("run", "--simulate", "RTX 3090", "true"), "--simulate is an option of pgpu itself", "before the verb"),
    (("bogus",), "No such command", "pgpu --help"),
    (("resize", "x", "--memory", "4G"), "ambiguous", None),
    (("resize", "x", "--memory", "4GiB"), "0 jobs", "ps --all"),
    (("stop", "x"), "0 jobs", None),
    (("wait", "x"), "0 jobs", None),
    (("logs", "x"), "0 jobs", None),
    (("logs", "x", "--tail", "some"), "no number of lines", None),
    (("logs", "x", "--tail", "9" * 5000), "no number of lines", None),
    (("rollout", "f@" + "9" * 5000), "names no version", None),
    (("stop",), "Missing argument", "--help"),
]


@pytest.mark.parametrize(
    ("words", "says", "hints"), BAD, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_bad_input_gets_one_line_and_changes_nothing(
    run: Run, client: FakeClient, capsys: Any, words: tuple[str, ...], says: str, hints: str | None
) -> None:
    assert run(*words) == 125
    captured = capsys.readouterr()
    lines = captured.err.splitlines()
    assert captured.out == ""
    assert says in lines[0]
    assert len(lines) <= 2
    assert hints is None or hints in lines[1]
    assert not client.stored


@pytest.mark.parametrize("port", ["", "-1", "65536", "9" * 5000, "²"])
def test_an_address_without_a_port_is_one_line(port: str) -> None:
    """A number of more than 4,300 digits is more than Python's int() reads."""
    with pytest.raises(RequestError) as caught:
        options.read_address("--tcp", f"127.0.0.1:{port}", "write --tcp 127.0.0.1:7878")
    assert "is not ADDRESS:PORT" in str(caught.value)
    assert len(str(caught.value)) < 100
    assert options.read_address("--tcp", "[::1]:65535", "") == ("::1", 65535)


def test_no_words_at_all_ask_for_help(run: Run, capsys: Any) -> None:
    for words in ((), ("experiment",)):
        assert run(*words) == 0
        assert "Commands:" in capsys.readouterr().out


def test_options_after_the_command_are_the_command_s_and_say_nothing_of_pgpu_s_errors(run: Run, capsys: Any) -> None:
    """As `docker run IMAGE --rm`: what follows the first word that is no option is passed on."""
    assert run("run", "--memory", "999GiB", "nvidia-smi", "--json") == 125
    complaint = capsys.readouterr().err
    assert complaint.startswith("pgpu: ")
    assert run("run", "--json", "--memory", "999GiB", "nvidia-smi") == 125
    assert json.loads(capsys.readouterr().err)["error"]["exit_code"] == 125


def test_errors_are_json_where_json_was_asked(run: Run, capsys: Any) -> None:
    for words, code in (
        (("run", "--json", "--memory", "999GiB", "--", "x"), 125),
        (("ps", "--json", "--bogus"), 2),
        (("ps", "-o", "json", "--bogus"), 2),
        (("ps", "-o", "json", "--filter", "x"), 2),
        (("ps", "-o", "json", "--last=3", "--filter", "x"), 2),
        (("logs", "--json", "x"), 125),
    ):
        assert run(*words) == code
        error = validate("error", capsys.readouterr().err)["error"]
        assert error["exit_code"] == code
        assert error["message"]


def test_a_bug_is_one_line_and_a_file(capsys: Any) -> None:
    def broken(_settings: Any) -> Client:
        raise ZeroDivisionError("oops \udcff")

    assert main(("ps",), Invocation(make_client=broken)) == 125
    said = capsys.readouterr().err
    path = Path(said.rsplit(" ", 1)[1].strip())
    details = path.read_text()
    path.unlink()
    assert r"bug of pgpu: ZeroDivisionError: oops \xff" in said
    assert "Traceback" not in said
    assert "Traceback" in details


def test_verbs_print_documents_as_their_schemas_promise(run: Run, client: FakeClient, capsys: Any) -> None:
    client.outcome = Outcome(stdout=b"hello\n", exit_code=3)
    assert run("run", "-d", "--json", "--memory", "2GiB", "--name", "first", "--", "true") == 0
    assert validate("job", capsys.readouterr().out)["job"]["state"] == "running"
    minute = int(time.time()) // 60 * 60
    client.series = [GpuSeries("GPU-0", (minute,), (2 * GIB,), (GIB,), (None,))]
    for words, schema in (
        (("ps",), "jobs"),
        (("gpus",), "gpus"),
        (("top",), "top"),
        (("resize", "first", "--memory", "3GiB"), "job"),
        (("wait", "first"), "jobs"),
        (("stop", "first"), "jobs"),
        (("ps", "-a"), "jobs"),
        (("version",), "version"),
        (("history", "--gpu"), "gpu-history"),
    ):
        assert run(*words, "--json") == 0
        validate(schema, capsys.readouterr().out)
    assert run("logs", "--json", "first") == 0
    pieces = [validate("log", line) for line in capsys.readouterr().out.splitlines()]
    assert pieces[0] == {"schema_version": 1, "stream": "stdout", "text": "hello\n"}


def test_run_with_json_leaves_stdout_to_the_job(run: Run, client: FakeClient, capfd: Any) -> None:
    client.outcome = Outcome(stdout=b"theirs", exit_code=3)
    assert run("run", "--json", "--memory", "2GiB", "--", "true") == 3
    captured = capfd.readouterr()
    assert captured.out == "theirs"
    assert validate("job", captured.err)["job"]["exit_code"] == 3


def test_ps_shows_what_runs_and_all_shows_what_ended(run: Run, capsys: Any) -> None:
    run("run", "--memory", "2GiB", "--name", "ended", "--", "true")
    run("run", "-d", "--memory", "2GiB", "--name", "runs", "--", "sleep", "1")
    capsys.readouterr()
    run("ps")
    shown = capsys.readouterr().out
    assert "runs" in shown
    assert "ended" not in shown
    run("ps", "--all")
    assert "ended" in capsys.readouterr().out


def test_wait_prints_exit_codes(run: Run, client: FakeClient, capsys: Any) -> None:
    client.outcome = Outcome(exit_code=9)
    run("run", "-d", "--memory", "2GiB", "--name", "one", "--", "true")
    capsys.readouterr()
    assert run("wait", "one") == 0
    assert capsys.readouterr().out == "9\n"


def test_stop_goes_on_past_a_job_that_does_not_exist(run: Run, client: FakeClient, capsys: Any) -> None:
    run("run", "-d", "--memory", "2GiB", "--name", "one", "--", "true")
    capsys.readouterr()
    assert run("stop", "nobody", "one") == 125
    assert client.job("one").job.state.is_final


def test_logs_can_be_cut_to_the_last_lines(run: Run, client: FakeClient, capfd: Any) -> None:
    client.outcome = Outcome(stdout=b"1\n2\n3\n", stderr=b"e\n")
    run("run", "-d", "--memory", "2GiB", "--name", "one", "--", "true")
    capfd.readouterr()
    assert run("logs", "--tail", "2", "one") == 0
    assert capfd.readouterr() == ("2\n3\n", "e\n")


def test_an_experiment_s_report_is_as_its_schema_promises() -> None:
    table = Table("P1", ("jobs", "min s", "failed"), ((25, 8.6, "0"), (24, None, "6")))
    report = Report("p1", "RTX 3090", True, "process", {"seed": 0}, table, ("none failed",), (Path("p1.csv"),))
    content = validate("experiment", json.dumps(documents.document(report=report.as_json())))
    assert content["report"]["table"][1]["min s"] is None


def test_every_fact_of_a_job_is_in_its_document(run: Run, capsys: Any) -> None:
    run("run", "-d", "--json", "--memory", "2GiB", "--", "true")
    shown = validate("job", capsys.readouterr().out)["job"]
    assert {field.name for field in fields(Job)} - {"spec"} <= set(shown)


def test_a_warning_is_said_once_the_job_ended(run: Run, client: FakeClient, capsys: Any) -> None:
    client.outcome = Outcome(warning="held 3 GiB of a slice of 2 GiB")
    assert run("run", "--memory", "2GiB", "--", "true") == 0
    assert "pgpu: held 3 GiB of a slice of 2 GiB" in capsys.readouterr().err


def test_the_note_on_a_wait_repeats_no_word(run: Run, client: FakeClient, capsys: Any) -> None:
    run("run", "--detach", "--memory", "23GiB", "--", "true")
    client.reasons = ["waits for 2 GiB on one GPU: none is free", "waits its turn", None]
    capsys.readouterr()
    assert run("run", "--memory", "2GiB", "--", "true") == 0
    assert capsys.readouterr().err.splitlines() == [
        "pgpu: waiting: for 2 GiB on one GPU: none is free",
        "pgpu: waiting: its turn",
    ]


@pytest.mark.parametrize("is_advisory", [True, False])
def test_a_limit_that_the_job_could_have_dropped_is_told(
    run: Run, client: FakeClient, capsys: Any, is_advisory: bool
) -> None:
    client.outcome = Outcome(is_advisory=is_advisory, stderr=b"of the job\n")
    assert run("run", "--memory", "2GiB", "--", "true") == 0
    before, _, after = capsys.readouterr().err.partition("of the job\n")
    assert ("limit of job 000000000001 is advisory" in before) is is_advisory
    assert "advisory" not in after
    client.outcome.stderr = b""
    for words in (("run", "--detach"), ("submit",)):
        assert run(*words, "--memory", "2GiB", "--", "true") == 0
        assert ("advisory" in capsys.readouterr().err) is is_advisory


def test_what_was_not_granted_in_time_exits_so() -> None:
    spec, request = JobSpec(("true",), "process"), Request(MIB)
    job = Job("0" * 12, spec, request, JobState.CANCELLED, 0.0)
    assert exits.of_job(job) == 130
    assert exits.of_job(replace(job, wait_timed_out=True)) == 124


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_request_is_written_cancels_it(run: Run, client: FakeClient, number: int) -> None:
    run("run", "--detach", "--memory", "20GiB", "--", "true")
    client.interruption = number
    assert run("run", "--memory", "20GiB", "--", "true") == 130
    assert [job.state for job in client.stored.values()][-1] is JobState.CANCELLED


def test_a_signal_while_the_request_is_written_reaches_a_job_that_runs_by_then(run: Run, client: FakeClient) -> None:
    client.interruption = signal.SIGINT
    run("run", "--memory", "2GiB", "--", "true")
    assert client.signals == [signal.SIGINT]


@pytest.mark.parametrize(
    ("module", "more"), [("pgpu.cli.main", {"rich.table"}), ("pgpu.client.http_client", {"websockets", "fastapi"})]
)
def test_neither_the_words_of_the_command_line_nor_a_servers_client_load_the_engine(
    module: str, more: set[str]
) -> None:
    code = f"import sys, pgpu.app.client_factory, {module}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {
        "pgpu.engine.engine",
        "pgpu.app.composition",
        "pgpu.ledger",
        "sqlite3",
        "pynvml",
        "docker",
        *more,
    } & set(loaded)
