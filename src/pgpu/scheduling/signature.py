"""What makes two runs the same program: its file or image, and its arguments without paths.

A signature is one line that people can read: `train.py@3f9a12cd python --epochs 5 --batch-size 32 --data *`. Its first
word names the program, the rest how it was called. Its family is the same line with every number taken out, so that
runs at one size can tell something of another. It refuses to look at files: what the program is, it is told.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

PATH = "*"
"""Stands for a path: outputs and data sets move, the program stays."""

NUMBER = "#"
"""Stands for a number in the text of a family."""

_LONGEST_WORD = 64
"""Longer arguments are code or data, of which only a digest is kept."""

_NUMBER = re.compile(r"(?:^|(?<=[ =,:]))\d+(?:\.\d+)?(?=[ ,:]|$)")
_SCRIPTS = (".py", ".sh", ".ipynb", ".jl", ".R", ".pl", ".rb", ".js", ".lua")
_PATH = re.compile(r"(/|\.\.?/|~|file://)[^\s]*$|\.\.?$")
"""Written so that it can be nothing else: `org/model` may name a model, and models differ in size."""

_PLAIN = re.compile(r"[!-~]+")


@dataclass(frozen=True, slots=True)
class Family:
    """A signature taken apart."""

    text: str
    """With `#` for each number."""

    numbers: tuple[float, ...]
    """In the order of the text."""


def signature_of(name: str, identity: str, arguments: Sequence[str]) -> str:
    """Name a program as it is called.

    Args:
        name: For people, such as `train.py` or an image's name.
        identity: What tells it from others of this name: the file's whole path, or the image's id.
        arguments: Without the program itself.
    """
    program = f"{_word(name)}@{_digest(identity)}"
    return " ".join((program, *(_argument(text) for text in arguments)))


def program_of(signature: str) -> str:
    """Return the first word, which all calls of one program share."""
    return signature.partition(" ")[0]


@lru_cache(maxsize=4096)
def family_of(signature: str) -> Family:
    """Take the numbers out of how a program is called."""
    program, space, rest = signature.partition(" ")
    numbers = tuple(float(text) for text in _NUMBER.findall(rest))
    return Family(program + space + _NUMBER.sub(NUMBER, rest), numbers)


def _argument(text: str) -> str:
    option, equals, value = text.partition("=")
    if equals and option.startswith("-"):
        return f"{_word(option)}={_without_path(value)}"
    return _without_path(text)


def is_script(word: str) -> bool:
    """Whether a word is named like a script."""
    return word.endswith(_SCRIPTS) and not word.startswith("-")


def _without_path(text: str) -> str:
    """Of a script its name stays: it says what is done, wherever it lies."""
    if not _PATH.match(text):
        return _word(text)
    return f"{PATH}/{_word(text.rpartition('/')[2])}" if is_script(text) else PATH


def _word(text: str) -> str:
    """Keep a short word; of anything else a digest, so that a signature stays one line."""
    is_short = len(text) <= _LONGEST_WORD and _PLAIN.fullmatch(text) is not None
    return text if is_short else f"~{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:8]
