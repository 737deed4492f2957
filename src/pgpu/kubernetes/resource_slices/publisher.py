"""Keeps this node's slices up to date: at the start, after every change, and every 30 s.

A kubelet that starts deletes the slices of its node, and any administrator may; the watch and the kubelet's registration report it at
once, the clock in any case. When the publisher ends the slices stay: pods keep their GPUs, and the next driver takes them over.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pgpu.errors import ObjectConflictError, PgpuError
from pgpu.kubernetes.api import ClusterClient, Node
from pgpu.kubernetes.cluster_events import EventRecorder
from pgpu.kubernetes.node_health import DriverReadiness
from pgpu.kubernetes.resource_slices.api_features import ALL_FEATURES, Features, features_kept, features_of
from pgpu.kubernetes.resource_slices.pool_plan import CALM_SECONDS, PoolPlanner
from pgpu.kubernetes.resource_slices.slice_writer import FAREWELL_SECONDS, SliceWatcher, SliceWriter, WriteResult

SUBJECT = "published to the cluster"
"""Subject of the driver's `DriverReadiness`."""

_MOST_CONFLICTS = 5


@dataclass(frozen=True)
class Pace:
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
            PgpuError: The GPUs cannot be read, or the API server does not answer or refuses.
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
        self._readiness.set_problem(SUBJECT, "somebody else writes this node's slices, too")
        return self._pause_seconds(self._undone - _MOST_CONFLICTS)

    def _after_failure(self, why: str) -> float:
        self._failed += 1
        self._node = None
        self._readiness.set_problem(SUBJECT, why)
        return self._pause_seconds(self._failed)

    def _pause_seconds(self, times: int) -> float:
        growing_seconds: float = self._pace.first_pause_seconds * 2 ** min(times - 1, 20)
        return min(growing_seconds, self._pace.longest_pause_seconds)
