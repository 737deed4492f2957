"""What a hall says to whom it does not serve. Pure.

It refuses to tell why a replica fails: that is in its log.
"""

import math

from pgpu.functions.protocols import Refusal
from pgpu.functions.router.version_load import VersionLoad
from pgpu.model import VersionState

WORKER_DIED = Refusal(502, "worker_died", "the replica ended while it served this request")
GONE = Refusal(404, "not_found", "the function is not there any more")
LATE_ANSWER = Refusal(504, "deadline", "the answer did not come in time")
LATE_TURN = Refusal(504, "deadline", "its turn did not come in time")
NO_MEMORY = Refusal(503, "no_memory", "no replica has got its memory in time", {"retry-after": "5"})
STARTING_TIMEOUT = Refusal(503, "starting_timeout", "the function did not start in time", {"retry-after": "5"})
_CRASH_LOOP = Refusal(503, "crash_loop", "the function could not be started several times", {"retry-after": "30"})
_VERSION_FAILED = Refusal(503, "version_failed", "this version of the function cannot be served")
_LONGEST_SECONDS = 60


def queue_full(seconds: float) -> Refusal:
    """Refuse one more where the queue is done in so many seconds."""
    after = {"retry-after": str(min(_LONGEST_SECONDS, max(1, math.ceil(seconds))))}
    return Refusal(429, "queue_full", "too many requests wait already", after)


def hopeless_refusal(load: VersionLoad) -> Refusal:
    """Refuse a call of a version that cannot be served now."""
    return _VERSION_FAILED if load.version.state is VersionState.FAILED else _CRASH_LOOP
