"""The man pages of the wheel have what `--help` has, and render without warnings."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from tools import generate_man, generate_reference

from pgpu.cli.typer_app import make_app

_ROOT: Any = typer.main.get_command(make_app())
_COMMANDS = {"pgpu": _ROOT, **dict(generate_reference.verbs("pgpu", _ROOT))}
_HEAD = re.compile(r"^  +(-.*?)(?:  |$)", re.MULTILINE)
_OPTION = re.compile(r"(?:^|[ ,/])(--?\w[\w-]*)")
_PAGES = cache(generate_man.pages)


def _file(path: str) -> str:
    return f"man1/{path.replace(' ', '-')}.1"


def test_each_verb_has_a_page_and_no_other() -> None:
    assert set(_PAGES()) == {*map(_file, _COMMANDS), "man7/pgpu-errors.7"}


def test_each_code_stands_in_the_page_of_errors_which_help_names() -> None:
    codes = re.findall(r"^\.B (E[0-9a-f]{5})\n.+", _PAGES()["man7/pgpu-errors.7"], re.MULTILINE)
    assert sorted(codes) == sorted(each.code for each in generate_reference.messages() if each.is_recognisable)
    assert "man pgpu-errors" in _ROOT.get_help(_ROOT.make_context("pgpu", [], resilient_parsing=True))
    assert ".BR pgpu\\-errors (7)" in _PAGES()[_file("pgpu")]


@pytest.mark.parametrize("path", sorted(_COMMANDS))
def test_each_option_of_help_stands_in_the_page(path: str) -> None:
    command = _COMMANDS[path]
    text = command.get_help(command.make_context(path, [], resilient_parsing=True))
    options = {option for head in _HEAD.findall(text) for option in _OPTION.findall(head)}
    assert "--help" in options
    page = _PAGES()[_file(path)].replace("\\-", "-")
    heads = page[page.index(".SH OPTIONS") :]
    assert [option for option in options if f"\\fB{option}\\fR" not in heads] == []


@pytest.mark.skipif(not shutil.which("man"), reason="man is not installed")
def test_pages_render_without_warnings_and_show_their_options(tmp_path: Path) -> None:
    files = []
    for name, text in _PAGES().items():
        files.append(tmp_path / Path(name).name)
        files[-1].write_text(text, "utf-8")
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80"}
    done = subprocess.run(
        ["man", "--warnings=w", "-l", *files], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^ +-m AMOUNT, --memory AMOUNT$", done.stdout, re.MULTILINE)
    assert "PGPU-FUNCTION-DEPLOY(1)" in done.stdout
