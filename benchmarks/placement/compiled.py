"""The same replay as `cluster.replay`, compiled, for the placers of `others`: a stream in seconds, not in a minute.

It keeps the same promises: a pod that does not fit where it was placed, or that some node could have hosted, ends it.
"""

import numpy as np
from benchmarks.placement.cluster import WHOLE, Cluster, Outcome
from benchmarks.placement.openb import MOST_GPUS, Ints, Stream
from benchmarks.placement.others import NEVER, RANDOM, Floats, Typical, choose
from numba import njit

_LOGGED, _ASKED, _REJECTED = range(3)


def replay_compiled(cluster: Cluster, stream: Stream, rule: int, known: Typical, seed: int) -> Outcome:
    """Play a stream to its end.

    Raises:
        AssertionError: A pod was placed where it does not fit, or refused although some node could host it.
    """
    kinds, nodes, pods = len(cluster.trace.kinds), len(cluster.trace.gpus), len(stream.kinds)
    counts = np.zeros(3, dtype=np.int64)
    is_right = _play(
        rule,
        seed,
        stream.events,
        stream.kinds,
        stream.first_counted,
        cluster.trace.kinds,
        cluster.cpu_milli,
        cluster.memory_mib,
        cluster.cards,
        cluster.trace.gpus,
        (known.level, known.card, known.idle),
        np.full((kinds, nodes), NEVER),
        np.zeros((kinds, nodes), dtype=np.int64),
        np.zeros(len(stream.events) + 1, dtype=np.int64),
        np.full(kinds, -1),
        np.full(pods, -1),
        np.full((pods, MOST_GPUS), -1),
        counts,
    )
    if not is_right:
        raise AssertionError("a pod was placed where it does not fit, or refused although some node can host it")
    allocated = 1 - int(cluster.cards.sum()) / cluster.trace.capacity_milli
    return Outcome(allocated, int(counts[_ASKED]), int(counts[_REJECTED]))


def _can_host(kind: Ints, cpu_milli: int, memory_mib: int, cards: Ints) -> bool:
    enough = 0
    for card in range(len(cards)):
        enough += cards[card] >= kind[3]
    return bool(cpu_milli >= kind[0] and memory_mib >= kind[1] and enough >= kind[2])


def _at_random(scores: Floats) -> int:
    hosts = np.flatnonzero(scores > NEVER)
    return int(hosts[np.random.randint(len(hosts))])  # noqa: NPY002 - as below


def _changed(log: Ints, count: int, seen: int, nodes: int) -> Ints:
    return np.arange(nodes) if seen < 0 or count - seen > nodes else np.unique(log[seen:count])


def _play(  # noqa: PLR0917 - one loop, since compiled code shares no objects
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
    known: tuple[Ints, Floats, Floats],
    scores: Floats,
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
            node = choose(
                rule,
                kind,
                changed,
                cpu_milli,
                memory_mib,
                cards,
                gpus,
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
                if _any_can_host(kind, cpu_milli, memory_mib, cards):
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
            if held[pod, gpu] < 0 or cards[node, held[pod, gpu]] < 0:
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


def _any_can_host(kind: Ints, cpu_milli: Ints, memory_mib: Ints, cards: Ints) -> bool:
    for node in range(len(cpu_milli)):  # noqa: SIM110 - compiled: no generators
        if _can_host(kind, cpu_milli[node], memory_mib[node], cards[node]):
            return True
    return False


_can_host = njit(cache=True)(_can_host)
_any_can_host = njit(cache=True)(_any_can_host)
_at_random = njit(cache=True)(_at_random)
_changed = njit(cache=True)(_changed)
_hold = njit(cache=True)(_hold)
_play = njit(cache=True)(_play)
