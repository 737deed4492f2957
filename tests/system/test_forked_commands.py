"""Most tests run commands out of a process that has imported pgpu already: they must behave like the installed script."""

import subprocess
from pathlib import Path

import pytest
from tests.forked_commands import PGPU
from tests.system.conftest import Place

COMMANDS = (
    ("version",),
    ("--help",),
    ("ps", "--json"),
    ("gpus",),
    ("run", "--memory", "1GiB", "--", "sh", "-c", "cat; echo error >&2; pwd; exit 7"),
    ("run", "--memory", "nonsense", "--", "true"),
    ("no-such-verb",),
    ("stop", "no-such-job", "--json"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_forked_command_answers_like_the_installed_script(place: Place, words: tuple[str, ...]) -> None:
    forked = place.run(*words, stdin="given\n")
    # Notices are printed once for each state directory.
    Path(place.environment["PGPU_STATE_DIR"], "notices").unlink(missing_ok=True)
    executed = subprocess.run(
        [PGPU, *words],
        env=place.environment,
        cwd=place.path,
        input="given\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert forked.returncode == executed.returncode
    assert forked.stdout == executed.stdout
    assert _without_id(forked.stderr) == _without_id(executed.stderr)


def test_a_forked_command_has_the_environment_of_its_caller_alone(place: Place) -> None:
    """What one command was given is gone for the next one."""
    done = place.run("run", "--memory", "1GiB", "--", "printenv", "GIVEN", GIVEN="once")
    assert (done.returncode, done.stdout) == (0, "once\n")
    done = place.run("run", "--memory", "1GiB", "--", "printenv", "GIVEN")
    assert (done.returncode, done.stdout) == (1, "")


def test_a_variable_of_the_interpreter_reaches_its_start(place: Place) -> None:
    assert "import time:" in place.run("version", PYTHONPROFILEIMPORTTIME="1").stderr


def _without_id(text: str) -> str:
    """Leave out the name of the job, which is drawn for each."""
    return " ".join("ID" if len(word) == 12 and word.isalnum() else word for word in text.split())
