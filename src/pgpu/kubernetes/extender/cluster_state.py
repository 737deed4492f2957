"""What every node has, and what pods and claims take of it: those that the cluster reports, and assumed ones.

Every change marks its node as changed, so that only this node is rated anew. What follows from the kinds of GPUs alone, the fleet and the
GPUs that selectors admit, is kept until a node has others.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

from pgpu.kubernetes.extender.gpu_selectors import NodeSelector, admits_device, admits_node
from pgpu.kubernetes.extender.scheduled_objects import (
    GIB_RESOURCE,
    WHOLE_MILLI,
    ClaimKey,
    ClaimState,
    ConsumedGpu,
    GpuClass,
    GpuDemand,
    NodeCapacity,
    PodState,
    PublishedSlice,
    SharedGpu,
)
from pgpu.kubernetes.names import MODEL_LABEL
from pgpu.scheduling.cluster_resources import GpuResources, NodeResources
from pgpu.scheduling.outlook import Fleet
from pgpu.structs import replace
from pgpu.units import GIB

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

# CPU and memory of a node that was not read yet: unknown amounts exclude no pod.
_NO_LIMIT = 1 << 62

_UNLOADED = (0, 0, 0)

# Combinations of selectors whose GPUs are kept.
_MOST_SELECTORS = 4096


class _PlacedGpu(NamedTuple):
    pool: str
    gpu: SharedGpu


class _PodLoad(NamedTuple):
    """What a pod takes of its node, apart from claims."""

    node: str
    cpu_milli: int
    host_memory_bytes: int
    gpu_gib: int


class AdmittedGpus(NamedTuple):
    """What a pod and its claim may use."""

    models: frozenset[str] | None
    """None: all that there are."""

    smallest: SharedGpu | None
    """Without a UUID; None: there is none."""


class ClusterState:
    """Nodes, GPUs, pods and claims. In all `put_…` methods, None means that the object was deleted. Not thread-safe."""

    def __init__(self) -> None:
        self.pods: dict[str, PodState] = {}
        """By UID, pending ones included."""

        self.claims: dict[ClaimKey, ClaimState] = {}
        self.templates: dict[ClaimKey, tuple[GpuDemand, ...]] = {}
        self.classes: dict[str, GpuClass] = {}
        """By name."""

        self.nodes: set[str] = set()
        """Names of all nodes."""

        self.changed: set[str] = set()
        """Names of changed nodes; the reader clears it."""

        self._capacities: dict[str, NodeCapacity] = {}
        self._slices: dict[str, dict[str, PublishedSlice]] = defaultdict(dict)
        self._node_of_slice: dict[str, str] = {}
        self._gpus: dict[str, tuple[_PlacedGpu, ...]] = {}
        # By node: its distinct GPUs, without UUIDs.
        self._kinds: dict[str, frozenset[SharedGpu]] = {}
        self._fleet: Fleet | None = None
        self._admitted: dict[tuple[Hashable, ...], AdmittedGpus] = {}
        self._node_of_pool: dict[str, str] = {}
        # By pool and GPU: what each owner has.
        self._taken: dict[tuple[str, str], dict[Hashable, ConsumedGpu]] = defaultdict(dict)

        self._by_owner: dict[Hashable, tuple[ConsumedGpu, ...]] = {}
        self._loads: dict[str, _PodLoad] = {}
        # By node: the sums of its pods' loads.
        self._loaded: dict[str, tuple[int, int, int]] = {}

    def has_gpus(self, node: str) -> bool:
        """Whether pgpu has GPUs on a node."""
        return bool(self._gpus.get(node) or _plugin_gpus(self._capacities.get(node)))

    def put_node(self, name: str, node: NodeCapacity | None) -> None:
        """Store a node."""
        if self._capacities.get(name) != node:
            _put(self._capacities, name, node)
            self._mark(name)
            self._forget_kinds()

    def put_slice(self, name: str, published: PublishedSlice | None) -> None:
        """Store a slice; only those of the newest generation of its pool count."""
        former = self._node_of_slice.pop(name, None)
        if former is not None:
            del self._slices[former][name]
        if published is not None:
            self._node_of_slice[name] = published.node
            self._slices[published.node][name] = published
        for node in {former, published.node if published else None} - {None}:
            self._arrange(str(node))

    def _arrange(self, node: str) -> None:
        slices = sorted(self._slices[node].values(), key=attrgetter("pool", "name"))
        newest: dict[str, int] = {}
        for each in slices:
            newest[each.pool] = max(each.generation, newest.get(each.pool, 0))
            # A pool is of one node with this driver.
            self._node_of_pool[each.pool] = node
        placed: dict[str, _PlacedGpu] = {}
        for each in slices:
            if each.generation == newest[each.pool]:
                for gpu in each.gpus:
                    # The devices of one GPU may be in several slices of a pool.
                    placed.setdefault(gpu.gpu, _PlacedGpu(each.pool, gpu))
        _put(self._gpus, node, tuple(placed.values()) or None)
        self._mark(node)
        kinds = frozenset(replace(one.gpu, gpu="") for one in placed.values())
        if kinds != self._kinds.get(node):
            self._kinds[node] = kinds
            self._forget_kinds()

    def _mark(self, node: str) -> None:
        self.changed.add(node)
        if node in self._capacities or node in self._gpus:
            self.nodes.add(node)
        else:
            self.nodes.discard(node)

    def _forget_kinds(self) -> None:
        self._fleet = None
        self._admitted.clear()

    def put_class(self, name: str, one: GpuClass | None) -> None:
        """Store a DeviceClass."""
        _put(self.classes, name, one)

    def put_template(self, key: ClaimKey, demands: tuple[GpuDemand, ...] | None) -> None:
        """Store a template of claims."""
        _put(self.templates, key, demands)

    def put_claim(self, key: ClaimKey, claim: ClaimState | None) -> None:
        """Store a claim and its allocation."""
        _put(self.claims, key, claim)
        self.take(key, () if claim is None else claim.taken)

    def put_pod(self, uid: str, pod: PodState | None) -> None:
        """Store a pod and what it takes of its node."""
        _put(self.pods, uid, pod)
        if pod is None or pod.node is not None:
            self.load(uid, pod, "" if pod is None else pod.node or "")

    def load(self, uid: str, pod: PodState | None, node: str) -> None:
        """Count a pod on one node; None: on no node."""
        former = self._loads.pop(uid, None)
        if former is not None:
            self._add(former, -1)
        if pod is not None:
            gib = pod.resources.get(GIB_RESOURCE, 0)
            self._loads[uid] = load = _PodLoad(node, pod.cpu_milli, pod.host_memory_bytes, gib)
            self._add(load, 1)

    def _add(self, load: _PodLoad, sign: int) -> None:
        cpu_milli, host_memory_bytes, gpu_gib = self._loaded.get(load.node, (0, 0, 0))
        self._loaded[load.node] = (
            cpu_milli + sign * load.cpu_milli,
            host_memory_bytes + sign * load.host_memory_bytes,
            gpu_gib + sign * load.gpu_gib,
        )
        self.changed.add(load.node)

    def take(self, owner: Hashable, taken: tuple[ConsumedGpu, ...]) -> None:
        """Replace what an owner, a claim or an assumed pod, has of GPUs; nothing frees it."""
        for one in self._by_owner.pop(owner, ()):
            self._taken[one.pool, one.gpu].pop(owner, None)
            self._mark_pool(one.pool)
        for one in taken:
            known = self._taken[one.pool, one.gpu].get(owner)
            self._taken[one.pool, one.gpu][owner] = one if known is None else _sum(known, one)
            self._mark_pool(one.pool)
        if taken:
            self._by_owner[owner] = taken

    def _mark_pool(self, pool: str) -> None:
        node = self._node_of_pool.get(pool)
        if node is not None:
            self.changed.add(node)

    def offer(self, node: str) -> NodeResources:
        """Return what is free on a node; its GPUs in the order in which the scheduler tries them."""
        return self._offer(node, self._loaded.get(node, _UNLOADED), self._taken)

    @property
    def fleet(self) -> Fleet:
        """All nodes as they are when nothing runs on them."""
        if self._fleet is None:
            self._fleet = Fleet(self._offer(node, _UNLOADED, {}) for node in self.nodes)
        return self._fleet

    def _offer(
        self,
        node: str,
        loaded: tuple[int, int, int],
        taken: Mapping[tuple[str, str], Mapping[Hashable, ConsumedGpu]],
    ) -> NodeResources:
        cpu_milli, host_memory_bytes, gpu_gib = loaded
        capacity = self._capacities.get(node)
        gpus = tuple(
            _free(placed, taken.get((placed.pool, placed.gpu.gpu), {}).values()) for placed in self._gpus.get(node, ())
        ) or tuple(
            _free(placed, (ConsumedGpu(placed.pool, placed.gpu.gpu, gpu_gib * GIB),))
            for placed in _plugin_gpus(capacity)
        )
        return NodeResources(
            node,
            gpus,
            _NO_LIMIT if capacity is None else capacity.cpu_milli - cpu_milli,
            _NO_LIMIT if capacity is None else capacity.host_memory_bytes - host_memory_bytes,
        )

    def admitted(self, demand: GpuDemand, nodes: NodeSelector) -> AdmittedGpus:
        """Return the GPUs that a demand and its class admit, on the nodes that a pod admits."""
        known = self.classes.get(demand.class_name)
        selectors = (*(known.selectors if known else ()), *demand.selectors)
        found = self._admitted.get((selectors, nodes))
        if found is None:
            if len(self._admitted) >= _MOST_SELECTORS:
                self._admitted.clear()
            found = self._admitted[selectors, nodes] = self._find_admitted(selectors, nodes)
        return found

    def _find_admitted(self, selectors: Sequence[str], nodes: NodeSelector) -> AdmittedGpus:
        all_gpus: set[SharedGpu] = set()
        admitted: set[SharedGpu] = set()
        for node in self.nodes:
            capacity = self._capacities.get(node)
            gpus = self._kinds.get(node) or {placed.gpu for placed in _plugin_gpus(capacity)}
            all_gpus |= gpus
            if admits_node(nodes, capacity.labels if capacity else {}):
                admitted |= gpus
        admitted = {gpu for gpu in admitted if all(admits_device(each, gpu.fields) for each in selectors)} or all_gpus
        models = frozenset(gpu.model for gpu in admitted)
        return AdmittedGpus(
            None if models == {gpu.model for gpu in all_gpus} else models,
            min(admitted, key=lambda gpu: gpu.memory_bytes, default=None),
        )

    def pool_of(self, node: str, gpu: str) -> str | None:
        """Return the pool of a node's GPU; None: it is in none."""
        return next((placed.pool for placed in self._gpus.get(node, ()) if placed.gpu.gpu == gpu), None)


def _plugin_gpus(node: NodeCapacity | None) -> tuple[_PlacedGpu, ...]:
    # With the device plugin the scheduler has one sum for all GPUs of a node: they count as one GPU.
    if node is None or not node.gpu_gib:
        return ()
    model = node.labels.get(MODEL_LABEL, "")
    return (_PlacedGpu("", SharedGpu(GIB_RESOURCE, node.gpu_gib * GIB, GIB, GIB, model)),)


def _put(table: dict[_Key, _Value], key: _Key, value: _Value | None) -> None:
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _sum(one: ConsumedGpu, other: ConsumedGpu) -> ConsumedGpu:
    return replace(
        one,
        memory_bytes=one.memory_bytes + other.memory_bytes,
        compute_milli=one.compute_milli + other.compute_milli,
        is_whole=one.is_whole or other.is_whole,
    )


def _free(placed: _PlacedGpu, taken: Iterable[ConsumedGpu]) -> GpuResources:
    memory_bytes, compute_milli = placed.gpu.memory_bytes, WHOLE_MILLI
    for one in taken:
        if one.is_whole:
            memory_bytes = compute_milli = 0
        memory_bytes -= one.memory_bytes
        compute_milli -= one.compute_milli
    return GpuResources(
        placed.gpu.gpu,
        free_compute_milli=max(0, compute_milli),
        free_memory_bytes=max(0, memory_bytes),
        compute_milli=WHOLE_MILLI,
        memory_bytes=placed.gpu.memory_bytes,
        model=placed.gpu.model,
    )
