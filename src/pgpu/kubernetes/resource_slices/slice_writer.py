"""Writes a node's slices to the API server, all of one generation, and watches for changes that others make.

Nothing is written if the stored slices have the wanted content. Any difference raises the generation of all slices: the scheduler
uses a pool only if it has every slice of the newest generation, so no intermediate state is ever used.
"""

import copy
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.errors import ClusterError, ObjectNotFoundError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import ClusterClient, ObjectWatch
from pgpu.kubernetes.resource_slices.resource_pool import Content, content, name_of, with_old_times

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0

FAREWELL_SECONDS = 5.0
"""A thread that waits for an unresponsive server is left behind after so long; it ends with the process."""


@dataclass(frozen=True, slots=True)
class WriteResult:
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
