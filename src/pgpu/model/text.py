r"""Strings that may hold undecodable bytes: Linux allows any bytes in names, arguments and environments.

Python carries each such byte as a lone surrogate (PEP 383) and gives the byte back to the kernel. SQLite, container engines and
terminals accept UTF-8 only. In messages such a byte is written as `\xff`.
"""

import os


def is_text(word: str) -> bool:
    """Whether a string can be encoded as UTF-8."""
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_bytes(word: str) -> bool:
    """Whether a string can be passed to the kernel: any bytes without a zero byte."""
    try:
        return b"\0" not in os.fsencode(word)
    except UnicodeEncodeError:
        return False


def escape_undecodable(words: str) -> str:
    r"""Return a string as UTF-8 text, each undecodable byte written as `\xff`."""
    if is_text(words):
        return words
    return "".join(each if is_text(each) else _escaped(each) for each in words)


def _escaped(surrogate: str) -> str:
    code = ord(surrogate)
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"  # noqa: PLR2004 - PEP 383's range
