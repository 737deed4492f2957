"""Events on the cluster's objects, for users and operators who do not read a driver's log.

A thread writes them from a bounded queue, so recording never waits and never fails. The same text on the same object is written
once in ten minutes; beyond a burst of 20, one event a second. The rest is dropped: the log has every line.
"""

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.events_v1 import Event

from pgpu.errors import ClusterError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import ClusterClient, ObjectName
from pgpu.structs import Struct

REPEAT_SECONDS = 600.0
"""The API server keeps events for an hour, so a lasting condition always has one."""

BURST = 20
_FAREWELL_SECONDS = 5.0
_LONGEST_NOTE = 1000
_LONGEST_NAME = 200
_LONGEST_INSTANCE = 128
_MOST_REMEMBERED = 1000
# Kubernetes accepts events on objects without a namespace only here.
_CLUSTER_NAMESPACE = "default"


class _EventText(Struct, frozen=True):
    about: ObjectName
    reason: str
    note: str
    is_warning: bool


class EventRecorder:
    """Records events as the driver of one node. Thread-safe."""

    def __init__(self, cluster: ClusterClient, node_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Write nothing before `start`; `clock` returns monotonic seconds."""
        self._cluster = cluster
        self._instance = node_name[:_LONGEST_INSTANCE]
        self._clock = clock
        self._guard = threading.Lock()
        self._last: dict[_EventText, float] = {}
        # A token bucket of BURST tokens that fills by one a second.
        self._tokens = float(BURST)
        self._tokens_at = clock()
        self._waiting: queue.Queue[_EventText | None] = queue.Queue(maxsize=BURST * 2)
        self._thread = threading.Thread(target=self._write_all, name="pgpu-events", daemon=True)

    def start(self) -> None:
        """Start the writing thread."""
        self._thread.start()

    def registered(self) -> None:
        """See `Companion.registered`; nothing to do."""

    def stop(self) -> None:
        """Write what waits and end; waits 5 s at most."""
        with contextlib.suppress(queue.Full):  # then the thread writes until this process ends
            self._waiting.put_nowait(None)
        self._thread.join(_FAREWELL_SECONDS)

    def warn(self, about: ObjectName, reason: str, note: str) -> None:
        """Record a warning; `reason` is one word in CamelCase, `note` one line."""
        self._record(_EventText(about, reason, note[:_LONGEST_NOTE], is_warning=True))

    def note(self, about: ObjectName, reason: str, note: str) -> None:
        """Record a normal event; arguments as of `warn`."""
        self._record(_EventText(about, reason, note[:_LONGEST_NOTE], is_warning=False))

    def _record(self, text: _EventText) -> None:
        if self._is_due(text):
            # Full only if the server has not answered for long: then events are dropped.
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(text)

    def _is_due(self, text: _EventText) -> bool:
        now = self._clock()
        with self._guard:
            if now - self._last.get(text, float("-inf")) < REPEAT_SECONDS:
                return False
            # Refill by the time since the last event, then take one token.
            self._tokens = min(float(BURST), self._tokens + now - self._tokens_at)
            self._tokens_at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            # Reinserted at the end, so that the first key is the oldest.
            self._last.pop(text, None)
            self._last[text] = now
            while len(self._last) > _MOST_REMEMBERED:
                del self._last[next(iter(self._last))]
            return True

    def _write_all(self) -> None:
        while (text := self._waiting.get()) is not None:
            # A lost event is no reason for an action: the log has the same line.
            with contextlib.suppress(ClusterError):
                self._cluster.create_event(self._event(text))

    def _event(self, text: _EventText) -> Event:
        about = text.about
        # The API server accepts no name whose part ends in a dot or dash.
        prefix = about.name[:_LONGEST_NAME].rstrip(".-")
        return Event(
            metadata=ObjectMeta(
                name=f"{prefix}.{uuid.uuid4().hex[:16]}", namespace=about.namespace or _CLUSTER_NAMESPACE
            ),
            eventTime=datetime.now(UTC),
            type="Warning" if text.is_warning else "Normal",
            reason=text.reason,
            action=text.reason,
            note=text.note,
            regarding=ObjectReference(
                apiVersion=about.api_version,
                kind=about.kind,
                name=about.name,
                namespace=about.namespace or None,
                uid=about.uid or None,
            ),
            reportingController=names.DRIVER,
            reportingInstance=self._instance,
        )
