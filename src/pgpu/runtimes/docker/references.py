"""Validates image names. Pure.

A name becomes part of a URL path of the Engine API; an invalid one could address another resource.
"""

import re

from pgpu.errors import RequestError

_DOMAIN_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_DOMAIN = rf"(?:{_DOMAIN_PART}(?:\.{_DOMAIN_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_TAG = r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}"
_REFERENCE = re.compile(rf"(?:{_DOMAIN}/)?{_COMPONENT}(?:/{_COMPONENT})*(?::{_TAG})?(?:@{_DIGEST})?")
"""Source: the grammar of distribution/reference, which Docker and Podman use; an image's ID matches it too."""

_LONGEST = 255 + 1 + 128 + 1 + 256
"""A name, a tag and a digest. Source: the same; names are limited to 255."""

_ID = re.compile(r"sha256:[0-9a-f]{64}")


def refuse_bad_reference(image: str) -> None:
    """Raise RequestError if a text is not a valid image name."""
    if len(image) > _LONGEST or not _REFERENCE.fullmatch(image):
        shown = image if len(image) <= _LONGEST else f"{image[:64]}…"
        raise RequestError(
            f"{shown!r} is not an image's name", hint="write [HOST[:PORT]/]NAME[:TAG][@DIGEST], in small letters"
        )


def is_image_id(text: object) -> bool:
    """True for the ID of an image; containers and volumes have other formats."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None
