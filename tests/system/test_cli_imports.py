"""What short commands import: a module that one of them does not need would be paid for at each start."""

import os
import pty
import subprocess
import sys

import pytest
from tests.system.conftest import Place
from tests.waiting import until

_HEAVY = {
    "dataclasses",
    "inspect",
    "hashlib",
    "logging",
    "pgpu.client.following",
    "rich",
    "statistics",
    "textual",
    "typer",
    "typing_extensions",
}
_SCHEDULER = {"pgpu.engine.admission.rounds", "pgpu.scheduling.admission"}
_DRIVER = {"pgpu.gpu.nvml", "pynvml", "shutil", "subprocess"}


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["ps"], _HEAVY | _SCHEDULER | _DRIVER),
        (["ps", "--all"], _HEAVY | _SCHEDULER | _DRIVER),
        (["queue"], _HEAVY | _SCHEDULER | _DRIVER),
        (["submit", "--memory", "9GiB", "true"], _HEAVY),
    ],
)
def test_a_short_command_imports_no_module_that_it_does_not_need(
    place: Place, words: list[str], absent: set[str]
) -> None:
    # Makes the simulated GPU, the ledger, and a job of which a table shows the beginning of the command.
    assert place.run("run", "--memory", "1GiB", "sh", "-c", f"true # {'x' * 80}").returncode == 0
    code = f"import sys; from pgpu.cli.main import main; main({words}); print(*sys.modules)"
    done = place.run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert not absent & set(done.stdout.split())


def test_top_imports_textual_on_a_terminal_alone(place: Place) -> None:
    for words in (["gpus"], ["top"], ["top", "--json"]):
        code = f"import sys; from pgpu.cli.main import main; main({words}); print(*sys.modules)"
        done = place.run_python("-c", code)
        assert done.returncode == 0, done.stderr
        assert not {"rich", "textual", "typer"} & set(done.stdout.split()), words


def test_the_ids_of_an_array_that_waits_are_found_without_a_round(place: Place) -> None:
    array = place.run("submit", "--array", "0-1", "--memory", "20GiB", "--", "sleep", "60").stdout.strip()
    opened = "from pgpu.app.client_factory import open_client; from pgpu.app.settings import load_settings"
    code = f"import sys; {opened}; print(len(open_client(load_settings({{}})).members({array!r})), *sys.modules)"
    done = place.run_python("-c", code)
    place.run("cancel", array)
    count, *modules = done.stdout.split()
    assert count == "2"
    assert not _SCHEDULER & set(modules)


@pytest.mark.parametrize("words", [["submit", "--memory", "9GiB", "true"], ["run", "--memory", "1GiB", "true"]])
def test_a_job_for_a_living_agent_needs_neither_scheduler_nor_driver_in_its_command(
    place: Place, words: list[str]
) -> None:
    assert place.run("run", "--detach", "--name", "kept", "--memory", "1GiB", "sleep", "1000").returncode == 0
    until(lambda: place.job("kept")["state"] == "running")  # the agent's first round is over
    modules = place.path / "modules"
    code = f"import sys; from pgpu.cli.main import main; main({words}); open({str(modules)!r}, 'w').write(' '.join(sys.modules))"
    done = place.run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert not (_HEAVY - {"pgpu.client.following"} | _SCHEDULER | _DRIVER) & set(modules.read_text().split())


def test_a_job_that_starts_at_once_imports_no_spinner_on_a_terminal(place: Place) -> None:
    assert place.run("ps").returncode == 0
    modules = place.path / "modules"
    code = f"import sys; from pgpu.cli.main import main; main(['run', '--memory', '1GiB', 'true']); open({str(modules)!r}, 'w').write(' '.join(sys.modules))"
    terminal, end = pty.openpty()
    with os.fdopen(terminal, "rb", 0), os.fdopen(end, "wb", 0) as stderr:
        subprocess.run([sys.executable, "-c", code], env=place.environment, cwd=place.path, stderr=stderr, check=True)
    assert not _HEAVY - {"pgpu.client.following"} & set(modules.read_text().split())


def test_msgspec_is_imported_without_typing_extensions_which_stay_importable() -> None:
    assert sys.modules.get("typing_extensions", sys) is not None
