"""The same replay as `cluster.replay`, compiled, for the placers of `others`: a stream with departures in a second.

It keeps the same promises: a pod that does not fit where it was placed, or that some node could have hosted, ends it.
"""

import numpy as np
from benchmarks.placement.cluster import WHOLE, Cluster, Outcome
from benchmarks.placement.openb import MOST_GPUS, Ints, Stream
from benchmarks.placement.others import NEVER, RANDOM, Floats, Typical, choose
from numba import njit

_WRONG = -1


def replay_compiled(cluster: Cluster, stream: Stream, rule: int, known: Typical, seed: int) -> Outcome:
    """Play a stream to its end; the cluster is left as it is then.

    Raises:
        AssertionError: A pod was placed where it does not fit, or refused although some node could host it.
    """
    trace = cluster.trace
    asked, rejected = _replay(
        rule,
        seed,
        stream.events,
        stream.kinds,
        stream.first_counted,
        trace.kinds,
        cluster.cpu_milli,
        cluster.memory_mib,
        cluster.cards,
        trace.gpus,
        known.level,
        known.card,
        known.idle,
    )
    if asked == _WRONG:
        raise AssertionError("a pod was placed where it does not fit, or refused although some node can host it")
    return Outcome(1 - int(cluster.cards.sum()) / trace.capacity_milli, int(asked), int(rejected))


def _can_host(kind: Ints, cpu_milli: int, memory_mib: int, cards: Ints) -> bool:
    enough = 0
    for card in range(len(cards)):
        enough += cards[card] >= kind[3]
    return bool(cpu_milli >= kind[0] and memory_mib >= kind[1] and enough >= kind[2])


def _at_random(scores: Floats) -> int:
    hosts = np.flatnonzero(scores > NEVER)
    return int(hosts[np.random.randint(len(hosts))])  # noqa: NPY002 - the generator that compiled code has


def _changed(log: Ints, count: int, seen: int, nodes: int) -> Ints:
    return np.arange(nodes) if seen < 0 or count - seen > nodes else np.unique(log[seen:count])


def _replay(  # noqa: C901, PLR0912, PLR0917 - one loop, since compiled code shares no objects
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
    level: Ints,
    card_use: Floats,
    idle_use: Floats,
) -> tuple[int, int]:
    np.random.seed(seed)  # noqa: NPY002 - as above
    nodes = len(cpu_milli)
    scores = np.full((len(kinds), nodes), NEVER)
    best_cards = np.zeros((len(kinds), nodes), dtype=np.int64)
    log, logged = np.zeros(len(events), dtype=np.int64), 0
    seen = np.full(len(kinds), -1)
    where, held = np.full(len(pods), -1), np.full((len(pods), MOST_GPUS), -1)
    asked, rejected = 0, 0
    for event in events:
        pod = event if event >= 0 else -1 - event
        kind = kinds[pods[pod]]
        sign, node = 1, where[pod]
        if event < 0:
            if node < 0:
                continue
            sign = -1
        else:
            changed = _changed(log, logged, seen[pods[pod]], nodes)
            seen[pods[pod]] = logged
            row, best_row = scores[pods[pod]], best_cards[pods[pod]]
            node = choose(
                rule, kind, changed, cpu_milli, memory_mib, cards, gpus, level, card_use, idle_use, row, best_row
            )
            counts = kind[2] * kind[3] if pod >= first_counted else 0
            asked += counts
            if node < 0:
                rejected += counts
                for other in range(nodes):
                    if _can_host(kind, cpu_milli[other], memory_mib[other], cards[other]):
                        return _WRONG, _WRONG
                continue
            if rule == RANDOM:
                node = _at_random(row)
            where[pod] = node
            if kind[2] == 1 and kind[3] < WHOLE:
                held[pod, 0] = best_row[node]
            else:
                taken = 0
                for card in range(gpus[node]):
                    if taken < kind[2] and cards[node, card] == WHOLE:
                        held[pod, taken] = card
                        taken += 1
        cpu_milli[node] -= sign * kind[0]
        memory_mib[node] -= sign * kind[1]
        for number in range(kind[2]):
            cards[node, held[pod, number]] -= sign * kind[3]
            if held[pod, number] < 0 or cards[node, held[pod, number]] < 0:
                return _WRONG, _WRONG
        if cpu_milli[node] < 0 or memory_mib[node] < 0:
            return _WRONG, _WRONG
        log[logged] = node
        logged += 1
    return asked, rejected


_can_host = njit(cache=True)(_can_host)
_at_random = njit(cache=True)(_at_random)
_changed = njit(cache=True)(_changed)
_replay = njit(cache=True)(_replay)
