"""Media types: parsing of Content-Type, and content negotiation by Accept."""

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
"""curl's default for every body after `-d`. Counts as no Content-Type, since functions take no forms."""

_ALIASES = {
    "text/json": JSON,
    "application/x-msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
    "application/jsonl": LINES,
    "application/ndjson": LINES,
}


class MediaType(NamedTuple):
    """A parsed Content-Type."""

    essence: str
    """Type and subtype in lower case, aliases resolved; every `…+json` except CloudEvents is JSON."""

    charset: str
    """In lower case; `utf-8` by default."""


@lru_cache(256)
def media_type(content_type: str) -> MediaType:
    """Parse a Content-Type; a malformed one gives a type that no function takes."""
    essence, *parameters = (part.strip() for part in content_type.lower().split(";"))
    pairs = (part.partition("=") for part in parameters)
    charset = next((value.strip('" ') for name, _, value in pairs if name.strip() == "charset"), "utf-8")
    essence = _ALIASES.get(essence, essence)
    if essence.endswith("+json") and not essence.startswith("application/cloudevents"):
        essence = JSON
    return MediaType(essence, charset)


def negotiate(accept: str | None, offers: Sequence[str]) -> str | None:
    """Choose the offer that an Accept header prefers; among equals the first.

    Args:
        accept: The header; None or empty accepts everything.
        offers: Media types, the server's preference first.

    Returns:
        One of the offers, or None if none is accepted.
    """
    ranges = [_parse_range(part) for part in (accept or "*/*").lower().split(",") if part.strip()]
    best = max(offers, key=lambda offer: _quality(offer, ranges), default=None)
    return best if best is not None and _quality(best, ranges) > 0 else None


def _parse_range(part: str) -> tuple[str, float]:
    essence, *parameters = (piece.strip() for piece in part.split(";"))
    quality = next((piece[2:] for piece in parameters if piece.startswith("q=")), "1")
    try:
        amount = min(1.0, max(0.0, float(quality)))
    except ValueError:
        amount = 0.0
    return _ALIASES.get(essence, essence), amount


def _quality(offer: str, ranges: list[tuple[str, float]]) -> float:
    # The most specific range that matches counts (RFC 9110, 12.5.1).
    for pattern in (offer, offer.partition("/")[0] + "/*", "*/*"):
        found = [quality for essence, quality in ranges if essence == pattern]
        if found:
            return max(found)
    return 0.0
