"""The direct parser accepts a command line only where Typer makes the same call of it."""

import string
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from pgpu.cli.direct_parser import Call, read_call
from pgpu.cli.invocation import Invocation
from pgpu.cli.option_table import ARGUMENTS, GLOBAL_OPTIONS, VERSION, Option, OptionKind, Verb, wants_json
from pgpu.cli.typer_app import make_app
from pgpu.cli.verb_table import VERBS, CommandEntry

_NAMES = {name: verb for name, entry in VERBS.items() if (verb := entry.verb()) is not None}

_SPELLED = st.text(string.ascii_letters + string.digits + "-=/:. ü", min_size=0, max_size=8)
_VALUES = st.one_of(
    _SPELLED, st.sampled_from(["2GiB", "-5", "--", "-", "", "--json", "json", "--help", "jobs.toml", "\udcff"])
)


class _Recorded(CommandEntry, frozen=True, kw_only=True):
    """An entry whose verb notes its call instead of running it."""

    calls: list[Call]

    def load(self) -> Any:
        verb = CommandEntry.load(self)

        def note(invocation: Invocation, **values: Any) -> None:
            self.calls.append(Call(verb, dict(invocation.flags), values, invocation.typed))

        note.__doc__ = verb.function.__doc__
        return Verb(note, verb.options)


def _call_of_typer(words: Sequence[str]) -> tuple[Call, bool]:
    calls: list[Call] = []
    entries: Mapping[str, CommandEntry] = {
        name: _Recorded(VERBS[name].target, takes_command=VERBS[name].takes_command, calls=calls) for name in _NAMES
    }
    command = typer.main.get_command(make_app(entries))
    invocation = Invocation()
    command.main(list(words), prog_name="pgpu", standalone_mode=False, obj=invocation)
    [call] = calls
    return call, invocation.as_json


@st.composite
def _option_words(draw: st.DrawFn, rows: Sequence[Option]) -> list[str]:
    row = draw(st.sampled_from([row for row in rows if row.kind not in ARGUMENTS]))
    flag = draw(st.sampled_from([each for spelling in row.flags for each in spelling.split("/")]))
    if row.kind is OptionKind.FLAG:
        return [flag]
    value = draw(st.integers(0, 99).map(str) if row.kind is OptionKind.NUMBER else _VALUES)
    is_joined = flag.startswith("--") and draw(st.booleans())
    return [f"{flag}={value}"] if is_joined else [flag, value]


@st.composite
def _well_formed(draw: st.DrawFn) -> list[str]:
    name = draw(st.sampled_from(sorted(_NAMES)))
    rows = _NAMES[name].options
    before = draw(st.lists(_option_words([row for row in GLOBAL_OPTIONS if row is not VERSION]), max_size=2))
    options = draw(st.lists(_option_words(rows), max_size=6))
    kind = next((row.kind for row in rows if row.kind in ARGUMENTS), None)
    least, most = {
        OptionKind.WORD: (1, 1),
        OptionKind.OPTIONAL_WORD: (0, 1),
        OptionKind.WORDS: (1, 3),
        OptionKind.COMMAND: (0, 4),
        None: (0, 0),
    }[kind]
    arguments = draw(st.lists(_VALUES, min_size=least, max_size=most))
    # An argument that looks like an option needs the separator.
    separator = ["--"] if any(word.startswith("-") for word in arguments) or draw(st.booleans()) else []
    return [*chain(*before), name, *chain(*options), *separator, *arguments]


@st.composite
def _changed(draw: st.DrawFn) -> list[str]:
    """A command line with words left out, doubled, put elsewhere or made up."""
    words = draw(_well_formed())
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.integers(0, len(words)))
        change = draw(st.sampled_from(["insert", "remove", "move"]))
        if change == "insert":
            flags = [
                "-it",
                "-dm",
                "-m2GiB",
                "-m=2GiB",
                "--memor",
                "--help",
                "-h",
                "--version",
                "--gpus=x",
                "-aq",
                "--json=1",
            ]
            words.insert(place, draw(st.one_of(_VALUES, st.sampled_from(flags), st.sampled_from(sorted(VERBS)))))
        elif words:
            word = words.pop(min(place, len(words) - 1))
            if change == "move":
                words.insert(draw(st.integers(0, len(words))), word)
    return words


def _same(words: Sequence[str], call: Call) -> None:
    typers, as_json = _call_of_typer(words)
    assert typers == call
    assert as_json is wants_json(call.values)


@given(_well_formed())
@example(["run", "--memory", "2GiB", "--", "true"])
@example(["submit", "--memory", "-5", "jobs.toml", "--json"])
def test_a_well_formed_command_line_is_read_without_typer_into_the_same_call(words: list[str]) -> None:
    call = read_call(words)
    assert call is not None
    _same(words, call)


@given(_changed())
def test_any_other_command_line_is_declined_or_read_into_the_same_call(words: list[str]) -> None:
    call = read_call(words)
    if call is not None:
        _same(words, call)


@pytest.mark.parametrize(
    "words",
    [
        *([], ["--help"], ["ps", "-h"], ["run", "--memory"], ["run", "--gpus", "x", "true"], ["stop"], ["ps", "word"]),
        *(
            ["version", "--jsn"],
            ["function", "ls"],
            ["serve"],
            ["nothing"],
            ["--version", "ps"],
            ["ps", "--state-dir", "d"],
        ),
    ],
)
def test_help_errors_and_verbs_without_rows_are_left_to_typer(words: list[str]) -> None:
    assert read_call(words) is None


def test_each_verb_that_scripts_start_often_has_rows() -> None:
    assert {"run", "submit", "ps", "stop", "logs", "top", "version", "queue", "cancel", "wait"} <= set(_NAMES)


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--version"], {"typer", "rich", "msgspec", "logging", "email", "pgpu.cli.direct_parser"}),
        (["version", "--json"], {"typer", "rich", "email", "pgpu.client", "pgpu.app.settings"}),
    ],
)
def test_a_command_that_typer_does_not_read_loads_neither_it_nor_more_than_it_needs(
    words: list[str], absent: set[str]
) -> None:
    code = f"import sys; from pgpu.cli.main import main; main({words}); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "0." in done.stdout
    assert not absent & set(done.stderr.split())
