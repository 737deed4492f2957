"""Keeps this node's slices as they should be: looks at the start, at every word of a change, and once in a while.

A kubelet that starts wipes the slices of its node, and so may anybody; a watch and the kubelet's registration say so at
once, the clock in any case. When it ends the slices stay: pods that run keep their GPUs, and the next driver takes them over.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from pgpu.errors import ObjectConflictError, PgpuError
from pgpu.kubernetes.api import Cluster, Node
from pgpu.kubernetes.cluster_events import EventRecorder
from pgpu.kubernetes.node_health import Readiness
from pgpu.kubernetes.resource_slices.api_features import ALL_FEATURES, Features, features_kept, features_of
from pgpu.kubernetes.resource_slices.pool_plan import CALM_SECONDS, PoolPlanner
from pgpu.kubernetes.resource_slices.slice_watcher import FAREWELL_SECONDS, SliceWatcher
from pgpu.kubernetes.resource_slices.slice_writer import SliceWriter, WriteResult

SUBJECT = "published to the cluster"
"""What the driver is not ready without."""

_TRIES_AFTER_CONFLICTS = 5


@dataclass(frozen=True)
class Pace:
    """How often a publisher looks."""

    look_seconds: float = 30.0
    """Between two looks where nobody says anything: how soon outsiders' memory is seen by the scheduler."""

    calm_seconds: float = CALM_SECONDS
    first_pause_seconds: float = 1.0
    """After a look that failed, or a writing that somebody else undid; then twice as long each time."""

    longest_pause_seconds: float = 300.0


class Publisher:
    """The publisher of one node. `registered` may be called from any thread."""

    def __init__(
        self,
        cluster: Cluster,
        node_name: str,
        looking: PoolPlanner,
        *,
        events: EventRecorder,
        readiness: Readiness,
        pace: Pace | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Publish what `looking` sees as the pool of one node; nothing is asked yet."""
        self._cluster = cluster
        self._node_name = node_name
        self._looking = looking
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
        self._woken, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, name="pgpu-publisher", daemon=True)
        readiness.set_problem(SUBJECT, "not yet")

    def start(self) -> None:
        """Begin; the first slices are there soon after."""
        self._thread.start()
        self._watcher.start()

    def stop(self) -> None:
        """End, and wait for the end, but not for a server that does not answer; the slices stay."""
        self._ending.set()
        self._woken.set()
        if self._thread.is_alive():
            self._watcher.stop()
            self._thread.join(FAREWELL_SECONDS)

    def registered(self) -> None:
        """The kubelet took the driver: it wiped the slices, and may go on wiping for a moment, which the watch tells."""
        self.wake()

    def wake(self) -> None:
        """Look soon: something has changed."""
        self._woken.set()

    def publish(self) -> WriteResult | None:
        """Look once, and write what is not as it should be; None where the API server cannot store shares.

        Raises:
            PgpuError: The GPUs cannot be read, or the API server does not answer or refuses.
        """
        for _ in range(_TRIES_AFTER_CONFLICTS):
            try:
                return self._publish()
            except ObjectConflictError:
                self._node = None
        return self._publish()

    def _publish(self) -> WriteResult | None:
        node = self._node = self._node or self._cluster.node(self._node_name)
        features = self._features = self._features or features_of(self._cluster, self._node_name)
        if not features.has_shares:
            self._refuse(node, features)
            return None
        is_calm = self._clock() - self._written_at >= self._pace.calm_seconds
        wanted = self._looking.slices(node, features, is_calm=is_calm)
        written = self._writer.write(wanted)
        if written.is_new:
            self._written_at = self._clock()
        kept = features_kept(wanted, written.stored)
        if kept != ALL_FEATURES:  # another API server of this cluster, with its gates off, took these
            self._features = features.without_what_is_not_in(kept)
            return self._publish()
        self._told(node, features)
        self._node = self._node if written.was_ours else None
        return written

    def _refuse(self, node: Node, features: Features) -> None:
        """Take the slices back: one claim would get a whole GPU of which many were to have shares."""
        if features.is_served:
            self._writer.take_back()
        self._features = None
        why, hint = _lack(features)
        self._readiness.set_problem(SUBJECT, f"NOTHING IS PUBLISHED: {why}; {hint}")
        self._events.warn(node.object_name, "SlicesNotPublished", f"{why}; {hint}")

    def _told(self, node: Node, features: Features) -> None:
        if self._looking.complaint is None:
            self._readiness.set_working(SUBJECT)
        else:
            self._readiness.set_problem(SUBJECT, self._looking.complaint)
        if features.missing:
            self._features = None  # asked again: a gate may be turned on
            lost = (
                "GPUs are not offered whole"
                if not features.has_counters
                else "GPUs that fail are left out, not tainted"
            )
            self._events.warn(node.object_name, "FeatureGateOff", f"{lost}: {', '.join(features.missing)} is off")

    def _keep(self) -> None:
        while not self._ending.is_set():
            self._woken.clear()
            pause_seconds = self._look()
            if pause_seconds:
                self._ending.wait(pause_seconds)
            else:
                self._woken.wait(self._pace.look_seconds)

    def _look(self) -> float:
        """Look once, and return how long to look at nothing in any case."""
        try:
            written = self.publish()
        except PgpuError as exc:
            return self._after_failure(f"{exc} ({exc.hint})" if exc.hint else str(exc))
        except Exception as exc:  # noqa: BLE001 - a thread that ended would publish nothing after the next wipe
            return self._after_failure(f"a bug of pgpu: {exc!r}")
        self._failed = 0
        return 0.0 if written is None else self._after(written)

    def _after_failure(self, why: str) -> float:
        self._failed += 1
        self._node = None
        self._readiness.set_problem(SUBJECT, why)
        return self._pause_seconds(self._failed)

    def _after(self, written: WriteResult) -> float:
        """Count what somebody else undid: two who undo each other's slices without end help nobody."""
        was_undone = written.is_new and not written.was_ours
        self._undone = self._undone + 1 if was_undone else max(0, self._undone - (not written.is_new))
        if not was_undone or self._undone <= _TRIES_AFTER_CONFLICTS:
            return 0.0
        self._readiness.set_problem(SUBJECT, "somebody else writes this node's slices, too")
        return self._pause_seconds(self._undone - _TRIES_AFTER_CONFLICTS)

    def _pause_seconds(self, times: int) -> float:
        growing: float = self._pace.first_pause_seconds * 2 ** min(times - 1, 20)
        return min(growing, self._pace.longest_pause_seconds)


def _lack(features: Features) -> tuple[str, str]:
    if not features.is_served:
        return (
            "this cluster has no resource.k8s.io/v1",
            "Kubernetes 1.36 has all that is needed; before 1.34 use the device plugin (--mode device-plugin)",
        )
    return (
        f"the API server drops what shares need: feature gate {', '.join(features.missing)} is off",
        "turn it on in API server, scheduler and controller manager (it is on from 1.36), or use --mode device-plugin",
    )
