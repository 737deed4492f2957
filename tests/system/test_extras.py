"""The core without its extras: interpreters, children included, in which their libraries cannot be imported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = ("cuda", "matplotlib", "onnx", "onnxruntime", "fastapi", "uvicorn", "docker", "lightkube", "grpc")


class Bare:
    """An environment whose interpreters have none of the extras' libraries."""

    def __init__(self, place: Path) -> None:
        (place / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({BLOCKED!r}))\n")
        self._environment = {**os.environ, "PYTHONPATH": str(place), "PGPU_STATE_DIR": str(place / "state")}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these words."""
        command = (sys.executable, *words)
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def pgpu(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line on a simulated GPU."""
        code = "import sys; from pgpu.cli.main import main; sys.exit(main())"
        return self.run("-c", code, "--simulate", "RTX 3090", *words)


@pytest.fixture
def bare(tmp_path: Path) -> Bare:
    found = Bare(tmp_path)
    assert found.run("-c", "import cuda").returncode == 1
    return found


@pytest.mark.parametrize("module", ["pgpu.cli.main", "pgpu.enforcement", "pgpu.workloads.__main__", "pgpu.client"])
def test_the_core_loads_without_any_extra(bare: Bare, module: str) -> None:
    done = bare.run("-c", f"import {module}")
    assert done.returncode == 0, done.stderr


def test_the_command_line_loads_no_experiment(bare: Bare) -> None:
    code = "import sys, pgpu.cli.main; print([name for name in sys.modules if name.startswith('pgpu.lab')])"
    assert bare.run("-c", code).stdout == "[]\n"


def test_a_job_runs_without_any_extra(bare: Bare) -> None:
    done = bare.pgpu("run", "--memory", "1GiB", "--", "echo", "ran")
    assert (done.stdout, done.returncode) == ("ran\n", 0), done.stderr


def test_the_doctor_s_trial_of_a_limit_runs_without_any_extra(bare: Bare) -> None:
    checks = {each["name"]: each for each in json.loads(bare.pgpu("doctor", "--json").stdout)["checks"]}
    assert checks["trial on a simulated GPU"]["result"] == "ok"


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("lab", "p1", "--jobs", "2"), "[lab]"),
        (("experiment", "p5"), "[lab]"),
        (("calibrate", "--seconds", "1"), "[workloads]"),
        (("profile", "--sensitivity", "--memory", "1GiB", "--", "true"), "[workloads]"),
    ],
)
def test_a_verb_that_needs_an_extra_names_it(bare: Bare, words: tuple[str, ...], extra: str) -> None:
    done = bare.pgpu(*words)
    message, hint = done.stderr.splitlines()
    assert done.returncode == 125
    assert "cuda.bindings, which is not installed" in message
    assert extra in hint


def test_figures_name_their_extra(bare: Bare) -> None:
    code = "from pgpu.lab import report\ntry: report.require_plotting()\nexcept Exception as error: print(error.hint)"
    assert "[lab]" in bare.run("-c", code).stdout


def test_a_workload_without_its_binding_names_the_extra(bare: Bare) -> None:
    done = bare.run("-m", "pgpu.workloads", "hog")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert "[workloads]" in line
