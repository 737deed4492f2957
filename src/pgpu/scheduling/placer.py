"""Placement over thousands of nodes, one job after the other: answers as `place` does, and remembers.

A job changes one node, and many nodes are in the same state: a state is rated once for each shape. It refuses to know
anything that `place` does not; what it forgets costs time and changes no answer.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from operator import is_not

from pgpu.scheduling.offers import NodeOffer, Shape, SharingMode
from pgpu.scheduling.outlook import Outlook
from pgpu.scheduling.placement import ANYHOW, Placement, Rating, State, Wish, best_of, place, rate_state

MOST_STATES = 20_000
"""States of nodes that are remembered before all of them are forgotten: 2 KB each, and 0.2 KB for each shape that met it."""

MOST_SHAPES = 512
"""Shapes whose ratings are remembered."""

MOST_CHANGES = 100_000
"""Changes of nodes that are noted before all is forgotten."""


@dataclass(slots=True)
class _Rated:
    """What hosting one shape would cost nodes and states."""

    shape: Shape
    wish: Wish
    losses: list[float]
    """By node."""

    changes_seen: int = 0
    """How many changes of nodes `losses` knows."""

    loss_by_state: dict[int, float] = field(default_factory=dict)
    """The first two figures of the rating as one number that sorts alike, since no node loses a thousand GPUs of worth;
    infinite for a state that cannot host the shape."""

    rating_by_state: dict[int, Rating] = field(default_factory=dict)

    def learn(self, changed: Iterable[int], state_of: Sequence[int], states: Sequence[State]) -> None:
        """Rate nodes again that are no longer in the state that they were in."""
        cpu_milli = self.shape.cpu_milli
        compute_milli = self.shape.compute_milli if self.shape.gpu_count else 0
        for index in changed:
            number = state_of[index]
            state = states[number]
            if cpu_milli > state.cpu_milli or compute_milli > state.most_compute_milli:
                self.losses[index] = math.inf
                continue
            loss = self.loss_by_state.get(number)
            self.losses[index] = self._rate(number, state) if loss is None else loss

    def _rate(self, number: int, state: State) -> float:
        rating = rate_state(self.shape, state, self.wish)
        if rating is None:
            loss = math.inf
        else:
            loss = rating.unlinked_pairs * 1000 + rating.lost
            self.rating_by_state[number] = rating
        self.loss_by_state[number] = loss
        return loss

    def least(self) -> Iterable[int]:
        """Yield the nodes that lose least; none if none can host the shape."""
        least = min(self.losses, default=math.inf)
        index = -1
        for _ in range(0 if least == math.inf else self.losses.count(least)):
            index = self.losses.index(least, index + 1)
            yield index


class Placer:
    """Chooses node and GPUs for one job after the other."""

    def __init__(self, outlook: Outlook) -> None:
        self._outlook = outlook
        self._forget(0)

    def place(self, shape: Shape, nodes: Sequence[NodeOffer], wish: Wish = ANYHOW) -> Placement | None:
        """Choose node and GPUs for a job; None if no node can host it. Arguments and answers as of `place`."""
        if wish.slowdowns:
            return place(shape, nodes, self._outlook, wish)
        self._look(nodes)
        rated = self._rated(shape, wish)
        first_by_state: dict[int, NodeOffer] = {}
        for index in rated.least():
            first_by_state.setdefault(self._state_of[index], nodes[index])
        ratings = [rated.rating_by_state[number] for number in first_by_state]
        chosen = best_of(list(first_by_state.values()), ratings)
        return None if chosen is None else self._with_its_own_gpus(chosen, first_by_state.values(), shape, wish)

    def _with_its_own_gpus(
        self, chosen: Placement, tied: Iterable[NodeOffer], shape: Shape, wish: Wish
    ) -> Placement | None:
        """Name the GPUs of the chosen node: its rating may be that of another one in the same state."""
        node = next(node for node in tied if node.name == chosen.node)
        return place(shape, [node], self._outlook, wish)

    def _look(self, nodes: Sequence[NodeOffer]) -> None:
        """Note which nodes are no longer what they were."""
        if (
            len(nodes) != len(self._nodes)
            or len(self._states) > MOST_STATES
            or len(self._changes) > MOST_CHANGES + len(nodes)
        ):
            self._forget(len(nodes))
        for index in compress(count(), map(is_not, nodes, self._nodes)):
            self._nodes[index] = nodes[index]
            self._state_of[index] = self._number_of(nodes[index])
            self._changes.append(index)

    def _forget(self, node_count: int) -> None:
        self._nodes: list[NodeOffer | None] = [None] * node_count
        self._states: list[State] = []
        self._state_of = [-1] * node_count
        self._number_by_key: dict[tuple[object, ...], int] = {}
        self._changes: list[int] = []
        self._rated_by_shape: dict[tuple[Shape, SharingMode | None], _Rated] = {}

    def _number_of(self, node: NodeOffer) -> int:
        key = _key(node)
        number = self._number_by_key.get(key)
        if number is None:
            number = self._number_by_key[key] = len(self._states)
            self._states.append(State(node, self._outlook))
        return number

    def _rated(self, shape: Shape, wish: Wish) -> _Rated:
        rated = self._rated_by_shape.get((shape, wish.sharing_mode))
        if rated is None:
            if len(self._rated_by_shape) >= MOST_SHAPES:
                del self._rated_by_shape[next(iter(self._rated_by_shape))]
            rated = _Rated(shape, wish, [math.inf] * len(self._nodes))
            self._rated_by_shape[shape, wish.sharing_mode] = rated
        rated.learn(self._changed_since(rated.changes_seen), self._state_of, self._states)
        rated.changes_seen = len(self._changes)
        return rated

    def _changed_since(self, changes: int) -> Sequence[int]:
        unseen = len(self._changes) - changes
        return range(len(self._nodes)) if unseen > len(self._nodes) else self._changes[changes:]


def _key(node: NodeOffer) -> tuple[object, ...]:
    """Name the state of a node: equal for nodes that rate alike, whichever GPUs of theirs are in which part of it."""
    gpus = [
        (gpu.free_compute_milli, gpu.free_memory_bytes, gpu.compute_milli, gpu.memory_bytes, gpu.sharing_mode or "")
        for gpu in node.gpus
    ]
    if node.nvlinks:
        return (node.cpu_milli, node.host_memory_bytes, *gpus, node.name)
    return (node.cpu_milli, node.host_memory_bytes, *sorted(gpus))
