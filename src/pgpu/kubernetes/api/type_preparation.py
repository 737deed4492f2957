"""What msgspec works out of a type when it first meets it, worked out by one thread alone.

msgspec notes in the type itself what it has found so far: a second thread that meets the type meanwhile reads what is not
there yet, and the process dies (seen as a segmentation fault in the garbage collector with msgspec 0.22, of two threads whose first answers were errors).
"""

import contextlib
import gc
import threading
from collections.abc import Iterator

import msgspec
from lightkube.core import decoders
from lightkube.core.resource import Resource
from lightkube.models.meta_v1 import Status

_LOCK = threading.Lock()
_PREPARED: set[type[object]] = set()


def prepare_type(kind: type[object] = Status) -> None:
    """Let every thread decode objects of a kind, lists of them, and refusals; cheap when it is done."""
    if kind not in _PREPARED:
        with _LOCK, _without_collector():
            _meet(Status)
            _meet(decoders.WatchEvent)
            _meet(kind)
            if issubclass(kind, Resource):
                decoders.decode_list(b'{"items": []}', kind)
            _PREPARED.add(kind)


def _meet(kind: type[object]) -> None:
    with contextlib.suppress(msgspec.ValidationError):  # an empty object lacks what is required; the type is known now
        msgspec.convert({}, kind)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
