"""Codes of error messages, such as `E4f2a1`: each leads to its line in docs/reference/errors.md.

`tools/generate_reference.py` finds the messages in the program's text, and writes the page and `error_codes.json`: for each
message its code and the parts between its variable ones. A message is found by these parts, so that errors of servers, which
arrive as texts, have codes as well. Only printing an error reads the file.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files


def code_of(message: str) -> str | None:
    """Return the code of the message whose fixed parts are longest among those that match; None for a text of others."""
    matching = ((sum(map(len, parts)), code) for code, parts in _known().items() if _matches(message, parts))
    length, code = max(matching, default=(0, None))
    return code if length else None


@cache
def _known() -> Mapping[str, Sequence[str]]:
    import json

    known: Mapping[str, Sequence[str]] = json.loads(
        (files("pgpu.cli.output") / "error_codes.json").read_text(encoding="utf-8")
    )
    return known


def _matches(message: str, parts: Sequence[str]) -> bool:
    """Whether a text has these parts in this order, the first at its begin and the last at its end."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return message == first
    if not (message.startswith(first) and message.endswith(last)):
        return False
    place, end = len(first), len(message) - len(last)
    for part in parts[1:-1]:
        place = message.find(part, place, end)
        if place < 0:
            return False
        place += len(part)
    return place <= end
