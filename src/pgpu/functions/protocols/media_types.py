"""Media types: which one a body has, and which one a caller accepts.

It refuses to guess a type from a body's bytes.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

JSON = "application/json"
MSGPACK = "application/msgpack"
TEXT = "text/plain"
BYTES = "application/octet-stream"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
EVENT = "application/cloudevents+json"
FORM = "application/x-www-form-urlencoded"
"""What curl says of every body after `-d`, whatever it is: as if nothing were said, since functions take no forms."""

_ALIASES = {
    "text/json": JSON,
    "application/x-msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
    "application/jsonl": LINES,
    "application/ndjson": LINES,
}


class MediaType(NamedTuple):
    """A Content-Type, taken apart."""

    essence: str
    """Type and subtype in small letters, aliases resolved; every `…+json` that is no event is JSON."""

    charset: str
    """In small letters; `utf-8` where nothing is said."""


@lru_cache(256)
def media_type(content_type: str) -> MediaType:
    """Take a Content-Type apart; what is malformed becomes a type that nobody takes."""
    essence, *parameters = (part.strip() for part in content_type.lower().split(";"))
    pairs = (part.partition("=") for part in parameters)
    charset = next((value.strip('" ') for name, _, value in pairs if name.strip() == "charset"), "utf-8")
    essence = _ALIASES.get(essence, essence)
    if essence.endswith("+json") and not essence.startswith("application/cloudevents"):
        essence = JSON
    return MediaType(essence, charset)


def negotiate(accept: str | None, offers: Sequence[str]) -> str | None:
    """Choose which of the offers a caller likes best; among equals the first.

    Args:
        accept: The Accept header; None or empty accepts everything.
        offers: Media types, the server's favourite first.

    Returns:
        One of the offers, or None if the caller accepts none.
    """
    ranges = _ranges(accept or "*/*")
    best = max(offers, key=lambda offer: _quality(offer, ranges), default=None)
    return best if best is not None and _quality(best, ranges) > 0 else None


def _ranges(accept: str) -> list[tuple[str, float]]:
    return [_range(part) for part in accept.lower().split(",") if part.strip()]


def _range(part: str) -> tuple[str, float]:
    essence, *parameters = (piece.strip() for piece in part.split(";"))
    quality = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
    try:
        amount = min(1.0, max(0.0, float(quality)))
    except ValueError:
        amount = 0.0
    return _ALIASES.get(essence, essence), amount


def _quality(offer: str, ranges: list[tuple[str, float]]) -> float:
    """The quality of the most specific range that covers the offer (RFC 9110, 12.5.1)."""
    for cover in (offer, offer.partition("/")[0] + "/*", "*/*"):
        found = [quality for essence, quality in ranges if essence == cover]
        if found:
            return max(found)
    return 0.0
