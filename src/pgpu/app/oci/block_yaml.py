"""Reads the plain block YAML that `nvidia-ctk cdi generate` writes, so that no library is needed for one file.

Mappings, sequences and scalars on one line. What it does not know (flow collections of more than nothing, anchors, block
scalars, tabs) it refuses with the line's number, and never guesses.
"""

import json
import re
from typing import Any

_KEY = re.compile(r"(?P<key>[A-Za-z0-9_./-]+|\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'):(?:\s+(?P<rest>.*))?")
_UNKNOWN = set("{[&*!|>%@`")
_EMPTY: dict[str, Any] = {"{}": {}, "[]": []}
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)")

_Line = tuple[int, int, str]
"""Number, indentation, content."""


def parse_block_yaml(text: str) -> Any:
    """Return what a document says.

    Raises:
        ValueError: It uses more of YAML than this knows; names the line.
    """
    lines = [line for number, raw in enumerate(text.splitlines(), 1) if (line := _line(number, raw)) is not None]
    value, rest = _node(lines, 0)
    if rest:
        raise _refusal(rest[0])
    return value


def _line(number: int, raw: str) -> _Line | None:
    content = raw.strip()
    if not content or content.startswith("#") or content == "---":
        return None
    if "\t" in raw:
        raise _refusal((number, 0, raw))
    return number, len(raw) - len(raw.lstrip()), content


def _node(lines: list[_Line], least: int) -> tuple[Any, list[_Line]]:
    """Read the node that begins with the first line, if that is indented far enough."""
    if not lines or lines[0][1] < least:
        return None, lines
    if _is_item(lines[0]):
        return _sequence(lines, lines[0][1])
    if _KEY.fullmatch(lines[0][2]) is None:
        return _scalar(lines[0], lines[0][2]), lines[1:]
    return _mapping(lines, lines[0][1])


def _sequence(lines: list[_Line], indentation: int) -> tuple[list[Any], list[_Line]]:
    found: list[Any] = []
    while lines and lines[0][1] == indentation and _is_item(lines[0]):
        number, _, content = lines[0]
        rest = content[1:].lstrip()
        inner = indentation + len(content) - len(rest)
        # What follows the dash is the first line of a node of its own, indented by where it stands.
        value, lines = _node([(number, inner, rest), *lines[1:]] if rest else lines[1:], indentation + 1)
        found.append(value)
    return found, lines


def _mapping(lines: list[_Line], indentation: int) -> tuple[dict[str, Any], list[_Line]]:
    found: dict[str, Any] = {}
    while lines and lines[0][1] == indentation and not _is_item(lines[0]):
        match = _KEY.fullmatch(lines[0][2])
        if match is None:
            raise _refusal(lines[0])
        key, rest = str(_scalar(lines[0], match["key"])), match["rest"]
        if rest:
            found[key], lines = _scalar(lines[0], rest), lines[1:]
        elif len(lines) > 1 and _is_item(lines[1]) and lines[1][1] == indentation:
            found[key], lines = _sequence(lines[1:], indentation)
        else:
            found[key], lines = _node(lines[1:], indentation + 1)
    return found, lines


def _is_item(line: _Line) -> bool:
    return line[2] == "-" or line[2].startswith("- ")


def _scalar(line: _Line, text: str) -> Any:
    if text in _EMPTY:
        return _EMPTY[text].copy()
    if text.startswith('"') and text.endswith('"'):
        return json.loads(text)
    if text.startswith("'") and text.endswith("'"):
        return text[1:-1].replace("''", "'")
    if text[0] in _UNKNOWN or text[0] in "\"'" or " #" in text or ": " in text:
        raise _refusal(line)
    if text in _WORDS:
        return _WORDS[text]
    return int(text) if _NUMBER.fullmatch(text) else text


def _refusal(line: _Line) -> ValueError:
    return ValueError(f"line {line[0]} is more of YAML than is known here: {line[2].strip()}")
