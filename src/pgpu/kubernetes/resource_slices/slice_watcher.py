"""Hears of every change of this node's slices that somebody else makes. It refuses to act: it only wakes who does."""

import threading
from collections.abc import Callable

from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.errors import ClusterError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import Cluster, Watch

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0

FAREWELL_SECONDS = 5.0
"""How long an end waits for a question that a server leaves without an answer; the thread ends with its process."""


class SliceWatcher:
    """Watches until it is stopped, over every break; what happened in between is looked for."""

    def __init__(
        self, cluster: Cluster, node_name: str, is_ours: Callable[[ResourceSlice], bool], wake: Callable[[], None]
    ) -> None:
        """Watch one node's slices; a change after which a slice is not ours wakes."""
        self._cluster = cluster
        self._node_name = node_name
        self._is_ours = is_ours
        self._wake = wake
        self._ending = threading.Event()
        self._watch: Watch[ResourceSlice] | None = None
        self._thread = threading.Thread(target=self._watch_on, name="pgpu-slice-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the end, but not for a server that does not answer."""
        self._ending.set()
        watch = self._watch
        if watch is not None:
            watch.close()
        self._thread.join(FAREWELL_SECONDS)

    def _watch_on(self) -> None:
        pause_seconds = _FIRST_PAUSE_SECONDS
        while not self._ending.is_set():
            try:
                self._follow()
                pause_seconds = _FIRST_PAUSE_SECONDS
            except ClusterError:  # the publisher meets the same error, and says it
                self._ending.wait(pause_seconds)
                pause_seconds = min(pause_seconds * 2, _LONGEST_PAUSE_SECONDS)
            else:
                self._ending.wait(
                    _FIRST_PAUSE_SECONDS
                )  # a server that ends every watch at once is not asked without end

    def _follow(self) -> None:
        listed = self._cluster.slices(names.DRIVER, self._node_name)
        self._watch = self._cluster.watch_slices(names.DRIVER, self._node_name, listed.resource_version)
        if self._ending.is_set():
            return
        self._wake()
        for change in self._watch.changes():
            if change.kind == "DELETED" or not self._is_ours(change.found):
                self._wake()
