"""The same replay as `cluster.replay`, compiled: a stream with departures in seconds, not in a minute.

It keeps the same promises: a pod that does not fit where it was placed, or that some node could have hosted, ends it.
"""

import numpy as np
from benchmarks.placement.cluster import WHOLE, Cluster, Outcome, allocated_until
from benchmarks.placement.compiled_ours import Tables, choose_ours, tables
from benchmarks.placement.openb import MOST_GPUS, Ints, Stream
from benchmarks.placement.others import NEVER, RANDOM, Floats, Typical, choose
from benchmarks.placement.ours import FIRST_LOOK, MOST_RECENT, Ours
from numba import njit

from pgpu.scheduling.outlook import Outlook

OURS = -1
"""The rule that is not among `others`."""

_LOGGED, _ASKED, _REJECTED = range(3)
NO_TABLES = Tables(np.zeros((1, 1), np.int64), np.zeros((1, 1, 1)), np.zeros((1, 0, 3), np.int64), np.zeros((1, 0)))


class CompiledReplay:
    """One stream on one cluster, played part by part."""

    def __init__(self, cluster: Cluster, stream: Stream, rule: int, seed: int) -> None:
        kinds, nodes, pods = len(cluster.trace.kinds), len(cluster.trace.gpus), len(stream.kinds)
        is_ours = rule == OURS
        self._cluster = cluster
        self._stream = stream
        self._rule = rule
        self._seed = seed
        self._scores = np.full((1, 1) if is_ours else (kinds, nodes), NEVER)
        self._ratings = np.full((kinds, nodes, 3) if is_ours else (1, 1, 3), np.inf)
        self._best_cards = np.zeros((kinds, nodes), dtype=np.int64)
        self._log = np.zeros(len(stream.events) + 1, dtype=np.int64)
        self._seen = np.full(kinds, -1)
        self._where = np.full(pods, -1)
        self._held = np.full((pods, MOST_GPUS), -1)
        self._counts = np.zeros(3, dtype=np.int64)

    def play(self, events: Ints, known: Typical, tables: Tables) -> None:
        """Play some events.

        Raises:
            AssertionError: A pod was placed where it does not fit, or refused although some node could host it.
        """
        cluster, stream = self._cluster, self._stream
        is_right = _play(
            self._rule,
            self._seed,
            events,
            stream.kinds,
            stream.first_counted,
            cluster.trace.kinds,
            cluster.cpu_milli,
            cluster.memory_mib,
            cluster.cards,
            cluster.trace.gpus,
            cluster.trace.model,
            (known.level, known.card, known.idle),
            (tables.level, tables.worth, tables.wide, tables.wide_weight),
            self._scores,
            self._ratings,
            self._best_cards,
            self._log,
            self._seen,
            self._where,
            self._held,
            self._counts,
        )
        if not is_right:
            raise AssertionError("a pod was placed where it does not fit, or refused although some node can host it")

    def forget(self) -> None:
        """Rate every node anew: the tables are others now."""
        self._seen[:] = -1

    @property
    def outcome(self) -> Outcome:
        """What came of it so far."""
        places = self._places()
        return Outcome(
            1 - int(self._cluster.cards.sum()) / self._cluster.trace.capacity_milli,
            allocated_until(self._cluster.trace, self._stream, places),
            int(self._counts[_ASKED]),
            int(self._counts[_REJECTED]),
            places=places,
        )

    def _places(self) -> dict[int, tuple[int, list[int]]]:
        placed = np.flatnonzero(self._where >= 0).tolist()
        held = self._held.tolist()
        return {pod: (int(self._where[pod]), [card for card in held[pod] if card >= 0]) for pod in placed}


def replay_others(cluster: Cluster, stream: Stream, rule: int, known: Typical, seed: int) -> Outcome:
    """Play a stream to its end with one of the other placers."""
    compiled = CompiledReplay(cluster, stream, rule, seed)
    compiled.play(stream.events, known, NO_TABLES)
    return compiled.outcome


def replay_ours(cluster: Cluster, stream: Stream, known: Typical, *, knows_models: bool = True) -> Outcome:
    """Play a stream to its end with pgpu's rating; the mix is looked at as `Ours` does."""
    ours = Ours(cluster, knows_models=knows_models)
    compiled = CompiledReplay(cluster, stream, OURS, 0)
    shapes = [ours.counted[kind] for kind in stream.kinds.tolist()]
    start, look, outlook = 0, FIRST_LOOK, Outlook([], ours.fleet)
    while start < len(stream.events):
        ends = np.flatnonzero(stream.events == look)
        stop = int(ends[0]) if len(ends) else len(stream.events)
        compiled.play(stream.events[start:stop], known, tables(outlook, ours.models, cluster))
        compiled.forget()
        outlook = Outlook(shapes[max(0, look - MOST_RECENT) : look], ours.fleet)
        start, look = stop, look + min(look, MOST_RECENT)
    return compiled.outcome


def _can_host(kind: Ints, cpu_milli: int, memory_mib: int, cards: Ints, model: int) -> bool:
    enough = 0
    for card in range(len(cards)):
        enough += cards[card] >= kind[3]
    has_gpus = kind[2] == 0 or (enough >= kind[2] and (kind[4] >> model) & 1)
    return bool(cpu_milli >= kind[0] and memory_mib >= kind[1] and has_gpus)


def _at_random(scores: Floats) -> int:
    hosts = np.flatnonzero(scores > NEVER)
    return int(hosts[np.random.randint(len(hosts))])  # noqa: NPY002 - as below


def _changed(log: Ints, count: int, seen: int, nodes: int) -> Ints:
    return np.arange(nodes) if seen < 0 or count - seen > nodes else np.unique(log[seen:count])


def _play(  # noqa: C901, PLR0917 - one loop, since compiled code shares no objects
    rule: int,
    seed: int,
    events: Ints,
    pods: Ints,
    first_counted: int,
    kinds: Ints,
    cpu_milli: Ints,
    memory_mib: Ints,
    cards: Ints,
    gpus: Ints,
    model: Ints,
    known: tuple[Ints, Floats, Floats],
    ours: tuple[Ints, Floats, Ints, Floats],
    scores: Floats,
    ratings: Floats,
    best_cards: Ints,
    log: Ints,
    seen: Ints,
    where: Ints,
    held: Ints,
    counts: Ints,
) -> bool:
    np.random.seed(seed)  # noqa: NPY002 - the generator that compiled code has
    nodes = len(cpu_milli)
    for event in events:
        pod = event if event >= 0 else -1 - event
        kind, number = kinds[pods[pod]], pods[pod]
        sign, node = 1, where[pod]
        if event < 0:
            if node < 0:
                continue
            sign = -1
        else:
            changed = _changed(log, counts[_LOGGED], seen[number], nodes)
            seen[number] = counts[_LOGGED]
            if rule == OURS:
                node = choose_ours(
                    kind, changed, cpu_milli, memory_mib, cards, model, ours, ratings[number], best_cards[number]
                )
            else:
                node = choose(
                    rule,
                    kind,
                    changed,
                    cpu_milli,
                    memory_mib,
                    cards,
                    gpus,
                    model,
                    known[0],
                    known[1],
                    known[2],
                    scores[number],
                    best_cards[number],
                )
            asked = kind[2] * kind[3] if pod >= first_counted else 0
            counts[_ASKED] += asked
            if node < 0:
                counts[_REJECTED] += asked
                if _any_can_host(kind, cpu_milli, memory_mib, cards, model):
                    return False
                continue
            if rule == RANDOM:
                node = _at_random(scores[number])
            where[pod] = node
            _hold(held[pod], kind, best_cards[number, node], cards[node])
        cpu_milli[node] -= sign * kind[0]
        memory_mib[node] -= sign * kind[1]
        for gpu in range(kind[2]):
            cards[node, held[pod, gpu]] -= sign * kind[3]
            if held[pod, gpu] < 0 or cards[node, held[pod, gpu]] < 0 or not (kind[4] >> model[node]) & 1:
                return False
        if cpu_milli[node] < 0 or memory_mib[node] < 0:
            return False
        log[counts[_LOGGED]] = node
        counts[_LOGGED] += 1
    return True


def _hold(held: Ints, kind: Ints, best_card: int, cards: Ints) -> None:
    if kind[2] == 1 and kind[3] < WHOLE:
        held[0] = best_card
        return
    taken = 0
    for card in range(len(cards)):
        if taken < kind[2] and cards[card] == WHOLE:
            held[taken] = card
            taken += 1


def _any_can_host(kind: Ints, cpu_milli: Ints, memory_mib: Ints, cards: Ints, model: Ints) -> bool:
    for node in range(len(cpu_milli)):
        if _can_host(kind, cpu_milli[node], memory_mib[node], cards[node], model[node]):
            return True
    return False


_can_host = njit(cache=True)(_can_host)
_any_can_host = njit(cache=True)(_any_can_host)
_at_random = njit(cache=True)(_at_random)
_changed = njit(cache=True)(_changed)
_hold = njit(cache=True)(_hold)
_play = njit(cache=True)(_play)
