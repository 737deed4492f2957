"""From a request's line and headers to a ticket. No sockets.

It refuses what needs no worker to refuse: a wrong method, a path that no function has, a timeout that is no number.
"""

import itertools
import os
import re
from collections.abc import Iterable

_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_OF_UPGRADE = frozenset({b"upgrade", b"http2-settings"})
_prefix = os.urandom(6).hex()
_count = itertools.count(1)


def plain_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Read headers; names are in lower case already, several of one name are joined as HTTP allows."""
    headers: dict[str, str] = {}
    for name, value in raw:
        key, text = name.decode("latin-1"), value.decode("latin-1")
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def plain_head(line: bytes, raw: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Write a request's head without what asks for another protocol than HTTP/1.1."""
    kept = [(name, value) for name, value in raw if name not in _OF_UPGRADE]
    lines = [b"%b: %b" % (name, _without_upgrade(value) if name == b"connection" else value) for name, value in kept]
    return b"\r\n".join([line, *lines, b"\r\n"])


def _without_upgrade(connection: bytes) -> bytes:
    words = [word.strip() for word in connection.split(b",")]
    return b", ".join(word for word in words if word.lower() not in _OF_UPGRADE)


def request_id(headers: dict[str, str]) -> str:
    """Take the caller's id if it is harmless in a log and a header, else make one."""
    given = headers.get("x-request-id")
    return given if given is not None and _ID.fullmatch(given) else f"{_prefix}-{next(_count):x}"


def timeout_seconds(headers: dict[str, str], declared_seconds: float) -> float | None:
    """Read how long the caller waits, at most what the function allows.

    Returns:
        None: `Request-Timeout` is not a number of seconds.
    """
    given = headers.get("request-timeout")
    if given is None:
        return declared_seconds
    try:
        seconds = float(given)
    except ValueError:
        return None
    return min(seconds, declared_seconds) if seconds > 0 else None
