"""Validation of a replica's messages: its owner's code runs next to it, and the gateway serves all users.

An invalid message ends the connection, and with it the replica. Nothing is repaired: a header that ends a response early
could put bytes into the next response on the caller's connection, which may belong to another function.
"""

import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

from pgpu.functions.ipc.call_frames import MalformedFrameError
from pgpu.functions.ipc.messages import BODILESS, Notification, Reply

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+|(?i:set-cookie)")
"""In lower case, except for the one header of which there may be several, which differ in case."""

_FRAMING = frozenset({"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
_STATUSES = range(200, 600)
_MOST_REASON = 200
_TIMES = ("load_seconds", "import_seconds", "born_seconds")


class ReplicaStatus(NamedTuple):
    """A replica's own report of its state."""

    state: str
    reason: str | None
    load_seconds: float
    import_seconds: float
    born_seconds: float


def check_reply(reply: Reply, *, has_file: bool) -> None:
    """Check that HTTP can carry a reply as it is.

    Raises:
        MalformedFrameError: It cannot.
    """
    if reply.status in BODILESS and (reply.body or has_file or not reply.is_last):
        raise MalformedFrameError(f"status {reply.status} with a body, which would be read as the next answer")
    if reply.status not in _STATUSES or not all(map(_is_plain, reply.headers)):
        raise MalformedFrameError(f"status {reply.status} with {', '.join(reply.headers)[:_MOST_REASON]}")


def read_status(notification: Notification) -> ReplicaStatus:
    """Read a `state` notification.

    Raises:
        MalformedFrameError: It has no state, or one of its times is missing.
    """
    data: dict[str, Any] = notification.data
    state, reason = data.get("state"), data.get("reason")
    times = [each for name in _TIMES if isinstance(each := data.get(name), float) and math.isfinite(each)]
    if not isinstance(state, str) or len(times) < len(_TIMES):
        raise MalformedFrameError("a status without a state or its times")
    return ReplicaStatus(state, reason[:_MOST_REASON] if isinstance(reason, str) else None, *times)


def read_pages(notification: Notification) -> dict[str, str]:
    """Read a `description` notification: JSON by path.

    Raises:
        MalformedFrameError: It is something else.
    """
    found = notification.data.get("pages")
    try:
        return {str(path): bytes(body).decode() for path, body in dict(found or {}).items()}
    except (TypeError, ValueError) as error:
        raise MalformedFrameError("pages that are not text by path") from error


@lru_cache(1024)
def _is_plain(name: str) -> bool:
    return name not in _FRAMING and _NAME.fullmatch(name) is not None
