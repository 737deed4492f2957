"""Keeps this node's slices up to date: at the start, after every change, and every 30 s.

A kubelet that starts deletes the slices of its node, and any administrator may; the watch and the kubelet's registration report it at
once, the clock in any case. When the publisher ends the slices stay: pods keep their GPUs, and the next driver takes them over.

All slices of a node have one generation. Nothing is written if the stored slices have the wanted content; any difference raises the
generation of all. The scheduler uses a pool only if it has every slice of the newest generation, so no intermediate state is ever used.
"""

import copy
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.errors import ClusterError, ObjectConflictError, ObjectNotFoundError, PgpuError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import ClusterClient, Node, ObjectWatch
from pgpu.kubernetes.cluster_events import EventRecorder
from pgpu.kubernetes.node_health import DriverReadiness
from pgpu.kubernetes.node_requirements import check_runtime
from pgpu.kubernetes.resource_slices.api_features import ALL_FEATURES, Features, features_kept, features_of
from pgpu.kubernetes.resource_slices.pool_plan import CALM_SECONDS, PoolPlanner
from pgpu.kubernetes.resource_slices.resource_pool import Content, content, name_of, with_old_times
from pgpu.structs import Struct

SUBJECT = "published to the cluster"
"""Subject of the driver's `DriverReadiness`."""

_MOST_CONFLICTS = 5

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0

FAREWELL_SECONDS = 5.0
"""A thread that waits for an unresponsive server is left behind after so long; it ends with the process."""


class WriteResult(Struct, frozen=True):
    """Result of one comparison with the API server."""

    generation: int
    is_new: bool
    """Whether anything was written."""

    was_ours: bool
    """Whether the slices found were those that this process wrote last."""

    stored: tuple[ResourceSlice, ...]
    """The slices as the server has them now."""


@dataclass
class SliceWriter:
    """Writes the slices of one node. The server may change or drop fields, so it compares with what was stored, too."""

    cluster: ClusterClient
    node_name: str
    _generation: int = field(default=0, init=False)
    _wanted: dict[str, Content] = field(default_factory=dict, init=False)
    _stored: dict[str, Content] = field(default_factory=dict, init=False)

    def write(self, wanted: Sequence[ResourceSlice]) -> WriteResult:
        """Make the stored slices the wanted ones.

        Raises:
            ObjectConflictError: Another writer was faster: read again.
            ClusterError: The server does not answer, or refuses.
        """
        stored = {name_of(each): each for each in self.cluster.slices(names.DRIVER, self.node_name).slices}
        generations = {each.spec.pool.generation for each in stored.values()}
        contents = {name: content(each) for name, each in stored.items()}
        wanted_contents = {name_of(each): content(each) for each in wanted}
        was_ours = contents == self._stored
        is_current = contents == wanted_contents or (was_ours and wanted_contents == self._wanted)
        if len(generations) == 1 and is_current:
            self._generation = max(self._generation, *generations)
            return WriteResult(self._generation, is_new=False, was_ours=was_ours, stored=tuple(stored.values()))
        # Above every generation that is stored or was written: the scheduler uses the highest one.
        self._generation = max(self._generation, *generations, 0) + 1
        written = tuple(self._put(each, stored.get(name_of(each))) for each in wanted)
        # Last: until then the old slices are of an older generation and ignored.
        self._remove(stored.keys() - wanted_contents.keys())
        self._wanted = wanted_contents
        self._stored = {name_of(each): content(each) for each in written}
        return WriteResult(self._generation, is_new=True, was_ours=was_ours, stored=written)

    def take_back(self) -> int:
        """Delete all slices of this node, and return how many there were.

        Raises:
            ClusterError: The server does not answer, or refuses.
        """
        stored = {name_of(each) for each in self.cluster.slices(names.DRIVER, self.node_name).slices}
        self._remove(stored)
        self._wanted, self._stored = {}, {}
        return len(stored)

    def is_ours(self, found: ResourceSlice) -> bool:
        """Whether a slice is as this process wrote it last."""
        return found.spec.pool.generation == self._generation and self._stored.get(name_of(found)) == content(found)

    def _put(self, wanted: ResourceSlice, old: ResourceSlice | None) -> ResourceSlice:
        written = copy.deepcopy(wanted)
        written.spec.pool.generation = self._generation
        if old is None or old.metadata is None or written.metadata is None:
            return self.cluster.create_slice(written)
        # The server refuses the update if another writer was faster.
        written.metadata.resourceVersion = old.metadata.resourceVersion
        published = {each.name: each.taints or [] for each in old.spec.devices or []}
        for device in written.spec.devices or []:
            with_old_times(device, published.get(device.name, []))
        try:
            return self.cluster.update_slice(written)
        except ObjectNotFoundError:  # deleted since it was read
            written.metadata.resourceVersion = None
            return self.cluster.create_slice(written)

    def _remove(self, surplus: set[str]) -> None:
        for name in sorted(surplus):
            try:
                self.cluster.delete_slice(name)
            except ObjectNotFoundError:
                continue


class SliceWatcher:
    """Watches a node's slices in a thread, and wakes the publisher when one is not as this process wrote it."""

    def __init__(
        self, cluster: ClusterClient, node_name: str, is_ours: Callable[[ResourceSlice], bool], wake: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._node_name = node_name
        self._is_ours = is_ours
        self._wake = wake
        self._stop = threading.Event()
        self._watch: ObjectWatch[ResourceSlice] | None = None
        self._thread = threading.Thread(target=self._run, name="pgpu-slice-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the watch and wait for the thread, `FAREWELL_SECONDS` at most."""
        self._stop.set()
        watch = self._watch
        if watch is not None:
            watch.close()
        self._thread.join(FAREWELL_SECONDS)

    def _run(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while not self._stop.is_set():
            try:
                self._watch_once()
            except ClusterError:  # the publisher meets and reports the same error
                self._stop.wait(pause_seconds)
                pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
            else:
                # Also after success: a server may end every watch at once.
                pause_seconds = _FIRST_PAUSE_SECONDS
                self._stop.wait(pause_seconds)

    def _watch_once(self) -> None:
        listed = self._cluster.slices(names.DRIVER, self._node_name)
        self._watch = self._cluster.watch_slices(names.DRIVER, self._node_name, listed.resource_version)
        if self._stop.is_set():  # `stop` has run without this watch
            return
        self._wake()  # changes between the last watch and this list were not seen
        for change in self._watch.changes():
            if change.kind == "DELETED" or not self._is_ours(change.found):
                self._wake()


class Pace(Struct, frozen=True):
    """Intervals of a publisher."""

    poll_seconds: float = 30.0
    """Between two comparisons without an event: within it the scheduler learns of memory that other programs use."""

    calm_seconds: float = CALM_SECONDS
    first_pause_seconds: float = 1.0
    """After a failure, or after another writer undid a writing; doubled each time."""

    longest_pause_seconds: float = 300.0


class Publisher:
    """The publisher of one node; a `Companion`. `registered` and `wake` may be called from any thread."""

    def __init__(
        self,
        cluster: ClusterClient,
        node_name: str,
        planner: PoolPlanner,
        *,
        events: EventRecorder,
        readiness: DriverReadiness,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Publish what the planner returns as the pool of one node; sends no request yet."""
        self._cluster = cluster
        self._node_name = node_name
        self._planner = planner
        self._events = events
        self._readiness = readiness
        self._pace = pace or Pace()
        self._clock = clock
        self._writer = SliceWriter(cluster, node_name)
        self._watcher = SliceWatcher(cluster, node_name, self._writer.is_ours, self.wake)
        self._node: Node | None = None
        self._features: Features | None = None
        self._written_at = float("-inf")
        self._undone = 0
        self._failed = 0
        self._woken, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="pgpu-publisher", daemon=True)
        readiness.set_problem(SUBJECT, "not yet")

    def start(self) -> None:
        """Start the threads; the first slices are published soon after."""
        self._thread.start()
        self._watcher.start()

    def stop(self) -> None:
        """End and wait for the threads, but not for an unresponsive server; the slices stay."""
        self._stop.set()
        self._woken.set()
        if self._thread.is_alive():
            self._watcher.stop()
            self._thread.join(FAREWELL_SECONDS)

    def registered(self) -> None:
        """Publish again: the kubelet has deleted the slices. It may go on deleting for a moment, which the watch reports."""
        self.wake()

    def wake(self) -> None:
        """Compare soon: something has changed."""
        self._woken.set()

    def publish(self) -> WriteResult | None:
        """Compare once, and write what differs; None: the API server cannot store shares.

        Raises:
            PgpuError: The GPUs cannot be read, the API server does not answer or refuses, or pods would start without their slice.
        """
        for _ in range(_MOST_CONFLICTS):
            try:
                return self._publish()
            except ObjectConflictError:
                self._node = None
        return self._publish()

    def _publish(self) -> WriteResult | None:
        # Cached, since it rarely changes; forgotten after any failure or foreign change.
        node = self._node = self._node or self._cluster.node(self._node_name)
        check_runtime(node.runtime)
        features = self._features = self._features or features_of(self._cluster, self._node_name)
        if not features.has_shares:
            self._refuse(node, features)
            return None
        is_calm = self._clock() - self._written_at >= self._pace.calm_seconds
        wanted = self._planner.slices(node, features, is_calm=is_calm)
        written = self._writer.write(wanted)
        if written.is_new:
            self._written_at = self._clock()
        kept = features_kept(wanted, written.stored)
        if kept != ALL_FEATURES:  # another API server of this cluster, with its gates off, stored these
            self._features = features & kept
            return self._publish()
        if self._planner.problem is None:
            self._readiness.set_working(SUBJECT)
        else:
            self._readiness.set_problem(SUBJECT, self._planner.problem)
        if features.missing:
            self._features = None  # read again each time: a gate may be turned on
            loss = "GPUs that fail are left out, not tainted"
            if not features.has_counters:
                loss = "GPUs are not offered whole"
            self._events.warn(node.object_name, "FeatureGateOff", f"{loss}: {', '.join(features.missing)} is off")
        # If the slices were deleted or changed, the Node may be a new one with another UID.
        self._node = self._node if written.was_ours else None
        return written

    def _refuse(self, node: Node, features: Features) -> None:
        # One claim would get a whole GPU that many were to share, so slices of an earlier driver are deleted, too.
        why = "this cluster has no resource.k8s.io/v1"
        hint = "Kubernetes 1.36 has all that is needed; before 1.34 use the device plugin (--mode device-plugin)"
        if features.is_served:
            self._writer.take_back()
            why = f"the API server drops what shares need: feature gate {', '.join(features.missing)} is off"
            hint = "turn it on in API server, scheduler and controller manager (it is on from 1.36), or use --mode device-plugin"
        self._features = None
        self._readiness.set_problem(SUBJECT, f"NOTHING IS PUBLISHED: {why}; {hint}")
        self._events.warn(node.object_name, "SlicesNotPublished", f"{why}; {hint}")

    def _run(self) -> None:
        while not self._stop.is_set():
            # Cleared before the comparison: an event that arrives during it causes another one.
            self._woken.clear()
            pause_seconds = self._attempt()
            if pause_seconds:
                self._stop.wait(pause_seconds)
            else:
                self._woken.wait(self._pace.poll_seconds)

    def _attempt(self) -> float:
        """Publish once, and return how long to do nothing even if woken."""
        try:
            written = self.publish()
        except PgpuError as exc:
            return self._after_failure(f"{exc} ({exc.hint})" if exc.hint else str(exc))
        except Exception as exc:  # noqa: BLE001 - a thread that ended would publish nothing after the next deletion
            return self._after_failure(f"a bug of pgpu: {exc!r}")
        self._failed = 0
        if written is None:
            return 0.0
        # Two writers that undo each other's slices must not go on without pauses.
        was_undone = written.is_new and not written.was_ours
        self._undone = self._undone + 1 if was_undone else max(0, self._undone - (not written.is_new))
        if not was_undone or self._undone <= _MOST_CONFLICTS:
            return 0.0
        self._readiness.set_problem(SUBJECT, "another writer changes this node's slices, too")
        return self._pause_seconds(self._undone - _MOST_CONFLICTS)

    def _after_failure(self, why: str) -> float:
        self._failed += 1
        self._node = None
        self._readiness.set_problem(SUBJECT, why)
        return self._pause_seconds(self._failed)

    def _pause_seconds(self, times: int) -> float:
        growing_seconds: float = self._pace.first_pause_seconds * 2 ** min(times - 1, 20)
        return min(growing_seconds, self._pace.longest_pause_seconds)
