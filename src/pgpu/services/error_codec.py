"""Errors as a server writes them and a client raises them again: the same class, the same words, the same hint.

An error of a class that the reader does not know becomes the nearest one that it does know. This module refuses to
choose exit codes and HTTP statuses.
"""

from collections.abc import Iterator
from typing import Any

from pgpu.errors import PgpuBug, PgpuError, RequestError

Complaint = dict[str, Any]


def encode_error(error: PgpuError) -> Complaint:
    """Describe an error; `kinds` are its classes, the narrowest first."""
    return {
        "error": {
            "kinds": [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, PgpuError)],
            "message": str(error),
            "hint": error.hint,
            "nearest_bytes": error.nearest_bytes if isinstance(error, RequestError) else None,
        }
    }


def decode_error(complaint: Any) -> PgpuError:
    """Make the error that somebody described; of what is no description, an error that says so."""
    try:
        fields = complaint["error"]
        message, hint, kinds = str(fields["message"]), fields.get("hint"), list(fields["kinds"])
    except (TypeError, KeyError):
        return PgpuBug("the server's answer cannot be understood", hint="are both sides of one version?")
    known = {kind.__name__: kind for kind in _classes(PgpuError)}
    kind = next((known[name] for name in kinds if name in known), PgpuError)
    if issubclass(kind, RequestError):
        return kind(message, hint=hint, nearest_bytes=fields.get("nearest_bytes"))
    return kind(message, hint=hint)


def _classes(root: type[PgpuError]) -> Iterator[type[PgpuError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _classes(kind)
