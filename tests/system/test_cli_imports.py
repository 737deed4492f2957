"""What short commands import: a module that one of them does not need would be paid for at each start."""

import sys

import pytest
from tests.system.conftest import Place

_HEAVY = {
    "dataclasses",
    "inspect",
    "logging",
    "pgpu.client.following",
    "rich",
    "statistics",
    "typer",
    "typing_extensions",
}
_SCHEDULER = {"pgpu.engine.admission.rounds", "pgpu.scheduling.admission"}


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["ps"], _HEAVY | _SCHEDULER),
        (["ps", "--all"], _HEAVY | _SCHEDULER),
        (["queue"], _HEAVY),
        (["submit", "--memory", "9GiB", "true"], _HEAVY),
    ],
)
def test_a_short_command_imports_no_module_that_it_does_not_need(
    place: Place, words: list[str], absent: set[str]
) -> None:
    assert place.run("ps").returncode == 0  # makes the simulated GPU and the ledger
    code = f"import sys; from pgpu.cli.main import main; main({words}); print(*sys.modules)"
    done = place.run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert not absent & set(done.stdout.split())


def test_msgspec_is_imported_without_typing_extensions_which_stay_importable() -> None:
    assert sys.modules.get("typing_extensions", sys) is not None
