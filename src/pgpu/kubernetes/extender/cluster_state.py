"""What every node has, and what of it is taken: by pods and claims that the cluster knows of, and by those just advised.

Every change is noted for one node, so that only that one is rated anew. It refuses to ask anybody: it is told.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from operator import attrgetter
from typing import NamedTuple, TypeVar

from pgpu.kubernetes.extender.scheduled_objects import (
    GIB_RESOURCE,
    WHOLE_MILLI,
    ClaimKey,
    ClaimState,
    ConsumedGpu,
    GpuAsk,
    GpuClass,
    NodeCapacity,
    PodState,
    PublishedSlice,
    SharedGpu,
)
from pgpu.scheduling.outlook import GpuResources, NodeResources
from pgpu.units import GIB

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_NO_LIMIT = 1 << 62
"""CPU and memory of a node that nobody has told of yet: what is not known keeps no pod away."""


class _Place(NamedTuple):
    """One GPU of the cluster."""

    pool: str
    card: SharedGpu


class _Load(NamedTuple):
    """What a pod takes of its node, apart from claims."""

    node: str
    cpu_milli: int
    host_memory_bytes: int
    gpu_gib: int


class ClusterState:
    """Nodes, GPUs, pods and claims. Of each kind, a value of None says that there is no such object any more."""

    def __init__(self) -> None:
        self.pods: dict[str, PodState] = {}
        """By UID; those that wait, too."""

        self.claims: dict[ClaimKey, ClaimState] = {}
        self.templates: dict[ClaimKey, tuple[GpuAsk, ...]] = {}
        self.classes: dict[str, GpuClass] = {}
        """By name."""

        self.changed: set[str] = set()
        """Names of nodes that are no longer what they were; whoever reads it empties it."""

        self._hosts: dict[str, NodeCapacity] = {}
        self._shelves: dict[str, dict[str, PublishedSlice]] = defaultdict(dict)
        self._node_with: dict[str, str] = {}
        self._places: dict[str, tuple[_Place, ...]] = {}
        self._node_of: dict[str, str] = {}
        self._taken: dict[tuple[str, str], dict[Hashable, ConsumedGpu]] = defaultdict(dict)
        self._by_owner: dict[Hashable, tuple[ConsumedGpu, ...]] = {}
        self._loads: dict[str, _Load] = {}
        self._loaded: dict[str, tuple[int, int, int]] = {}

    @property
    def nodes(self) -> set[str]:
        """Names of all nodes that are known of."""
        return self._hosts.keys() | self._places.keys()

    @property
    def cards(self) -> Iterable[SharedGpu]:
        """Every GPU that many claims may share."""
        return (place.card for places in self._places.values() for place in places)

    def has_gpus(self, node: str) -> bool:
        """Whether pgpu has GPUs there."""
        return bool(self._places.get(node)) or self._gib(node) > 0

    def put_host(self, name: str, host: NodeCapacity | None) -> None:
        """Note a node."""
        _put(self._hosts, name, host)
        self.changed.add(name)

    def put_shelf(self, name: str, shelf: PublishedSlice | None) -> None:
        """Note a slice; only those of the newest generation of its pool count."""
        former = self._node_with.pop(name, None)
        if former is not None:
            del self._shelves[former][name]
        if shelf is not None:
            self._node_with[name] = shelf.node
            self._shelves[shelf.node][name] = shelf
        for node in {former, shelf.node if shelf else None} - {None}:
            self._arrange(str(node))

    def _arrange(self, node: str) -> None:
        shelves = sorted(self._shelves[node].values(), key=attrgetter("pool", "name"))
        newest: dict[str, int] = {}
        for shelf in shelves:
            newest[shelf.pool] = max(shelf.generation, newest.get(shelf.pool, 0))
            self._node_of[shelf.pool] = node
        places: dict[str, _Place] = {}
        for shelf in shelves:
            if shelf.generation == newest[shelf.pool]:
                for card in shelf.cards:
                    places.setdefault(card.gpu, _Place(shelf.pool, card))
        _put(self._places, node, tuple(places.values()) or None)
        self.changed.add(node)

    def put_class(self, name: str, one: GpuClass | None) -> None:
        """Note a DeviceClass."""
        _put(self.classes, name, one)

    def put_template(self, key: ClaimKey, asks: tuple[GpuAsk, ...] | None) -> None:
        """Note a template of claims."""
        _put(self.templates, key, asks)

    def put_claim(self, key: ClaimKey, claim: ClaimState | None) -> None:
        """Note a claim, and what it has."""
        _put(self.claims, key, claim)
        self.take(key, () if claim is None else claim.taken)

    def put_pod(self, uid: str, pod: PodState | None) -> None:
        """Note a pod, and what it takes of its node."""
        _put(self.pods, uid, pod)
        if pod is None or pod.node is not None:
            self.load(uid, pod, "" if pod is None else pod.node or "")

    def load(self, uid: str, pod: PodState | None, node: str) -> None:
        """Say that a pod is on a node, and on no other; with None on none."""
        former = self._loads.pop(uid, None)
        if former is not None:
            self._add(former, -1)
        if pod is not None:
            gib = pod.resources.get(GIB_RESOURCE, 0)
            self._loads[uid] = load = _Load(node, pod.cpu_milli, pod.host_memory_bytes, gib)
            self._add(load, 1)

    def _add(self, load: _Load, sign: int) -> None:
        cpu_milli, host_memory_bytes, gpu_gib = self._loaded.get(load.node, (0, 0, 0))
        self._loaded[load.node] = (
            cpu_milli + sign * load.cpu_milli,
            host_memory_bytes + sign * load.host_memory_bytes,
            gpu_gib + sign * load.gpu_gib,
        )
        self.changed.add(load.node)

    def take(self, owner: Hashable, taken: tuple[ConsumedGpu, ...]) -> None:
        """Say what somebody has of GPUs, in place of what they had; nothing frees it."""
        for one in self._by_owner.pop(owner, ()):
            self._taken[one.pool, one.gpu].pop(owner, None)
            self._note(one.pool)
        for one in taken:
            known = self._taken[one.pool, one.gpu].get(owner)
            self._taken[one.pool, one.gpu][owner] = one if known is None else _both(known, one)
            self._note(one.pool)
        if taken:
            self._by_owner[owner] = taken

    def _note(self, pool: str) -> None:
        node = self._node_of.get(pool)
        if node is not None:
            self.changed.add(node)

    def offer(self, node: str) -> NodeResources:
        """Say what is free of a node; its GPUs in the order in which the scheduler tries them."""
        cpu_milli, host_memory_bytes, gpu_gib = self._loaded.get(node, (0, 0, 0))
        host = self._hosts.get(node)
        gpus = tuple(
            _free(place, self._taken.get((place.pool, place.card.gpu), {}).values()) for place in self._at(node)
        )
        if not gpus and (gib := self._gib(node)):
            gpus = (_one_number(max(0, gib - gpu_gib), gib),)
        return NodeResources(
            node,
            gpus,
            _NO_LIMIT if host is None else host.cpu_milli - cpu_milli,
            _NO_LIMIT if host is None else host.host_memory_bytes - host_memory_bytes,
        )

    def idle_offer(self, node: str) -> NodeResources:
        """Say what a node has when nothing runs on it."""
        host = self._hosts.get(node)
        gpus = tuple(_free(place, ()) for place in self._at(node))
        return NodeResources(
            node, gpus, host.cpu_milli if host else _NO_LIMIT, host.host_memory_bytes if host else _NO_LIMIT
        )

    def pool_of(self, node: str, gpu: str) -> str | None:
        """Return the pool that a GPU of a node is in; None for one that is in none."""
        return next((place.pool for place in self._at(node) if place.card.gpu == gpu), None)

    def _at(self, node: str) -> tuple[_Place, ...]:
        return self._places.get(node, ())

    def _gib(self, node: str) -> int:
        host = self._hosts.get(node)
        return host.gpu_gib if host else 0


def _put(table: dict[_Key, _Value], key: _Key, value: _Value | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _both(one: ConsumedGpu, other: ConsumedGpu) -> ConsumedGpu:
    return ConsumedGpu(
        one.pool,
        one.gpu,
        one.memory_bytes + other.memory_bytes,
        one.compute_milli + other.compute_milli,
        is_whole=one.is_whole or other.is_whole,
    )


def _free(place: _Place, taken: Iterable[ConsumedGpu]) -> GpuResources:
    memory_bytes, compute_milli = place.card.memory_bytes, WHOLE_MILLI
    for one in taken:
        if one.is_whole:
            memory_bytes = compute_milli = 0
        memory_bytes -= one.memory_bytes
        compute_milli -= one.compute_milli
    return GpuResources(
        place.card.gpu,
        free_compute_milli=max(0, compute_milli),
        free_memory_bytes=max(0, memory_bytes),
        compute_milli=WHOLE_MILLI,
        memory_bytes=place.card.memory_bytes,
    )


def _one_number(free_gib: int, gib: int) -> GpuResources:
    """Stand for all GPUs of a node of which the scheduler knows a sum."""
    return GpuResources(GIB_RESOURCE, WHOLE_MILLI, free_gib * GIB, WHOLE_MILLI, gib * GIB)
