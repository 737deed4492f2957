"""Placement over thousands of nodes, one job after the other: answers as `place` does, and remembers.

A job changes one node, and many nodes are in the same state: a state is rated once for each shape. It refuses to know
anything that `place` does not; what it forgets costs time and changes no answer.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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

    changes_seen: int
    """How many changes of nodes `losses` knows; −1 if not even how they were at first."""

    loss_by_state: dict[int, float] = field(default_factory=dict)
    """The first figures of the rating as one number; infinite for a state that cannot host the shape."""

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
            loss = _as_one_number(rating)
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

    def __init__(self, outlook: Outlook, nodes: Sequence[NodeOffer]) -> None:
        """Take what is likely to come, and the nodes in the order that settles ties."""
        self._outlook = outlook
        self._nodes = list(nodes)
        self._forget()

    def change(self, index: int, node: NodeOffer) -> None:
        """Note what is left of the node at this place in the order."""
        if len(self._states) > MOST_STATES or len(self._changes) > MOST_CHANGES:
            self._forget()
        self._nodes[index] = node
        self._state_of[index] = self._number_of(node)
        self._changes.append(index)

    def place(self, shape: Shape, wish: Wish = ANYHOW) -> Placement | None:
        """Choose node and GPUs for a job; None if no node can host it. Answers as `placement.place` does."""
        if wish.slowdowns:
            return place(shape, self._nodes, self._outlook, wish)
        rated = self._rated(shape, wish)
        first_by_state: dict[int, int] = {}
        for index in rated.least():
            first_by_state.setdefault(self._state_of[index], index)
        if not first_by_state:
            return None
        number, index = min(first_by_state.items(), key=lambda pair: rated.rating_by_state[pair[0]][:-1])
        node = self._nodes[index]
        if self._states[number].node is node:
            return best_of([node], [rated.rating_by_state[number]])
        return place(shape, [node], self._outlook, wish)

    def _forget(self) -> None:
        self._states: list[State] = []
        self._number_by_key: dict[tuple[object, ...], int] = {}
        self._rated_by_shape: dict[tuple[Shape, SharingMode | None], _Rated] = {}
        self._state_of = [self._number_of(node) for node in self._nodes]
        self._changes: list[int] = []

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
            rated = _Rated(shape, wish, [math.inf] * len(self._nodes), -1)
            self._rated_by_shape[shape, wish.sharing_mode] = rated
        unseen = len(self._changes) - rated.changes_seen
        is_all = rated.changes_seen < 0 or unseen > len(self._nodes)
        changed = range(len(self._nodes)) if is_all else self._changes[rated.changes_seen :]
        rated.learn(changed, self._state_of, self._states)
        rated.changes_seen = len(self._changes)
        return rated


def _as_one_number(rating: Rating) -> float:
    """Write the first three figures as one number that sorts alike, or as equal where it is too short for them.

    Steps of 1e-9 GPUs of worth, of which no node loses a thousand, then thousandths of the GPUs that stay free.
    """
    lost = round((rating.unlinked_pairs * 1000 + rating.lost) * 1e9)
    return float(lost * 100_000 + round(rating.node_left * 1000))


def _key(node: NodeOffer) -> tuple[object, ...]:
    """Name the state of a node: equal for nodes that rate alike, whichever GPUs of theirs are in which part of it."""
    gpus = [
        (gpu.free_compute_milli, gpu.free_memory_bytes, gpu.compute_milli, gpu.memory_bytes, gpu.sharing_mode or "")
        for gpu in node.gpus
    ]
    if node.nvlinks:
        return (node.cpu_milli, node.host_memory_bytes, *gpus, node.name)
    return (node.cpu_milli, node.host_memory_bytes, *sorted(gpus))
