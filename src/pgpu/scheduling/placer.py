"""Placement over thousands of nodes, one job after the other: the same results as `placement.place`, from caches.

A job changes one node, and many nodes are in the same state, so each state is rated once for each shape. A dropped cache costs
time and changes no result.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from pgpu.model import SharingMode
from pgpu.scheduling.outlook import JobShape, NodeResources, Outlook
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

# States of nodes in the cache before it is cleared: 2 KB each, and 0.2 KB for each shape that was rated on it.
MOST_STATES = 20_000

# Shapes with cached ratings.
MOST_SHAPES = 512

# Changes of nodes in the log before all caches are cleared.
MOST_CHANGES = 100_000

_PER_GPU = 1_000_000_000

# Range of the second figure in a rating encoded as one number.
_LEFT = 100_000


@dataclass(slots=True)
class _Rated:
    """Cost of hosting one shape, by the states that nodes are in."""

    shape: JobShape
    wish: PlacementPreference
    changes_seen: int = -1
    """Length of the log of changes when it was last updated; -1 before the first update."""

    cost_by_state: dict[int, int] = field(default_factory=dict)
    """First figures of the rating as one number, for states that can host the shape. Entries are never recomputed."""

    cheapest: list[tuple[int, int]] = field(default_factory=list)
    """A heap of (cost, number of the state). States that no node is in any more are removed when they reach the top."""

    in_heap: set[int] = field(default_factory=set)

    def learn(self, numbers: Iterable[int], states: Sequence[NodeState]) -> None:
        """Rate states that a node came into."""
        cpu_milli = self.shape.cpu_milli
        compute_milli = self.shape.compute_milli if self.shape.gpu_count else 0
        for number in numbers:
            state = states[number]
            if cpu_milli <= state.cpu_milli and compute_milli <= state.gaps.most_compute_milli:
                cost = self.cost_by_state.get(number)
                if cost is None:
                    rating = rate_state(self.shape, state, self.wish)
                    if rating is None:
                        continue
                    self.cost_by_state[number] = cost = _encode(rating)
                self.in_heap.add(number)
                heappush(self.cheapest, (cost, number))

    def least(self, nodes_in: Sequence[Sequence[int]]) -> list[int]:
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
        self._forget()

    def change(self, index: int, node: NodeResources) -> None:
        """Replace the node at this place in the order."""
        if len(self._states) > MOST_STATES or len(self._changes) > MOST_CHANGES:
            self._forget()
        self._nodes[index] = node
        former = self._nodes_in[self._state_of[index]]
        del former[bisect_left(former, index)]
        self._gaps_at[index] = gaps = self._gaps_of(node)
        self._state_of[index] = number = self._number_of(node, gaps)
        insort(self._nodes_in[number], index)
        self._changes.append(index)

    def place(self, shape: JobShape, wish: PlacementPreference = NO_PREFERENCE) -> Placement | None:
        """Choose node and GPUs for a job; None if no node can host it. The same result as `placement.place`."""
        if wish.slowdowns:
            return place(shape, self._nodes, self._outlook, wish)
        rated = self._rated(shape, wish)
        cheapest = rated.least(self._nodes_in)
        if not cheapest:
            return None
        indexes = sorted(self._nodes_in[number][0] for number in cheapest)
        nodes = [self._nodes[index] for index in indexes]
        return best_of(nodes, [rate_state(shape, self._state_at(index), wish) for index in indexes])

    def costs(self, shape: JobShape, wish: PlacementPreference = NO_PREFERENCE) -> list[int | None]:
        """Return the cost of hosting a job on each node, in their order, smaller is better; None if a node cannot host it.

        The first figures of the rating as one number: `place` may still prefer one of several nodes of equal cost. Predicted
        slowdowns are ignored.
        """
        cost_by_state = self._rated(shape, wish).cost_by_state
        return list(map(cost_by_state.get, self._state_of))

    def _state_at(self, index: int) -> NodeState:
        # With the node's own GPUs in it, not those of another node that is alike.
        state, gaps = self._states[self._state_of[index]], self._gaps_at[index]
        return state if state.gaps is gaps else NodeState(self._nodes[index], self._outlook, gaps)

    def _forget(self) -> None:
        self._states: list[NodeState] = []
        self._nodes_in: list[list[int]] = []
        self._gaps_by_kinds: dict[tuple[object, ...], FreeParts] = {}
        self._number_by_key: dict[tuple[object, ...], int] = {}
        self._rated_by_shape: dict[tuple[JobShape, SharingMode | None], _Rated] = {}
        self._changes: list[int] = []
        self._gaps_at = [self._gaps_of(node) for node in self._nodes]
        self._state_of = list(map(self._number_of, self._nodes, self._gaps_at))
        for index, number in enumerate(self._state_of):
            self._nodes_in[number].append(index)

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

    def _rated(self, shape: JobShape, wish: PlacementPreference) -> _Rated:
        rated = self._rated_by_shape.get((shape, wish.sharing_mode))
        if rated is None:
            if len(self._rated_by_shape) >= MOST_SHAPES:
                del self._rated_by_shape[next(iter(self._rated_by_shape))]
            rated = self._rated_by_shape[shape, wish.sharing_mode] = _Rated(shape, wish)
        rated.learn(self._states_since(rated.changes_seen) - rated.in_heap, self._states)
        rated.changes_seen = len(self._changes)
        return rated

    def _states_since(self, changes_seen: int) -> set[int]:
        if changes_seen < 0 or len(self._changes) - changes_seen > len(self._nodes):
            return set(self._state_of)
        return set(map(self._state_of.__getitem__, self._changes[changes_seen:]))


def _encode(rating: Rating) -> int:
    # The first three figures in the same order, up to the resolution: steps of 1e-9 GPUs of worth (no node loses a thousand
    # GPUs), then thousandths of the GPUs that stay free.
    lost = round((rating.unlinked_pairs * 1000 + rating.lost) * _PER_GPU)
    return lost * _LEFT + round(rating.node_left * 1000)


def fuller_first(costs: Sequence[int | None], alike: float) -> list[int | None]:
    """Treat nodes that lose nearly as little as the best one as equal in that figure, so that the fuller ones cost less.

    Args:
        costs: As `Placer.costs` returns them.
        alike: How much more worth such a node may lose, in GPUs.
    """
    least = min((cost for cost in costs if cost is not None), default=0) // _LEFT
    most = (least + round(alike * _PER_GPU) + 1) * _LEFT
    return [cost if cost is None or cost >= most else least * _LEFT + cost % _LEFT for cost in costs]
