"""Events on the cluster's objects: what a user or operator should know without reading a driver's log.

Telling never waits and never fails: a thread of its own writes. The same words on the same object are written once in ten
minutes, and at most twenty in a burst, then one a second; what is more is left out, since the log has it all.
"""

import contextlib
import queue
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from lightkube.models.core_v1 import ObjectReference
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.events_v1 import Event

from pgpu.errors import ClusterError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import Cluster, ObjectName

REPEAT_SECONDS = 600.0
"""Events live for an hour; who looks within it finds the words that still hold."""

BURST = 20
_FAREWELL_SECONDS = 5.0
_LONGEST_NOTE = 1000
_LONGEST_NAME = 200
_MOST_REMEMBERED = 1000
_NAMESPACE_OF_NONE = "default"
"""Where events on objects without a namespace lie: Kubernetes takes no other."""


@dataclass(frozen=True, slots=True)
class _Told:
    about: ObjectName
    reason: str
    note: str
    is_warning: bool


class EventRecorder:
    """Tells the cluster. Safe for many threads."""

    def __init__(self, cluster: Cluster, node_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Record as the driver of one node; `clock` says seconds that only grow."""
        self._cluster = cluster
        self._instance = node_name[:128]
        self._clock = clock
        self._guard = threading.Lock()
        self._last: dict[_Told, float] = {}
        self._allowance = float(BURST)
        self._allowance_at = clock()
        self._waiting: queue.Queue[_Told | None] = queue.Queue(maxsize=BURST * 2)
        self._thread = threading.Thread(target=self._write_all, name="pgpu-events", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def registered(self) -> None:
        """Nothing changes when the kubelet takes the driver."""

    def stop(self) -> None:
        """Write what still waits, and end; does not wait for a server that does not answer."""
        with contextlib.suppress(queue.Full):  # then it writes as long as this process lives
            self._waiting.put_nowait(None)
        self._thread.join(_FAREWELL_SECONDS)

    def warn(self, about: ObjectName, reason: str, note: str) -> None:
        """Tell of something that is wrong; `reason` is one word in capitals, `note` one line."""
        self._tell(_Told(about, reason, note[:_LONGEST_NOTE], is_warning=True))

    def note(self, about: ObjectName, reason: str, note: str) -> None:
        """Tell of something that is as it should be."""
        self._tell(_Told(about, reason, note[:_LONGEST_NOTE], is_warning=False))

    def _tell(self, told: _Told) -> None:
        if self._is_due(told):
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(told)

    def _is_due(self, told: _Told) -> bool:
        now = self._clock()
        with self._guard:
            if now - self._last.get(told, float("-inf")) < REPEAT_SECONDS:
                return False
            self._allowance = min(float(BURST), self._allowance + now - self._allowance_at)
            self._allowance_at = now
            if self._allowance < 1:
                return False
            self._allowance -= 1
            self._remember(told, now)
            return True

    def _remember(self, told: _Told, now: float) -> None:
        self._last.pop(told, None)
        self._last[told] = now
        while len(self._last) > _MOST_REMEMBERED:
            del self._last[next(iter(self._last))]

    def _write_all(self) -> None:
        while (told := self._waiting.get()) is not None:
            try:
                self._cluster.create_event(self._event(told))
            except ClusterError:
                continue  # an event that cannot be written is no reason for anything; the log has the same words

    def _event(self, told: _Told) -> Event:
        about = told.about
        namespace = about.namespace or _NAMESPACE_OF_NONE
        regarding = ObjectReference(
            apiVersion=about.api_version,
            kind=about.kind,
            name=about.name,
            namespace=about.namespace or None,
            uid=about.uid or None,
        )
        return Event(
            metadata=ObjectMeta(name=f"{_cut(about.name)}.{uuid.uuid4().hex[:16]}", namespace=namespace),
            eventTime=datetime.now(UTC),
            type="Warning" if told.is_warning else "Normal",
            reason=told.reason,
            action=told.reason,
            note=told.note,
            regarding=regarding,
            reportingController=names.DRIVER,
            reportingInstance=self._instance,
        )


def _cut(name: str) -> str:
    """Shorten a name for an event's own: no part of it may end in a dot or dash."""
    return name[:_LONGEST_NAME].rstrip(".-")
