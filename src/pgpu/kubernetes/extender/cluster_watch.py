"""Keeps a scorer told of the cluster: lists each kind of objects, then watches it, again and again.

A watch that ends is begun anew where it ended; a version that the server has forgotten means a new list, and whatever is
not in that is gone. Nothing is written. It refuses to stop for an error: while the API server is away, it asks on.
"""

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lightkube.core.resource import Resource
from lightkube.resources import core_v1, resource_v1

from pgpu.errors import ClusterError, ClusterUnavailableError, HistoryGoneError, RequestError
from pgpu.kubernetes.api import Change, Cluster, Watch
from pgpu.kubernetes.extender import object_decoding
from pgpu.kubernetes.extender.cluster_state import ClusterState
from pgpu.kubernetes.extender.scorer import Scorer
from pgpu.kubernetes.names import DRIVER

AGAIN_SECONDS = 1.0
"""Between two questions, whether the API server does not answer, ends each watch at once, or has forgotten every version."""

STALE_SECONDS = 30.0
"""How long what is known may go without a watch: scores that are a little wrong are better than none."""

_Found = TypeVar("_Found", bound=Resource)


@dataclass(frozen=True, slots=True)
class _Kind(Generic[_Found]):
    """One kind of objects."""

    resource: type[_Found]
    put: Callable[[Any, _Found | None], None]
    """Notes an object under its key; None says that it is gone."""

    key: Callable[[_Found], Hashable]
    field_selector: str | None = None


class ObjectWatcher(Generic[_Found]):
    """Follows one kind of objects in a thread of its own."""

    def __init__(
        self, cluster: Cluster, kind: _Kind[_Found], say: Callable[[str], None], clock: Callable[[], float]
    ) -> None:
        self._cluster = cluster
        self._kind = kind
        self._say = say
        self._clock = clock
        self._ending = threading.Event()
        self._known: set[Hashable] = set()
        self._watch: Watch[_Found] | None = None
        self._heard_seconds: float | None = None
        """When the last watch ended; None before."""

        self._trouble = ""
        self._thread = threading.Thread(target=self._follow, name=f"follows {kind.resource.__name__}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; what waits for the API server is woken."""
        self._ending.set()
        watch = self._watch
        if watch is not None:
            watch.close()
        self._thread.join()

    def is_current(self) -> bool:
        """Whether all objects are known as they are, or were lately."""
        watch, heard_seconds = self._watch, self._heard_seconds
        if watch is not None and watch.is_open:
            return True
        return heard_seconds is not None and self._clock() - heard_seconds < STALE_SECONDS

    def _follow(self) -> None:
        version: str | None = None
        while not self._ending.is_set():
            try:
                version = self._listed() if version is None else version
                version = self._watched(version)
                self._trouble = ""
            except HistoryGoneError:
                version = None
            except ClusterError as error:
                self._complain(error)
            self._ending.wait(AGAIN_SECONDS)

    def _complain(self, error: ClusterError) -> None:
        """Say what is wrong, once for as long as it stays the same."""
        if str(error) != self._trouble and not self._ending.is_set():
            self._trouble = str(error)
            self._say(f"{self._trouble} ({self._kind.resource.__name__})" + (f"; {error.hint}" if error.hint else ""))

    def _listed(self) -> str:
        there: set[Hashable] = set()

        def note(found: _Found) -> None:
            there.add(key := self._kind.key(found))
            self._known.add(key)
            self._put(key, found)

        version = self._cluster.for_each(self._kind.resource, note, self._kind.field_selector)
        for key in self._known - there:
            self._kind.put(key, None)
        self._known = there
        return version

    def _watched(self, version: str) -> str:
        """Follow one watch to its end, and return the version that the next one begins at."""
        self._watch = watch = self._cluster.watch(self._kind.resource, version, self._kind.field_selector)
        if self._ending.is_set():
            watch.close()
        try:
            for change in watch.changes():
                self._note(change)
        except ClusterUnavailableError:
            if watch.resource_version == version:
                raise
        finally:
            if watch.was_open:
                self._heard_seconds = self._clock()
        return watch.resource_version

    def _note(self, change: Change[_Found]) -> None:
        key = self._kind.key(change.found)
        if change.kind == "DELETED":
            self._known.discard(key)
            self._kind.put(key, None)
        else:
            self._known.add(key)
            self._put(key, change.found)

    def _put(self, key: Hashable, found: _Found) -> None:
        try:
            self._kind.put(key, found)
        except RequestError as error:  # the API server takes no such amount; if it did, the others are still true
            self._say(f"{self._kind.resource.__name__} {key}: {error}")
        except Exception as error:  # noqa: BLE001 - a thread that ended would leave all objects as they were, for ever
            self._say(f"{self._kind.resource.__name__} {key}: a bug of pgpu: {error!r}")


@dataclass
class ClusterWatch:
    """All kinds of objects that a scorer is to know."""

    followers: list[ObjectWatcher[Any]] = field(default_factory=list)

    def start(self) -> None:
        """Begin."""
        for follower in self.followers:
            follower.start()

    def stop(self) -> None:
        """End."""
        for follower in self.followers:
            follower.stop()

    def is_current(self) -> bool:
        """Whether the cluster is known as it is, or was lately."""
        return all(follower.is_current() for follower in self.followers)


def watch_cluster(
    cluster: Cluster, scorer: Scorer, say: Callable[[str], None], clock: Callable[[], float]
) -> ClusterWatch:
    """Prepare to tell a scorer of all that it is to know.

    Args:
        cluster: Is asked to get, list and watch, and nothing else.
        scorer: Is told.
        say: Is told of trouble, once for each.
        clock: Seconds that only grow.
    """
    return ClusterWatch([ObjectWatcher(cluster, kind, say, clock) for kind in _kinds(scorer)])


def _kinds(scorer: Scorer) -> tuple[_Kind[Any], ...]:
    return (
        _Kind(core_v1.Node, _telling(scorer, ClusterState.put_host, object_decoding.host_of), _name),
        _Kind(resource_v1.DeviceClass, _telling(scorer, ClusterState.put_class, object_decoding.class_of), _name),
        _Kind(
            resource_v1.ResourceSlice,
            _telling(scorer, ClusterState.put_shelf, object_decoding.shelf_of),
            _name,
            f"spec.driver={DRIVER}",
        ),
        _Kind(
            resource_v1.ResourceClaimTemplate,
            _telling(scorer, ClusterState.put_template, object_decoding.template_of),
            _key,
        ),
        _Kind(
            resource_v1.ResourceClaim,
            lambda key, found: scorer.put_claim(key, found and object_decoding.claim_of(found)),
            _key,
        ),
        _Kind(core_v1.Pod, lambda uid, found: scorer.put_pod(uid, found and object_decoding.pod_of(found)), _uid),
    )


def _telling(
    scorer: Scorer, put: Callable[[ClusterState, Any, Any], None], read: Callable[[Any], object]
) -> Callable[[Any, Any], None]:
    def tell(key: Any, found: Any) -> None:
        value = None if found is None else read(found)
        scorer.tell(lambda stock: put(stock, key, value))

    return tell


def _name(found: Any) -> str:
    return (found.metadata and found.metadata.name) or ""


def _key(found: Any) -> Hashable:
    return object_decoding.key_of(found.metadata)


def _uid(found: Any) -> str:
    return (found.metadata and found.metadata.uid) or ""
