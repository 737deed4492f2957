"""The reference cannot drift: it is written from the program, and this fails where it was not written again."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tools import generate_reference

from pgpu.app.settings import NAMES
from pgpu.cli.typer_app import make_app

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("path", generate_reference.PAGES, ids=lambda path: path.name)
def test_a_page_of_the_reference_is_current(path: Path) -> None:
    assert path.read_text("utf-8") == generate_reference.PAGES[path](), "run tools/generate_reference.py"


def test_every_verb_and_option_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    root: Any = typer.main.get_command(make_app())
    for name, command in root.commands.items():
        assert (f"`pgpu {name}`" if command.hidden else f"## `pgpu {name}`\n") in page
        assert command.help, f"{name} has no help"


def _groups(path: str, group: Any) -> Iterator[tuple[str, Any]]:
    yield path, group
    for name, command in group.commands.items():
        if hasattr(command, "commands") and not command.hidden:
            yield from _groups(f"{path} {name}", command)


_GROUPS = dict(_groups("pgpu", typer.main.get_command(make_app())))
_VERBS = {
    "Advise",
    "Calibrate",
    "Call",
    "Cancel",
    "Change",
    "Check",
    "Compare",
    "Create",
    "Deploy",
    "Exclude",
    "Fit",
    "Give",
    "Hold",
    "Install",
    "Let",
    "List",
    "Load",
    "Manage",
    "Measure",
    "Predict",
    "Print",
    "Put",
    "Release",
    "Remove",
    "Restore",
    "Revoke",
    "Run",
    "Serve",
    "Set",
    "Show",
    "Start",
    "Stop",
    "Store",
    "Train",
    "Wait",
    "Watch",
}


@pytest.mark.parametrize("path", sorted(_GROUPS))
def test_every_help_line_of_a_command_starts_with_a_verb_and_fits_80_columns_uncut(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    group = _GROUPS[path]
    lines = group.get_help(group.make_context(path, ["--help"], resilient_parsing=True)).splitlines()
    commands = {name: each for name, each in group.commands.items() if not each.hidden}
    for name, command in commands.items():
        sentence = command.help.partition("\n")[0].rstrip(".")
        assert re.split(r"\W", sentence)[0] in _VERBS, f"{path} {name}: {sentence}"
        [line] = [line for line in lines if line.startswith(f"  {name} ") and line.endswith(f" {sentence}")]
        assert len(line) <= 80
        assert "…" not in line
        assert "..." not in line


def test_eight_commands_stand_in_front_and_the_others_in_named_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    root = _GROUPS["pgpu"]
    text = root.get_help(root.make_context("pgpu", ["--help"], resilient_parsing=True))
    _, _, listed = text.partition("Commands:\n")
    front, *others, end = listed.split("\n\n")
    assert "man pgpu-errors" in end
    assert [line.split()[0] for line in front.splitlines()] == [
        "run",
        "submit",
        "ps",
        "logs",
        "stop",
        "top",
        "gpus",
        "doctor",
    ]
    titles = [other.partition(":\n")[0] for other in others]
    assert titles == ["Queue", "Learning and advice", "Functions", "Serving", "Cluster", "Lab", "Admin"]


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        *((name, name) for name in ("deploy", "rollout", "rollback", "undeploy", "token", "invoke", "dev")),
        ("functions", "ls"),
    ],
)
def test_an_earlier_spelling_of_a_function_s_verb_is_a_hidden_alias(alias: str, name: str) -> None:
    before, now = _GROUPS["pgpu"].commands[alias], _GROUPS["pgpu function"].commands[name]
    assert before.hidden
    assert before.help == now.help
    assert [each.opts for each in before.params] == [each.opts for each in now.params]


def test_every_setting_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8")
    for name in NAMES:
        assert f"## `{name}`" in page
        assert f"`PGPU_{name.upper()}`" in page
