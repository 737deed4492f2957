"""Reads well-formed command lines without Typer, whose import takes longer than a short command runs.

Both parsers are made from the same rows (`option_table`). This one accepts a line only if each word is an option with its
value or an argument of a verb that has rows; for all others (help, completion, a misspelled option, a verb without rows) it
returns None and the whole line goes to Typer, which alone writes help and errors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pgpu.cli.option_table import ARGUMENTS, GLOBAL_OPTIONS, LISTS, Option, OptionKind, Verb
from pgpu.cli.verb_table import VERBS
from pgpu.structs import Struct

_MOST_DIGITS = 18


class Call(Struct, frozen=True):
    """A command line that was read."""

    verb: Verb
    flags: Mapping[str, str | None]
    """Values of the options before the verb."""

    values: Mapping[str, Any]
    """The verb's keyword arguments."""

    typed: frozenset[str]
    """Names of the verb's options that were typed."""


class _Words(Struct):
    """Words of a line, sorted into options and arguments."""

    values: dict[str, Any]
    arguments: list[str]


def read_call(words: Sequence[str]) -> Call | None:
    """Return the call that a command line means; None if Typer must read it."""
    before = _sort_words(GLOBAL_OPTIONS, words, stops_at_argument=True)
    if before is None or "version" in before.values or not before.arguments:
        return None
    name, *rest = before.arguments
    entry = VERBS.get(name)
    verb = entry.verb() if entry else None
    if entry is None or verb is None:
        return None
    found = _sort_words(verb.options, rest, stops_at_argument=entry.takes_command)
    arguments = None if found is None else _read_arguments(verb.options, found.arguments)
    if found is None or arguments is None:
        return None
    values = {row.name: row.initial for row in verb.options}
    flags = {row.name: before.values.get(row.name) for row in GLOBAL_OPTIONS if row.name != "version"}
    return Call(verb, flags, {**values, **found.values, **arguments}, frozenset(found.values))


def _sort_words(rows: Sequence[Option], words: Sequence[str], *, stops_at_argument: bool) -> _Words | None:
    """Read the options among words; None if a word is no option of these rows, or its value is missing or wrong."""
    # Each flag with its row, and the value that a flag without a value of its own stands for.
    flags = {
        flag: (row, meaning)
        for row in rows
        for spelling in row.flags
        for flag, meaning in zip(spelling.split("/"), (True, False), strict=False)
    }
    found = _Words({}, [])
    left = list(reversed(words))
    while left:
        word = left.pop()
        if word == "--" or (stops_at_argument and not _is_option(word)):
            found.arguments += [word, *reversed(left)] if word != "--" else reversed(left)
            break
        if not _is_option(word):
            found.arguments.append(word)
            continue
        flag, equals, value = word.partition("=")
        row, meaning = flags.get(flag, (None, None))
        # A short option takes `=` as part of its value; such words, and groups like `-it`, are left to Typer.
        if row is None or (equals and (row.kind is OptionKind.FLAG or not flag.startswith("--"))):
            return None
        if row.kind is OptionKind.FLAG:
            found.values[row.name] = meaning
        elif (not equals and not left) or not _add_value(found.values, row, value if equals else left.pop()):
            return None
    return found


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _add_value(values: dict[str, Any], row: Option, text: str) -> bool:
    """Store an option's value; False if it is no number although it must be."""
    if row.kind is OptionKind.NUMBER:
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
            return False
        values[row.name] = int(text)
    elif row.kind in LISTS:
        values[row.name] = (*values.get(row.name, ()), text)
    else:
        values[row.name] = text
    return True


def _read_arguments(rows: Sequence[Option], words: Sequence[str]) -> Mapping[str, Any] | None:
    row = next((row for row in rows if row.kind in ARGUMENTS), None)
    if row is None:
        return None if words else {}
    if row.kind is OptionKind.OPTIONAL_WORD:
        return {row.name: words[0] if words else None} if len(words) <= 1 else None
    if row.kind is OptionKind.WORD:
        return {row.name: words[0]} if len(words) == 1 else None
    if row.kind is OptionKind.WORDS and not words:
        return None
    return {row.name: tuple(words)}
