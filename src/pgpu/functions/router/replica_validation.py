"""What a replica says is not believed: its owner's code runs beside it, and the gateway is everybody's.

Whoever says what no front says ends the connection, and with it the replica. It refuses to mend: a header that would end an
answer early could put words into the next one on its caller's connection, which may be of another function.
"""

import math
import re
from functools import lru_cache
from typing import Any, NamedTuple

from pgpu.functions.ipc.call_frames import MalformedFrameError
from pgpu.functions.ipc.messages import BODILESS, Notification, Reply

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+|(?i:set-cookie)")
"""In small letters, but for the one header of which there may be several: those differ in case."""

_FRAMING = frozenset({"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
_STATUSES = range(200, 600)
_MOST_REASON = 200
_TIMES = ("load_seconds", "import_seconds", "born_seconds")


class ReplicaStatus(NamedTuple):
    """How a replica is, in its own words."""

    state: str
    reason: str | None
    load_seconds: float
    import_seconds: float
    born_seconds: float


def check_reply(reply: Reply, *, has_file: bool) -> None:
    """Raise where an answer is none that HTTP can carry as it is.

    Raises:
        MalformedFrameError: So it is.
    """
    if reply.status in BODILESS and (reply.body or has_file or not reply.is_last):
        raise MalformedFrameError(f"status {reply.status} with a body, which would be read as the next answer")
    if reply.status not in _STATUSES or not all(map(_is_plain, reply.headers)):
        raise MalformedFrameError(f"status {reply.status} with {', '.join(reply.headers)[:_MOST_REASON]}")


def read_status(tell: Notification) -> ReplicaStatus:
    """Read news of a replica's state.

    Raises:
        MalformedFrameError: They are none.
    """
    data: dict[str, Any] = tell.data
    state, reason = data.get("state"), data.get("reason")
    times = [each for name in _TIMES if isinstance(each := data.get(name), float) and math.isfinite(each)]
    if not isinstance(state, str) or len(times) < len(_TIMES):
        raise MalformedFrameError("news without a state or its times")
    return ReplicaStatus(state, reason[:_MOST_REASON] if isinstance(reason, str) else None, *times)


def read_pages(tell: Notification) -> dict[str, str]:
    """Read what a function says of itself, JSON by path.

    Raises:
        MalformedFrameError: It is nothing of the kind.
    """
    found = tell.data.get("pages")
    try:
        return {str(path): bytes(body).decode() for path, body in dict(found or {}).items()}
    except (TypeError, ValueError) as error:
        raise MalformedFrameError("pages that are none") from error


@lru_cache(1024)
def _is_plain(name: str) -> bool:
    return name not in _FRAMING and _NAME.fullmatch(name) is not None
