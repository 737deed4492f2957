"""Keeps a scorer up to date: lists each kind of objects, then watches it, in one thread for each kind.

A watch that ends is begun again at its last version; if the server no longer has that version, the kind is listed anew, and objects missing
from the list are removed. While the API server is away, the threads go on trying.
"""

import logging
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from lightkube.core.resource import Resource
from lightkube.resources import core_v1, resource_v1

from pgpu.errors import ClusterError, ClusterUnavailableError, HistoryGoneError, RequestError
from pgpu.kubernetes.api import ClusterClient, ObjectWatch
from pgpu.kubernetes.extender import scheduled_objects
from pgpu.kubernetes.extender.cluster_state import ClusterState
from pgpu.kubernetes.extender.scorer import Scorer
from pgpu.kubernetes.names import DRIVER
from pgpu.structs import Struct, field

_log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""Between two attempts, also after success: a server may end each watch at once, or have no old version at all."""

STALE_SECONDS = 30.0
"""The state counts as current for so long without a watch: slightly wrong scores are better than none."""

_Found = TypeVar("_Found", bound=Resource)


class _WatchedKind(Struct, Generic[_Found], frozen=True):
    resource: type[_Found]
    put: Callable[[Any, _Found | None], None]
    """Stores an object under its key; None: it was deleted."""

    key: Callable[[_Found], Hashable]
    field_selector: str | None = None


class ObjectWatcher(Generic[_Found]):
    """Lists and watches one kind of objects in a thread."""

    def __init__(self, cluster: ClusterClient, kind: _WatchedKind[_Found], clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._kind = kind
        self._clock = clock
        self._stop = threading.Event()
        self._known: set[Hashable] = set()
        self._watch: ObjectWatch[_Found] | None = None
        # When the last open watch ended; None: there was none.
        self._ended_seconds: float | None = None

        self._problem = ""
        self._thread = threading.Thread(target=self._run, name=f"follows {kind.resource.__name__}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch and the thread."""
        self._stop.set()
        watch = self._watch
        if watch is not None:
            watch.close()
        self._thread.join()

    def is_current(self) -> bool:
        """Whether a watch is open, or was lately."""
        watch, ended_seconds = self._watch, self._ended_seconds
        if watch is not None and watch.is_open:
            return True
        return ended_seconds is not None and self._clock() - ended_seconds < STALE_SECONDS

    def _run(self) -> None:
        version: str | None = None
        while not self._stop.is_set():
            try:
                # A version that was listed or watched up to is resumed: listing 30,000 pods again would cost seconds.
                version = self._list() if version is None else version
                version = self._watch_once(version)
                self._problem = ""
            except HistoryGoneError:
                version = None
            except ClusterError as error:
                if str(error) != self._problem and not self._stop.is_set():
                    self._problem = str(error)
                    hint = f"; {error.hint}" if error.hint else ""
                    _log.warning("%s (%s)%s", self._problem, self._kind.resource.__name__, hint)
            self._stop.wait(AGAIN_SECONDS)

    def _list(self) -> str:
        listed: set[Hashable] = set()

        def note(found: _Found) -> None:
            listed.add(key := self._kind.key(found))
            self._known.add(key)
            self._put(key, found)

        version = self._cluster.for_each(self._kind.resource, note, self._kind.field_selector)
        # Deleted while no watch was open.
        for key in self._known - listed:
            self._kind.put(key, None)
        self._known = listed
        return version

    def _watch_once(self, version: str) -> str:
        """Follow one watch to its end, and return the version at which the next one begins."""
        self._watch = watch = self._cluster.watch(self._kind.resource, version, self._kind.field_selector)
        if self._stop.is_set():  # `stop` has run without this watch
            watch.close()
        try:
            for change in watch.changes():
                key = self._kind.key(change.found)
                if change.kind == "DELETED":
                    self._known.discard(key)
                    self._kind.put(key, None)
                else:
                    self._known.add(key)
                    self._put(key, change.found)
        except ClusterUnavailableError:
            if watch.resource_version == version:  # nothing was received: report it
                raise
        finally:
            if watch.was_open:
                self._ended_seconds = self._clock()
        return watch.resource_version

    def _put(self, key: Hashable, found: _Found) -> None:
        try:
            self._kind.put(key, found)
        except RequestError as error:  # one object with an invalid amount; the others are valid
            _log.warning("%s %s: %s", self._kind.resource.__name__, key, error)
        except Exception as error:  # noqa: BLE001 - a thread that ended would leave its kind out of date for ever
            _log.error("%s %s: a bug of pgpu: %r", self._kind.resource.__name__, key, error)


class ClusterWatch(Struct):
    """The watchers of all kinds that a scorer needs."""

    watchers: list[ObjectWatcher[Any]] = field(default_factory=list)

    def start(self) -> None:
        """Start their threads."""
        for watcher in self.watchers:
            watcher.start()

    def stop(self) -> None:
        """End them."""
        for watcher in self.watchers:
            watcher.stop()

    def is_current(self) -> bool:
        """Whether all kinds are current."""
        return all(watcher.is_current() for watcher in self.watchers)


def watch_cluster(cluster: ClusterClient, scorer: Scorer, clock: Callable[[], float]) -> ClusterWatch:
    """Return watchers that update a scorer; they only list and watch."""

    def put_with(
        put: Callable[[ClusterState, Any, Any], None], decode: Callable[[Any], object]
    ) -> Callable[[Any, Any], None]:
        def store(key: Any, found: Any) -> None:
            value = None if found is None else decode(found)
            scorer.update(lambda state: put(state, key, value))

        return store

    decode = scheduled_objects
    kinds: tuple[_WatchedKind[Any], ...] = (
        _WatchedKind(core_v1.Node, put_with(ClusterState.put_node, decode.node_of), _name),
        _WatchedKind(resource_v1.DeviceClass, put_with(ClusterState.put_class, decode.class_of), _name),
        _WatchedKind(
            resource_v1.ResourceSlice,
            put_with(ClusterState.put_slice, decode.slice_of),
            _name,
            f"spec.driver={DRIVER}",
        ),
        _WatchedKind(resource_v1.ResourceClaimTemplate, put_with(ClusterState.put_template, decode.template_of), _key),
        _WatchedKind(
            resource_v1.ResourceClaim, lambda key, found: scorer.put_claim(key, found and decode.claim_of(found)), _key
        ),
        _WatchedKind(core_v1.Pod, lambda uid, found: scorer.put_pod(uid, found and decode.pod_of(found)), _uid),
    )
    return ClusterWatch([ObjectWatcher(cluster, kind, clock) for kind in kinds])


def _name(found: Any) -> str:
    return (found.metadata and found.metadata.name) or ""


def _key(found: Any) -> Hashable:
    return scheduled_objects.key_of(found.metadata)


def _uid(found: Any) -> str:
    return (found.metadata and found.metadata.uid) or ""
