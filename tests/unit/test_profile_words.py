"""`pgpu profile` over a client that runs nothing: what it asks for, tells and writes."""

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.client import GPU, FakeClient, Outcome
from tests.trace_writing import Written, WrittenShape, kernel, log, memory
from tests.unit.conftest import Run
from tests.unit.test_cli import validate

from pgpu.cli.profile_runs import neighbours_for
from pgpu.enforcement import trace
from pgpu.enforcement.trace import Direction, Memory, RecordKind
from pgpu.engine.history.usage_records import Findings, Profiled
from pgpu.model import (
    Antagonist,
    Contest,
    Evidence,
    Job,
    JobSpec,
    JobState,
    Request,
    Resource,
    Sensitivity,
    SharingWish,
    Submission,
)
from pgpu.profiling.measurement import profile_of, summarise_log
from pgpu.structs import replace
from pgpu.units import MIB

FAKES = Path(__file__).parent.parent / "fakes"
COUNTED = """epoch 1
"ID","Process ID","Kernel Name","Block Size","Grid Size","dram__throughput.avg.pct_of_peak_sustained_elapsed",\
"gpu__time_duration.sum","l1tex__t_sector_hit_rate.pct"
"","","","","","%","nsecond","%"
"0","42","dense","(128, 1, 1)","(80, 1, 1)","90","1,000","50"
"""

RECORDS = (
    Written(RecordKind.PROCESS, at_ns=1, size=4242),
    memory(2, Memory.CONTEXT, 1 << 28),
    Written(RecordKind.CONTEXT, at_ns=3, size=1 << 28, detail=82, stream=6 << 20),
    kernel(1_000_000, 500_000),
    Written(RecordKind.COPY, at_ns=4, start_ns=2_000_000, duration_ns=10, size=64, detail=Direction.DTOH),
)


def profiled(number: int, kernel_ns: int = 500_000, records: tuple[Written, ...] = RECORDS) -> Profiled:
    data = log(records, (WrittenShape("dense", total_ns=kernel_ns),))
    job = Job(f"{number:012x}", JobSpec(("t",), "process"), Request(1), JobState.EXITED, 0.0, signature="t@1")
    profile = profile_of(summarise_log(trace.read(data)), job, GPU.name, 1.0)
    return Profiled(job.id, profile, base64.b64encode(zlib.compress(data)).decode())


def jobs(client: FakeClient) -> list[Job]:
    return list(client.stored.values())


def profile_runs(client: FakeClient, *kernels_ns: int) -> None:
    """Let the client's next jobs have taken so long in their kernels."""
    client.profiles = {f"{n:012x}": profiled(n, kernel_ns) for n, kernel_ns in enumerate(kernels_ns, 1)}


def test_a_profile_is_of_a_traced_job_that_has_the_gpu_for_itself(run: Run, client: FakeClient, capfd: Any) -> None:
    profile_runs(client, 500_000)
    client.outcome = Outcome(stdout=b"theirs\n")
    assert run("profile", "--memory", "2GiB", "--", "train", "--json") == 0
    [job] = jobs(client)
    assert job.spec.is_traced
    assert job.spec.command == ("train", "--json")
    assert job.request.sharing is SharingWish.EXCLUSIVE
    captured = capfd.readouterr()
    assert "theirs" in captured.err
    assert "theirs" not in captured.out
    assert "dense" in captured.out
    assert "DtoH" in captured.out


def test_its_document_is_as_the_schema_promises(run: Run, client: FakeClient, capsys: Any) -> None:
    profile_runs(client, 500_000)
    assert run("profile", "--json", "--memory", "2GiB", "--", "train") == 0
    told = validate("profile", capsys.readouterr().out)["profile"]
    assert told["kernels"][0]["name"] == "dense"
    assert told["gpus"][0]["peak_bytes_by_kind"] == {"context": 1 << 28}
    assert told["sensitivity"]["cache"] is None
    assert set(told) == set(json.loads(schema_text())["properties"]["profile"]["properties"])


def test_contests_are_as_the_schema_promises(run: Run, client: FakeClient, capsys: Any) -> None:
    profile_runs(client, 500_000)
    assert run("profile", "--memory", "2GiB", "--", "train") == 0
    job_id = jobs(client)[0].id
    contests = tuple(Contest(each, 1 << 20, 0.1, 1.5, 1.2, None, 0.5) for each in Antagonist)
    client.add_findings(job_id, Findings(Sensitivity(l2=0.5), contests))
    capsys.readouterr()
    assert run("profile", "--json", "--show", job_id) == 0
    told = validate("profile", capsys.readouterr().out)["profile"]
    assert [each["antagonist"] for each in told["contests"]] == list(Antagonist)
    schema = json.loads(schema_text())["properties"]["profile"]["properties"]
    demand = schema["demands"]["items"]["properties"]
    assert demand["resource"]["enum"] == list(Resource)
    assert demand["evidence"]["enum"] == list(Evidence)
    assert set(told["contests"][0]) == set(schema["contests"]["items"]["properties"])


def schema_text() -> str:
    root = Path(__file__).parent.parent.parent
    return (root / "src" / "pgpu" / "cli" / "schemas" / "profile.schema.json").read_text("utf-8")


def test_a_page_and_a_trace_are_written(run: Run, client: FakeClient, tmp_path: Path) -> None:
    profile_runs(client, 500_000)
    page, path = tmp_path / "p.html", tmp_path / "p.json"
    assert run("profile", "--memory", "2GiB", "--html", str(page), "--trace", str(path), "--", "train") == 0
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert json.loads(path.read_text("utf-8"))["traceEvents"]
    assert run("profile", "--show", "1".rjust(12, "0"), "--trace", str(tmp_path / "no" / "p.json")) == 125


def test_a_failed_command_s_exit_code_is_told_and_its_profile_still_shown(
    run: Run, client: FakeClient, capsys: Any
) -> None:
    profile_runs(client, 500_000)
    client.outcome = Outcome(exit_code=7)
    assert run("profile", "--memory", "2GiB", "--", "train") == 7
    assert "dense" in capsys.readouterr().out


def test_a_command_that_never_used_the_gpu_is_said_to_have_told_nothing(
    run: Run, client: FakeClient, capsys: Any
) -> None:
    client.profiles = {"1".rjust(12, "0"): profiled(1, records=())}
    assert run("profile", "--memory", "2GiB", "--", "true") == 0
    assert "never used the GPU" in capsys.readouterr().out


def test_sensitivity_compares_runs_with_either_cache(run: Run, client: FakeClient, capsys: Any) -> None:
    client.has_mps = False
    profile_runs(client, 1000, 1000, 1000, 1010, 1500, 1515)
    words = ("profile", "--json", "--sensitivity", "--runs", "2", "--memory", "2GiB", "--", "train")
    assert run(*words) == 0
    told = validate("profile", capsys.readouterr().out)["profile"]
    assert told["job_id"] == "2".rjust(12, "0")
    assert told["sensitivity"]["cache"] == pytest.approx(0.5, abs=0.01)
    assert told["cache_loss"]["spread"] == pytest.approx(0.01, abs=0.001)
    assert told["sensitivity"]["l2"] is None
    assert "MPS" in told["not_measured"][0]
    assert [job.spec.carve_out_percent for job in jobs(client)] == [None, None, 0, 0, 100, 100]
    assert client.profiled(told["job_id"]).profile.sensitivity == Sensitivity(cache=told["sensitivity"]["cache"])


def test_sensitivity_ends_with_the_first_run_that_fails(run: Run, client: FakeClient) -> None:
    profile_runs(client, 1000, 1000, 1000)
    client.outcome = Outcome(exit_code=3)
    assert run("profile", "--sensitivity", "--memory", "2GiB", "--", "train") == 3
    assert len(jobs(client)) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--memory", "2GiB"),
        ("--memory", "2GiB", "--runs", "0", "--", "true"),
        ("--show", "x", "--", "true"),
        ("--show", "none"),
        ("--memory", "2GiB", "--sharing", "sideways", "--", "true"),
    ],
)
def test_wrong_words_run_nothing(run: Run, client: FakeClient, words: tuple[str, ...]) -> None:
    assert run("profile", *words) == 125
    assert jobs(client) == []


def test_a_carve_out_is_refused_without_a_trace_and_past_the_whole(client: FakeClient) -> None:
    spec = JobSpec(("true",), "process", carve_out_percent=50)
    for wrong in (spec, replace(spec, is_traced=True, carve_out_percent=101), replace(spec, carve_out_percent=-1)):
        with pytest.raises(Exception, match="carve-out"):
            client.submit_all([Submission(wrong, Request(1 << 30))])


@pytest.mark.parametrize("option", ["--html", "--trace"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(
    run: Run, client: FakeClient, tmp_path: Path, capsys: Any, option: str
) -> None:
    for path in (tmp_path / "no" / "p", tmp_path):
        assert run("profile", "--memory", "2GiB", option, str(path), "--", "train") == 125
        first, hint = capsys.readouterr().err.splitlines()
        assert str(path) in first
        assert "hint" in hint
    assert jobs(client) == []


def test_runs_without_sensitivity_is_refused_and_not_left_out(run: Run, client: FakeClient, capsys: Any) -> None:
    assert run("profile", "--memory", "2GiB", "--runs", "3", "--", "train") == 125
    assert "--sensitivity" in capsys.readouterr().err
    assert jobs(client) == []


def test_a_command_that_never_uses_the_gpu_is_told_after_one_kind_of_run(
    run: Run, client: FakeClient, capsys: Any
) -> None:
    client.profiles = {f"{n:012x}": profiled(n, records=()) for n in range(1, 99)}
    assert run("profile", "--sensitivity", "--memory", "2GiB", "--", "true") == 0
    assert "never used the GPU" in capsys.readouterr().out
    assert len(jobs(client)) == 3


def test_an_antagonist_ends_by_itself_soon_after_whom_it_was_started_for(run: Run, client: FakeClient) -> None:
    profile_runs(client, *[1000] * 99)
    client.outcome = Outcome(stderr=b"l2_sweep: running\n")
    assert run("profile", "--sensitivity", "--runs", "1", "--memory", "2GiB", "--", "train") == 0
    asked = [job.spec.command for job in jobs(client)]
    lives = [float(words[at + 1]) for words in asked for at, word in enumerate(words) if word == "--seconds"]
    assert set(lives) == {1, 60}, "a moment alone, and a minute and ten times what took no time"


def test_antagonists_take_parts_of_the_cache_there_is_however_small_it_is() -> None:
    for l2_bytes in (3 * MIB, 6 * MIB, 40 * MIB):
        found = neighbours_for(l2_bytes)
        assert {each.kind for each in found} == set(Antagonist)
        assert [each.swept_bytes / l2_bytes for each in found if each.kind is Antagonist.L2] == [0.25, 0.5, 1.0]
        assert all(each.swept_bytes > l2_bytes for each in found if each.kind is Antagonist.DRAM)


def test_what_ncu_counts_stands_beside_the_profile_and_is_remembered(
    run: Run, client: FakeClient, capfd: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(FAKES))
    profile_runs(client, 500_000)
    client.outcome = Outcome(stdout=COUNTED.encode())
    page = tmp_path / "page.html"
    assert run("profile", "--ncu", "--json", "--html", str(page), "--memory", "2GiB", "--", "train", "--fast") == 0
    plain, counted = jobs(client)
    assert (plain.spec.is_traced, counted.spec.is_traced) == (True, False)
    assert counted.spec.command[0] == str(FAKES / "ncu")
    assert counted.spec.command[-2:] == ("train", "--fast")
    printed = capfd.readouterr().out
    validate("profile", printed)
    told = json.loads(printed)
    [dense] = told["profile"]["counters"]
    assert (dense["name"], dense["l1_hit_rate"], dense["occupancy"]) == ("dense", 0.5, None)
    assert [each for each in told["profile"]["demands"] if each["evidence"] == "counters"] == [
        {"resource": "dram", "fraction": 0.9, "evidence": "counters"}
    ]
    assert client.profiles[plain.id].profile.demand_of(Resource.DRAM) == 0.9
    assert "Counted in kernels" in page.read_text()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access", "for administrators"),
        (b"==ERROR== Failed to create the shim\n", "ncu: Failed to create the shim"),
        (b"loss 0.1\n", "counted no kernel"),
    ],
)
def test_where_ncu_may_not_count_one_line_says_so(
    said: bytes, why: str, run: Run, client: FakeClient, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(FAKES))
    profile_runs(client, 500_000)
    client.outcome = Outcome(stdout=said)
    assert run("profile", "--ncu", "--memory", "2GiB", "--", "train") == 0
    [line] = [line for line in capfd.readouterr().out.splitlines() if "not measured" in line]
    assert "hardware counters" in line
    assert why in line


def test_without_ncu_nothing_runs(
    run: Run, client: FakeClient, capfd: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run("profile", "--ncu", "--memory", "2GiB", "--", "train") == 125
    assert "not on PATH" in capfd.readouterr().err
    assert not jobs(client)
