r"""Words that may hold bytes that are no text: Linux allows any in names, arguments and environments.

Python carries each such byte as a lone surrogate (PEP 383), and gives the byte back to the kernel. Nobody else takes one:
SQLite, a container engine and a terminal want UTF-8. What is said about such words has the byte written out: `\xff`.
"""

import os


def is_text(word: str) -> bool:
    """Whether a word can be written as UTF-8."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_bytes(word: str) -> bool:
    """Whether a word can be given to the kernel: bytes of any kind, none of them zero."""
    try:
        return b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def escape_undecodable(words: str) -> str:
    r"""Return words as text, each byte that is none written as `\xff`."""
    if is_text(words):
        return words
    return "".join(each if is_text(each) else _escaped(each) for each in words)


def _escaped(surrogate: str) -> str:
    code = ord(surrogate)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"  # noqa: PLR2004 - PEP 383's range
