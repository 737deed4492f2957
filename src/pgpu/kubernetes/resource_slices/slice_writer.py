"""Bringing a node's slices in the API server to what they should be, all of one generation.

Nothing is written where they already say it. Whatever differs raises the generation of all: the scheduler uses a pool only
when it sees every slice of its newest generation, so what stands in between is used by nobody.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

from lightkube.models.resource_v1 import DeviceTaint
from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.errors import ObjectNotFoundError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import Cluster
from pgpu.kubernetes.resource_slices.resource_pool import Content, content, name_of
from pgpu.kubernetes.resource_slices.slice_devices import with_old_times


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What one look at the API server came to."""

    generation: int
    is_new: bool
    """Whether anything was written."""

    was_ours: bool
    """Whether what stood there was what this process wrote last, so that the change is its own wish."""

    stored: tuple[ResourceSlice, ...]
    """The slices as the server has them now."""


@dataclass
class SliceWriter:
    """Writes the slices of one node; remembers what the server made of them."""

    cluster: Cluster
    node_name: str
    _generation: int = field(default=0, init=False)
    _wanted: dict[str, Content] = field(default_factory=dict, init=False)
    _stored: dict[str, Content] = field(default_factory=dict, init=False)

    def write(self, wanted: Sequence[ResourceSlice]) -> WriteResult:
        """Make the slices that stand there say what is wanted.

        Raises:
            ObjectConflictError: Somebody else wrote meanwhile: look again.
            ClusterError: The server does not answer, or refuses.
        """
        standing = {name_of(found): found for found in self.standing()}
        generations = {found.spec.pool.generation for found in standing.values()}
        was_ours = {name: content(found) for name, found in standing.items()} == self._stored
        if len(generations) == 1 and self._says(standing, wanted):
            self._generation = max(self._generation, *generations)
            return WriteResult(self._generation, is_new=False, was_ours=was_ours, stored=tuple(standing.values()))
        self._generation = max(self._generation, *generations, 0) + 1
        stored = [self._put(each, standing) for each in wanted]
        self._remove(set(standing) - {name_of(each) for each in wanted})
        self._wanted = {name_of(each): content(each) for each in wanted}
        self._stored = {name_of(each): content(each) for each in stored}
        return WriteResult(self._generation, is_new=True, was_ours=was_ours, stored=tuple(stored))

    def take_back(self) -> int:
        """Remove all slices of this node, and return how many there were.

        Raises:
            ClusterError: The server does not answer, or refuses.
        """
        standing = [name_of(found) for found in self.standing()]
        self._remove(set(standing))
        self._wanted, self._stored = {}, {}
        return len(standing)

    def standing(self) -> tuple[ResourceSlice, ...]:
        """Return this node's slices as they are in the API server now.

        Raises:
            ClusterError: The server does not answer, or refuses.
        """
        return self.cluster.slices(names.DRIVER, self.node_name).slices

    def is_ours(self, found: ResourceSlice) -> bool:
        """Whether a slice says what this process wrote last."""
        return found.spec.pool.generation == self._generation and self._stored.get(name_of(found)) == content(found)

    def _says(self, standing: dict[str, ResourceSlice], wanted: Sequence[ResourceSlice]) -> bool:
        """Whether what stands there is what is wanted, or what the server made of just that."""
        said = {name: content(found) for name, found in standing.items()}
        wishes = {name_of(each): content(each) for each in wanted}
        return said == wishes or (wishes == self._wanted and said == self._stored)

    def _put(self, wanted: ResourceSlice, standing: dict[str, ResourceSlice]) -> ResourceSlice:
        written = copy.deepcopy(wanted)
        written.spec.pool.generation = self._generation
        old = standing.get(name_of(wanted))
        if old is None or old.metadata is None or written.metadata is None:
            return self.cluster.create_slice(written)
        written.metadata.resourceVersion = old.metadata.resourceVersion
        _keep_times(written, old)
        try:
            return self.cluster.update_slice(written)
        except ObjectNotFoundError:
            written.metadata.resourceVersion = None
            return self.cluster.create_slice(written)

    def _remove(self, wrong: set[str]) -> None:
        for name in sorted(wrong):
            try:
                self.cluster.delete_slice(name)
            except ObjectNotFoundError:
                continue


def _keep_times(written: ResourceSlice, old: ResourceSlice) -> None:
    published: dict[str, list[DeviceTaint]] = {each.name: each.taints or [] for each in old.spec.devices or []}
    for device in written.spec.devices or []:
        with_old_times(device, published.get(device.name, []))
