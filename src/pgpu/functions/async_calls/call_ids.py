"""Under which id a call is kept. Pure.

Ours are random, a caller's own and an event's are digests, each of a kind of its own and of one caller: nobody can guess or
take another's.
"""

import hashlib
import secrets

import msgspec

_EVENT = "application/cloudevents+json"


class _Event(msgspec.Struct):
    id: str
    source: str


def new_call_id() -> str:
    """Return the id of a call that its caller gave none."""
    return secrets.token_hex(16)


def named_call_id(function: str, caller: str, name: str) -> str:
    """Return the id of a call that its caller named."""
    return _digest("n", function, caller, name)


def event_call_id(function: str, target: str, caller: str, headers: dict[str, str], body: bytes) -> str | None:
    """Return the id of an event's delivery by one caller to one target; None: it is no event.

    Source and id together are unique (CloudEvents 1.0, `id`), as far as its caller is believed. An application may get one event at
    several of its paths.
    """
    if headers.get("content-type", "").partition(";")[0].strip().lower() == _EVENT:
        try:
            event = msgspec.json.decode(body, type=_Event)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        return _digest("e", function, target, caller, event.source, event.id)
    if "ce-id" in headers and "ce-source" in headers:
        return _digest("e", function, target, caller, headers["ce-source"], headers["ce-id"])
    return None


def request_digest(path: str, query: str, headers: dict[str, str], body: bytes) -> str:
    """Return what tells two requests apart."""
    return _digest("r", path, query, headers.get("content-type", ""), hashlib.sha256(body).hexdigest())


def _digest(kind: str, *words: str) -> str:
    joined = "".join(f"{len(word)}:{word}" for word in words)
    return f"{kind}-{hashlib.sha256(joined.encode('utf-8', 'surrogateescape')).hexdigest()[:40]}"
