"""Words that somebody else chose, made safe for a terminal: what would steer it, or hide a word, is written out.

A job's command and environment are its owner's to choose, and whoever lists jobs reads them. What a job itself prints
passes through `pgpu logs` and `run` as it is, as with every program.
"""

import re
import unicodedata

from pgpu.model.text import escape_undecodable, is_text

_UNSAFE_IN_JSON = re.compile("[\ud800-\udfff\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""What JSON lets stand as it is, bytes that are no text among it; the controls below a space it escapes itself."""


def visible(text: str) -> str:
    """Return a text in which nothing steers a terminal; tabs and ends of lines are written out, too."""
    return "".join(each if each.isprintable() or unicodedata.category(each) == "Zs" else _shown(each) for each in text)


def visible_json(text: str) -> str:
    """Return a JSON text that means the same and steers no terminal."""
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _shown(character: str) -> str:
    if not is_text(character):
        return escape_undecodable(character)
    return character.encode("unicode_escape").decode("ascii")
