"""Which node and which of its GPUs a job gets: those whose free parts lose least worth to the jobs likely to come (`outlook`).

Ties go to the best fit, then to GPUs that are in the wanted sharing mode, then to the lowest predicted slowdown, then to the
first in the order given. Every job that some node could host is placed. Predicted slowdowns are an input.

Source: after fragmentation gradient descent (Weng et al., USENIX ATC 2023), with the worth of `outlook` as its measure.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from pgpu.model import SharingMode
from pgpu.scheduling.cluster_resources import GpuResources, JobShape, NodeResources
from pgpu.scheduling.gpu_worth import GpuWorth
from pgpu.scheduling.outlook import Outlook
from pgpu.structs import Struct, field

# CPU that a GPU is assumed to have, as a multiple of its even share of the node's free CPU. With all of the CPU for each, 0.3
# points are lost on openb: the last CPUs of a node would count once for every gap.
CPU_PER_GPU = 2.0


class PlacementPreference(Struct, frozen=True):
    """What decides between GPUs that serve a job equally well."""

    sharing_mode: SharingMode | None = None
    """Also a limit: a GPU in another mode cannot host the job. None for any."""

    slowdowns: Mapping[str, float] = field(default_factory=dict)
    """Predicted slowdown by GPU UUID; 1, which is none, for those not named."""


NO_PREFERENCE = PlacementPreference()

GpuKind = tuple[int, int, int, int, SharingMode | str, str]


class Rating(NamedTuple):
    """Cost of placing a job on some GPUs of one node; compared field by field, smaller is better."""

    unlinked_pairs: int
    """Pairs of its GPUs that NVLink does not join."""

    lost: float
    """Worth that the free parts of the node lose, in whole GPUs, rounded to 9 digits."""

    node_left: float
    """Free part of the node's GPUs afterwards, in whole GPUs."""

    gpus_left: float
    """Free part of the job's GPUs afterwards."""

    mode_changes: int
    """GPUs that would change their sharing mode."""

    slowdown: float
    """Predicted, the largest of its GPUs."""

    gpu_indexes: tuple[int, ...]
    """Places of its GPUs in the node."""


class Placement(Struct, frozen=True):
    """Node and GPUs chosen for a job."""

    node: str
    gpu_uuids: tuple[str, ...]
    rating: Rating


def rate(
    shape: JobShape, node: NodeResources, outlook: Outlook, preference: PlacementPreference = NO_PREFERENCE
) -> Rating | None:
    """Rate the best GPUs that one node has for a job; None if it cannot host it."""
    return rate_state(shape, NodeState(node, outlook), preference)


def place(
    shape: JobShape, nodes: Sequence[NodeResources], outlook: Outlook, preference: PlacementPreference = NO_PREFERENCE
) -> Placement | None:
    """Choose node and GPUs for a job; None if no node can host it.

    Pure: the same arguments always give the same result.

    Args:
        shape: What the job asks for.
        nodes: The candidates. Their order decides ties: keep it the same from job to job.
        outlook: Jobs that are likely to come.
        preference: Sharing mode and predicted slowdowns.
    """
    return best_of(nodes, [rate(shape, node, outlook, preference) for node in nodes])


class _Gap(Struct, gc=False):
    """GPUs of one node that are alike: type, free part and sharing mode."""

    gpu: GpuResources
    free_compute_milli: int
    free_memory_bytes: int
    is_idle: bool
    share: float
    """Free share of each."""

    worths: GpuWorth
    cell: int
    indexes: list[int]
    """Places of the GPUs in the node."""


class _Weight(NamedTuple):
    """What valuing a gap needs, precomputed: it happens ten times for each decision on a cluster."""

    gpus: int
    part: float
    """Of the node's free CPU, in free GPUs."""

    thresholds_milli: Sequence[int]
    by_cpu: Sequence[Mapping[int, float]]
    cell: int


class _Seat(NamedTuple):
    slowdown: float
    gpu_index: int
    gap_number: int
    gap: _Gap


class FreeParts:
    """Free parts of a node's GPUs, independent of the job and of the rest of the node, so nodes that are alike share them."""

    __slots__ = ("_idle", "alike", "kinds", "most_compute_milli", "share", "weights")

    def __init__(self, gpus: Sequence[GpuResources], outlook: Outlook) -> None:
        self.alike = list(_gaps(gpus, outlook))
        self.weights = [
            _Weight(
                len(gap.indexes),
                CPU_PER_GPU * gap.share,
                gap.worths.thresholds_milli,
                gap.worths.by_cpu,
                gap.cell,
            )
            for gap in self.alike
        ]
        # Equal for sets of GPUs that are rated alike, in any order.
        self.kinds = tuple(sorted(map(kind_of, gpus)))
        self.most_compute_milli = max((gap.free_compute_milli for gap in self.alike), default=0)
        self._idle = Counter[GpuWorth]()
        for gap in self.alike:
            if gap.is_idle:
                self._idle[gap.worths] += len(gap.indexes)
        self.share = sum(gap.share * len(gap.indexes) for gap in self.alike)

    def worth(self, cpu_milli: int, node_share: float) -> float:
        """Return the worth of all parts, in a node with this much free CPU and `node_share` free GPUs."""
        worth = 0.0
        for count, part, thresholds_milli, by_cpu, cell in self.weights:
            enough_milli = cpu_milli * part / node_share if part < node_share else cpu_milli
            worth += count * by_cpu[bisect_right(thresholds_milli, enough_milli)][cell]
        return worth

    def idle_worth(self, cpu_milli: int, host_memory_bytes: int, taken: Sequence[GpuWorth] = ()) -> float:
        """Return the worth of idle GPUs to jobs that need several, without some of them.

        GPUs of different worth in one node count apart, although a job may accept both.
        """
        return sum(
            worths.idle_worth(idle - taken.count(worths), cpu_milli, host_memory_bytes)
            for worths, idle in self._idle.items()
        )


def _gaps(gpus: Sequence[GpuResources], outlook: Outlook) -> Iterator[_Gap]:
    # GPUs that are alike, without those that have nothing free. Sorted by kind, so that nodes with the same gaps in other
    # places get the same floating-point sums.
    alike: dict[GpuKind, list[int]] = {}
    for index, gpu in enumerate(gpus):
        if gpu.free_compute_milli or gpu.free_memory_bytes:
            alike.setdefault(kind_of(gpu), []).append(index)
    for kind in sorted(alike):
        compute_milli, memory_bytes, *_ = kind
        gpu = gpus[alike[kind][0]]
        worths = outlook.worth(gpu.type)
        cell = worths.cell(compute_milli, memory_bytes)
        yield _Gap(gpu, compute_milli, memory_bytes, gpu.is_idle, gpu.free_share, worths, cell, alike[kind])


def kind_of(gpu: GpuResources) -> GpuKind:
    """Return a sortable key that is equal for GPUs that are alike."""
    return (
        gpu.free_compute_milli,
        gpu.free_memory_bytes,
        gpu.compute_milli,
        gpu.memory_bytes,
        gpu.sharing_mode or "",
        gpu.model,
    )


class NodeState:
    """One node with everything that does not depend on the job."""

    __slots__ = ("cpu_milli", "gaps", "host_memory_bytes", "node", "worth")

    def __init__(self, node: NodeResources, outlook: Outlook, gaps: FreeParts | None = None) -> None:
        """Take a node, and the free parts of its GPUs, or of GPUs that are alike, if they are known already."""
        self.node = node
        self.cpu_milli = node.cpu_milli
        self.host_memory_bytes = node.host_memory_bytes
        self.gaps = gaps = gaps or FreeParts(node.gpus, outlook)
        self.worth = gaps.worth(self.cpu_milli, gaps.share) + gaps.idle_worth(self.cpu_milli, self.host_memory_bytes)


def rate_state(shape: JobShape, state: NodeState, preference: PlacementPreference = NO_PREFERENCE) -> Rating | None:
    """Rate as `rate` does."""
    if (
        shape.cpu_milli > state.cpu_milli
        or shape.host_memory_bytes > state.host_memory_bytes
        or (shape.gpu_count and shape.compute_milli > state.gaps.most_compute_milli)
    ):
        return None
    if shape.gpu_count == 1:
        return _rate_one(shape, state, preference)
    if shape.gpu_count:
        return min(
            (_rate_set(shape, state, preference, chosen) for chosen in _seat_sets(shape, state, preference)),
            default=None,
        )
    gaps, cpu_milli = state.gaps, state.cpu_milli - shape.cpu_milli
    left = gaps.worth(cpu_milli, gaps.share) + gaps.idle_worth(
        cpu_milli, state.host_memory_bytes - shape.host_memory_bytes
    )
    return Rating(0, round(state.worth - left, 9), gaps.share, 0.0, 0, 1.0, ())


def _rate_one(shape: JobShape, state: NodeState, preference: PlacementPreference) -> Rating | None:
    # The same figures as `_rate_set`, with what the gaps share computed once.
    gaps, cpu_milli = state.gaps, state.cpu_milli - shape.cpu_milli
    compute_milli, memory_bytes, models = shape.compute_milli, shape.memory_bytes, shape.models
    host_memory_bytes = state.host_memory_bytes - shape.host_memory_bytes
    best: tuple[float, float, float, int, float, int] | None = None
    worth_of_all, share_of_all = 0.0, -1.0
    for gap in gaps.alike:
        if gap.free_compute_milli < compute_milli or gap.free_memory_bytes < memory_bytes:
            continue
        if models is not None and gap.gpu.model not in models:
            continue
        if not (gap.is_idle or gap.gpu.admits(preference.sharing_mode)):
            continue
        taken = gap.gpu.share_of(compute_milli, memory_bytes)
        node_left = gaps.share - taken
        if node_left != share_of_all:
            worth_of_all, share_of_all = gaps.worth(cpu_milli, node_left), node_left
        kept = worth_of_all + _worth_change(shape, gap, taken, cpu_milli, node_left)
        kept += gaps.idle_worth(cpu_milli, host_memory_bytes, (gap.worths,) if gap.is_idle else ())
        lost = round(state.worth - kept, 9)
        if best is None or lost <= best[0]:
            # Of GPUs that are alike the first with the lowest predicted slowdown.
            calm = ((preference.slowdowns.get(state.node.gpus[index].uuid, 1.0), index) for index in gap.indexes)
            slowdown, index = min(calm) if preference.slowdowns else (1.0, gap.indexes[0])
            rated = (lost, node_left, gap.share - taken, gap.gpu.changes_mode(preference.sharing_mode), slowdown, index)
            best = rated if best is None else min(best, rated)
    return None if best is None else Rating(0, *best[:5], (best[5],))


def _worth_change(shape: JobShape, gap: _Gap, taken: float, cpu_milli: int, node_share: float) -> float:
    """Return the change in worth, below 0, of one GPU of a gap that hosts the job, which takes the share `taken` of it."""
    worths = gap.worths

    def worth(cell: int, share: float) -> float:
        part = CPU_PER_GPU * share
        enough_milli = cpu_milli * part / node_share if part < node_share else cpu_milli
        return worths.by_cpu[bisect_right(worths.thresholds_milli, enough_milli)][cell]

    cell = worths.cell(gap.free_compute_milli - shape.compute_milli, gap.free_memory_bytes - shape.memory_bytes)
    before = worth(gap.cell, gap.share)
    return worth(cell, gap.share - taken) - before


def _seat_sets(shape: JobShape, state: NodeState, preference: PlacementPreference) -> Iterator[tuple[_Seat, ...]]:
    # Of sets that are rated alike only the first: combinations of equal GPUs would be rated again and again.
    seats = sorted(
        _Seat(preference.slowdowns.get(state.node.gpus[index].uuid, 1.0), index, number, gap)
        for number, gap in enumerate(state.gaps.alike)
        if gap.gpu.can_host(shape, preference.sharing_mode)
        for index in gap.indexes
    )
    if len({seat.gap_number for seat in seats}) == 1 and not state.node.nvlinks:
        yield from [tuple(seats[: shape.gpu_count])][: len(seats) >= shape.gpu_count]
        return
    seen = set()
    for chosen in combinations(seats, shape.gpu_count):
        kind = (_count_unlinked(chosen, state), chosen[-1].slowdown, *sorted(seat.gap_number for seat in chosen))
        if kind not in seen:
            seen.add(kind)
            yield chosen


def _count_unlinked(chosen: Sequence[_Seat], state: NodeState) -> int:
    gpus, links = state.node.gpus, state.node.nvlinks
    pairs = combinations((gpus[seat.gpu_index].uuid for seat in chosen), 2)
    return sum(frozenset(pair) not in links for pair in pairs)


def _rate_set(shape: JobShape, state: NodeState, preference: PlacementPreference, chosen: Sequence[_Seat]) -> Rating:
    cpu_milli = state.cpu_milli - shape.cpu_milli
    gpus = [seat.gap.gpu for seat in chosen]
    taken = [gpu.share_of(shape.compute_milli, shape.memory_bytes) for gpu in gpus]
    gpus_share = sum(taken)
    node_left = state.gaps.share - gpus_share
    kept = state.gaps.worth(cpu_milli, node_left) + state.gaps.idle_worth(
        cpu_milli,
        state.host_memory_bytes - shape.host_memory_bytes,
        [seat.gap.worths for seat in chosen if seat.gap.is_idle],
    )
    for seat, share in zip(chosen, taken, strict=True):
        kept += _worth_change(shape, seat.gap, share, cpu_milli, node_left)
    return Rating(
        unlinked_pairs=_count_unlinked(chosen, state),
        lost=round(state.worth - kept, 9),
        node_left=node_left,
        gpus_left=sum(gpu.free_share for gpu in gpus) - gpus_share,
        mode_changes=sum(gpu.changes_mode(preference.sharing_mode) for gpu in gpus),
        slowdown=max(seat.slowdown for seat in chosen),
        gpu_indexes=tuple(sorted(seat.gpu_index for seat in chosen)),
    )


def best_of(nodes: Sequence[NodeResources], ratings: Sequence[Rating | None]) -> Placement | None:
    """Choose by known ratings; of equal ones, the first node."""
    rated = [(rating, node) for rating, node in zip(ratings, nodes, strict=True) if rating is not None]
    if not rated:
        return None
    rating, node = min(rated, key=lambda pair: pair[0][:-1])
    return Placement(node.name, tuple(node.gpus[index].uuid for index in rating.gpu_indexes), rating)
