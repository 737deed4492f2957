"""Places one job after the other over thousands of nodes, with the same results as `placement.place`, from caches.

A job changes one node, and many nodes are in the same state, so each state is rated once for each shape. A dropped cache costs
time and changes no result.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush

from pgpu.model import SharingMode
from pgpu.scheduling.cluster_resources import JobShape, NodeResources
from pgpu.scheduling.outlook import Outlook
from pgpu.scheduling.placement import (
    NO_PREFERENCE,
    FreeParts,
    NodeState,
    Placement,
    PlacementPreference,
    Rating,
    best_of,
    kind_of,
    place,
    rate_state,
)
from pgpu.structs import Struct, field

# States of nodes in the cache before it is cleared: 2 KB each, and 0.2 KB for each shape that was rated on it.
MOST_STATES = 20_000

# Shapes with cached ratings.
MOST_SHAPES = 512

# Changes of nodes in the log before all caches are cleared.
MOST_CHANGES = 100_000

_PER_GPU = 1_000_000_000

# Range of the second figure in a rating encoded as one number.
_LEFT = 100_000


class _Rated(Struct):
    """Cost of hosting one shape, by the states that nodes are in."""

    shape: JobShape
    preference: PlacementPreference
    changes_seen: int = -1
    """Length of the log of changes when it was last updated; -1 before the first update."""

    cost_by_state: dict[int, int] = field(default_factory=dict)
    """First figures of the rating as one number, for states that can host the shape. Entries are never recomputed."""

    cheapest: list[tuple[int, int]] = field(default_factory=list)
    """A heap of (cost, number of the state). States that no node is in any more are removed when they reach the top."""

    in_heap: set[int] = field(default_factory=set)

    def rate_states(self, numbers: Iterable[int], states: Sequence[NodeState]) -> None:
        """Rate states that a node came into."""
        cpu_milli = self.shape.cpu_milli
        compute_milli = self.shape.compute_milli if self.shape.gpu_count else 0
        for number in numbers:
            state = states[number]
            if cpu_milli <= state.cpu_milli and compute_milli <= state.gaps.most_compute_milli:
                cost = self.cost_by_state.get(number)
                if cost is None:
                    rating = rate_state(self.shape, state, self.preference)
                    if rating is None:
                        continue
                    self.cost_by_state[number] = cost = _encode_cost(rating)
                self.in_heap.add(number)
                heappush(self.cheapest, (cost, number))

    def cheapest_states(self, nodes_in: Sequence[Sequence[int]]) -> list[int]:
        """Return the states of least cost; none if none can host the shape."""
        found: list[tuple[int, int]] = []
        while self.cheapest and (not found or self.cheapest[0][0] == found[0][0]):
            cost = heappop(self.cheapest)
            if nodes_in[cost[1]]:
                found.append(cost)
            else:
                self.in_heap.remove(cost[1])
        for cost in found:
            heappush(self.cheapest, cost)
        return [number for _, number in found]


class Placer:
    """Chooses node and GPUs for one job after the other."""

    def __init__(self, outlook: Outlook, nodes: Sequence[NodeResources]) -> None:
        """Take the jobs that are likely to come, and the nodes in the order that decides ties."""
        self._outlook = outlook
        self._nodes = list(nodes)
        self._clear_caches()

    def renewed(self, outlook: Outlook) -> "Placer":
        """Return a placer of the same nodes with other likely jobs."""
        return Placer(outlook, self._nodes)

    def settle(self, most: int) -> bool:
        """Value up to so many nodes ahead of `place` and `costs`, which would value all that are left; True once none is.

        For a caller that cannot wait for thousands of nodes at once.
        """
        first = len(self._state_of)
        for index in range(first, min(first + most, len(self._nodes))):
            node = self._nodes[index]
            gaps = self._gaps_of(node)
            number = self._number_of(node, gaps)
            self._gaps_at.append(gaps)
            self._state_of.append(number)
            self._nodes_in[number].append(index)
        return len(self._state_of) == len(self._nodes)

    def change(self, index: int, node: NodeResources) -> None:
        """Replace the node at this place in the order."""
        if len(self._states) > MOST_STATES or len(self._changes) > MOST_CHANGES:
            self._clear_caches()
        self._nodes[index] = node
        if index >= len(self._state_of):
            return
        former = self._nodes_in[self._state_of[index]]
        del former[bisect_left(former, index)]
        self._gaps_at[index] = gaps = self._gaps_of(node)
        self._state_of[index] = number = self._number_of(node, gaps)
        insort(self._nodes_in[number], index)
        self._changes.append(index)

    def place(self, shape: JobShape, preference: PlacementPreference = NO_PREFERENCE) -> Placement | None:
        """Choose node and GPUs for a job; None if no node can host it. The same result as `place`."""
        if preference.slowdowns:
            return place(shape, self._nodes, self._outlook, preference)
        rated = self._ratings_of(shape, preference)
        cheapest = rated.cheapest_states(self._nodes_in)
        if not cheapest:
            return None
        indexes = sorted(self._nodes_in[number][0] for number in cheapest)
        nodes = [self._nodes[index] for index in indexes]
        return best_of(nodes, [rate_state(shape, self._state_at(index), preference) for index in indexes])

    @property
    def states(self) -> Sequence[int]:
        """Number of each node's state, in their order: nodes in one state cost the same."""
        self.settle(len(self._nodes))
        return self._state_of

    def costs(self, shape: JobShape, preference: PlacementPreference = NO_PREFERENCE) -> Mapping[int, int]:
        """Return the cost of hosting a job, smaller is better, for the states that can host it, and for former ones.

        The first figures of the rating as one number: `place` may still prefer one of several nodes of equal cost. Predicted
        slowdowns are ignored.
        """
        return self._ratings_of(shape, preference).cost_by_state

    def _state_at(self, index: int) -> NodeState:
        # With the node's own GPUs in it, not those of another node that is alike.
        state, gaps = self._states[self._state_of[index]], self._gaps_at[index]
        return state if state.gaps is gaps else NodeState(self._nodes[index], self._outlook, gaps)

    def _clear_caches(self) -> None:
        self._states: list[NodeState] = []
        self._nodes_in: list[list[int]] = []
        self._gaps_by_kinds: dict[tuple[object, ...], FreeParts] = {}
        self._number_by_key: dict[tuple[object, ...], int] = {}
        self._rated_by_shape: dict[tuple[JobShape, SharingMode | None], _Rated] = {}
        self._changes: list[int] = []
        # Of the nodes from the first on that were valued already.
        self._gaps_at: list[FreeParts] = []
        self._state_of: list[int] = []

    def _number_of(self, node: NodeResources, gaps: FreeParts) -> int:
        # The key is equal for nodes that rate alike, whichever of their GPUs has which free part; with NVLink the places
        # of the GPUs matter, so such a node has states of its own.
        is_linked = bool(node.nvlinks)
        key = (node.cpu_milli, node.host_memory_bytes, *((gaps, node.name) if is_linked else (gaps.kinds,)))
        number = self._number_by_key.get(key)
        if number is None:
            number = self._number_by_key[key] = len(self._states)
            self._states.append(NodeState(node, self._outlook, gaps))
            self._nodes_in.append([])
        return number

    def _gaps_of(self, node: NodeResources) -> FreeParts:
        kinds = tuple(map(kind_of, node.gpus))
        gaps = self._gaps_by_kinds.get(kinds)
        if gaps is None:
            gaps = self._gaps_by_kinds[kinds] = FreeParts(node.gpus, self._outlook)
        return gaps

    def _ratings_of(self, shape: JobShape, preference: PlacementPreference) -> _Rated:
        self.settle(len(self._nodes))
        rated = self._rated_by_shape.get((shape, preference.sharing_mode))
        if rated is None:
            if len(self._rated_by_shape) >= MOST_SHAPES:
                del self._rated_by_shape[next(iter(self._rated_by_shape))]
            rated = self._rated_by_shape[shape, preference.sharing_mode] = _Rated(shape, preference)
        # Only the states of nodes that changed since, except the first time, or after more changes than there are nodes.
        if rated.changes_seen < 0 or len(self._changes) - rated.changes_seen > len(self._nodes):
            states = set(self._state_of)
        else:
            states = set(map(self._state_of.__getitem__, self._changes[rated.changes_seen :]))
        rated.rate_states(states - rated.in_heap, self._states)
        rated.changes_seen = len(self._changes)
        return rated


def _encode_cost(rating: Rating) -> int:
    # The first three figures in the same order, up to the resolution: steps of 1e-9 GPUs of worth (no node loses a thousand
    # GPUs), then thousandths of the GPUs that stay free.
    lost = round((rating.unlinked_pairs * 1000 + rating.lost) * _PER_GPU)
    return lost * _LEFT + round(rating.node_left * 1000)


def prefer_fuller_nodes(costs: Sequence[int], alike: float) -> list[int]:
    """Treat nodes that lose nearly as little as the best one as equal in that figure, so that the fuller ones cost less.

    Args:
        costs: As `Placer.costs` returns them.
        alike: How much more worth such a node may lose, in GPUs.
    """
    least = min(costs, default=0) // _LEFT
    most = (least + round(alike * _PER_GPU) + 1) * _LEFT
    return [cost if cost >= most else least * _LEFT + cost % _LEFT for cost in costs]
