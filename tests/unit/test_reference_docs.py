"""The reference cannot drift: it is written from the program, and this fails where it was not written again."""

from pathlib import Path
from typing import Any

import pytest
import typer
from tools import generate_reference

from pgpu.app.settings import NAMES
from pgpu.cli.main import make_app

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("path", generate_reference.pages(), ids=lambda path: path.name)
def test_a_page_of_the_reference_is_current(path: Path) -> None:
    assert path.read_text("utf-8") == generate_reference.pages()[path], "run tools/generate_reference.py"


def test_every_verb_and_option_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "cli.md").read_text("utf-8")
    root: Any = typer.main.get_command(make_app())
    for name, command in root.commands.items():
        assert command.hidden or f"## `pgpu {name}`" in page
        assert command.help, f"{name} says nothing of itself"


def test_every_setting_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text("utf-8")
    for name in NAMES:
        assert f"## `{name}`" in page
        assert f"`PGPU_{name.upper()}`" in page
