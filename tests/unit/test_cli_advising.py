"""What `pgpu advise` says over profiles in files, and over words that name none."""

import json
from pathlib import Path

import pytest
from tests.fakes.client import FakeClient
from tests.unit.conftest import Run
from tests.unit.test_advising import PROFILE, job, swept
from tests.unit.test_cli import validate

from pgpu.model import Profile
from pgpu.structs import replace, to_builtins

MIB = 1 << 20


def written(path: Path, profile: Profile) -> str:
    path.write_text(json.dumps({"schema_version": 1, "profile": to_builtins(profile)}))
    return str(path)


@pytest.fixture
def small(tmp_path: Path) -> str:
    return written(tmp_path / "small.json", job(sm=0.3, dram=0.2, name="small"))


@pytest.fixture
def thrashing(tmp_path: Path) -> str:
    profile = replace(
        job(sm=0.4, dram=0.2, name="thrashing"), footprint_bytes=5 * MIB, contests=(swept(0.5, 1.9), swept(1.0, 3.0))
    )
    return written(tmp_path / "thrashing.json", profile)


def test_advice_names_the_mode_and_each_job_s_slowdown(
    run: Run, small: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("advise", small, small) == 0
    shown = capsys.readouterr().out
    for text in ("together: mps", "2.06x", "1.00x", "counters", "confidence: high", "pgpu calibrate"):
        assert text in shown


def test_two_of_a_kind_that_lose_the_cache_take_turns(
    run: Run, thrashing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("advise", thrashing, thrashing) == 0
    assert "together: time-slice" in capsys.readouterr().out


def test_before_volta_the_faster_mode_is_named_and_what_pgpu_does_instead(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile = replace(job(sm=0.3, dram=0.2, name="small"), gpu_name="NVIDIA GeForce GTX 980 Ti")
    old = written(tmp_path / "old.json", profile)
    assert run("advise", old, old) == 0
    shown = capsys.readouterr().out
    assert "faster: under MPS (MPS is 2." in shown
    assert "pgpu shares this GPU by time slices: before Volta MPS does not keep clients' memory apart" in shown
    assert run("advise", "--json", old, old) == 0
    content = validate("advice", capsys.readouterr().out)
    assert (content["faster_mode"], content["mode"]) == ("mps", "time-slice")
    assert content["reasons"] == content["gates"] == ["before Volta MPS does not keep clients' memory apart"]


def test_interactive_jobs_may_be_kept_apart(run: Run, thrashing: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("advise", "--interactive", thrashing, thrashing) == 0
    assert "not together" in capsys.readouterr().out


def test_advice_as_json_follows_its_schema(
    run: Run, small: str, thrashing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("advise", "--json", small, thrashing) == 0
    content = validate("advice", capsys.readouterr().out)
    assert [each["signature"] for each in content["jobs"]] == ["small", "thrashing"]
    assert content["mode"] == "mps"


def test_a_profile_without_the_envelope_is_read_too(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(to_builtins(PROFILE)))
    assert run("advise", str(path), str(path)) == 0


@pytest.mark.parametrize("content", ["", "no json", "[]", '{"profile": 3}', '{"signature": "a"}', "{}", "9" * 5000])
def test_a_file_that_is_no_profile_is_refused_in_one_line(
    run: Run, small: str, tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    assert run("advise", small, str(path)) == 125
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "is no profile" in lines[0]
    assert "pgpu profile" in lines[1]


def test_a_file_that_is_not_there_is_named(run: Run, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("advise", small, "/no/such.json") == 125
    assert "/no/such.json cannot be read" in capsys.readouterr().err


def test_a_job_without_a_profile_is_named(run: Run, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("advise", small, "training") == 125
    assert "no profile of 'training'" in capsys.readouterr().err


def test_one_job_alone_needs_no_advice(run: Run, small: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("advise", small) == 125
    assert "jobs together" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "1e9"])
def test_a_calibration_of_no_time_is_refused(run: Run, seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("calibrate", "--seconds", seconds) == 125
    assert "--seconds" in capsys.readouterr().err


def test_a_gpu_that_others_use_is_not_calibrated(
    run: Run, client: FakeClient, capsys: pytest.CaptureFixture[str]
) -> None:
    run("submit", "--memory", "1GiB", "--", "true")
    assert run("calibrate") == 125
    assert "the GPUs are in use" in capsys.readouterr().err
    assert client.constants is None
