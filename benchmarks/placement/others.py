"""The placers that ours is compared with, written after their papers; compiled, since a score is due for every node.

FGD: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX
ATC 2023. Its typical pods are the most popular up to 95 %, known beforehand, and its score is a whole number up to 100, so
that most decisions are ties; they go to the first node in one order. Best-fit, packing, random and first-fit as there.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from benchmarks.placement.cluster import WHOLE, Cluster
from benchmarks.placement.openb import MOST_GPUS, Ints, Trace
from numba import njit
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NEVER = -1e18
"""The score of a node that cannot host a pod."""

FGD, BEST_FIT, PACKING, FIRST_FIT, RANDOM = range(5)
RULES = {"FGD": FGD, "best-fit": BEST_FIT, "packing": PACKING, "first-fit": FIRST_FIT, "random": RANDOM}
TYPICAL_SHARE = 0.95
MOST_CPU_MILLI = 128_000.0


@dataclass(frozen=True, slots=True)
class Typical:
    """What FGD knows of the mix: by how much CPU is left, the share of pods that can use a card or idle cards."""

    level: Ints
    """By free CPU in thousandths: how many amounts that pods ask for it covers."""

    card: Floats
    """By model, level and free milli."""

    idle: Floats
    """By model, level and number of idle cards."""


def typical(trace: Trace) -> Typical:
    """Take the most popular kinds of pod by CPU, milli, GPUs and models, up to 95 % of them."""
    kinds = trace.kinds[:, [0, 3, 2, 4]].tolist()
    counts = Counter(tuple(kinds[kind]) for kind in trace.pods)
    chosen: dict[tuple[int, ...], int] = {}
    for kind, count in counts.most_common():
        chosen[kind] = count
        if sum(chosen.values()) >= TYPICAL_SHARE * len(trace.pods):
            break
    amounts = sorted({cpu_milli for cpu_milli, *_ in chosen})
    level = np.searchsorted(amounts, np.arange(int(trace.cpu_milli.max()) + 1), side="right").astype(np.int64)
    models = np.arange(trace.model.max() + 1)
    card = np.zeros((len(models), len(amounts) + 1, WHOLE + 1))
    idle = np.zeros((len(models), len(amounts) + 1, MOST_GPUS + 1))
    for (cpu_milli, milli, gpus, mask), count in chosen.items():
        first = amounts.index(cpu_milli) + 1
        accepted = (mask >> models & 1).astype(bool)
        if gpus == 1:
            card[accepted, first:, milli:] += count / sum(chosen.values())
        elif gpus:
            idle[accepted, first:, gpus:] += count / sum(chosen.values())
    return Typical(level, card, idle)


def _fitting_card(cards: Ints, gpus: int, milli: int) -> int:
    """Return the fullest card that a share fits on, 0 if the pod needs none or whole ones, −1 if it does not fit."""
    best, least, enough = -1, WHOLE + 1, 0
    for card in range(len(cards)):
        if cards[card] >= milli:
            enough += 1
            if cards[card] < least:
                best, least = card, cards[card]
    if gpus == 1 and milli < WHOLE:
        return best
    return 0 if gpus == 0 or enough >= gpus else -1


def _useful(cards: Ints, level: int, card_use: Floats, idle_use: Floats) -> float:
    """Return what typical pods can use of a node, in milli: all of it less FGD's fragmentation."""
    useful, idle = 0.0, 0
    for card in range(len(cards)):
        useful += cards[card] * card_use[level, cards[card]]
        idle += cards[card] == WHOLE
    return float(useful + WHOLE * idle * idle_use[level, idle])


def _fgd(  # noqa: PLR0917 - compiled functions take no keywords
    cpu_milli: int, cards: Ints, kind: Ints, best: int, level: Ints, card_use: Floats, idle_use: Floats
) -> tuple[float, int]:
    """Score as FGD does, in whole steps; of the cards, the one with the least new fragmentation."""
    gpus, milli = kind[2], kind[3]
    before = _useful(cards, level[cpu_milli], card_use, idle_use)
    after_level = level[cpu_milli - kind[0]]
    left = cards.copy()
    gained, chosen = -1e18, best
    if gpus == 1 and milli < WHOLE:
        for card in range(len(cards)):
            if cards[card] >= milli:
                left[card] -= milli
                found = _useful(left, after_level, card_use, idle_use) - before + milli
                left[card] += milli
                if found > gained + 1e-9:
                    gained, chosen = found, card
    else:
        to_take = gpus
        for card in range(len(cards)):
            if to_take > 0 and left[card] == WHOLE:
                left[card] = 0
                to_take -= 1
        gained = _useful(left, after_level, card_use, idle_use) - before + gpus * milli
    return math.floor(100.0 / (1.0 + math.exp(-gained / 1000.0))), chosen


def _packing(cards: Ints, gpu_count: int, kind: Ints, best: int) -> float:
    """Prefer cards in use, then nodes in use, then those with least left."""
    idle, free = 0, 0
    for card in range(len(cards)):
        idle += cards[card] == WHOLE
        free += cards[card]
    if kind[2] == 1 and kind[3] < WHOLE and cards[best] < WHOLE:
        return 2e6 - free
    return (1e6 if idle < gpu_count else 0.0) - free


def _score(  # noqa: PLR0917 - likewise
    rule: int,
    cpu_milli: int,
    cards: Ints,
    gpu_count: int,
    kind: Ints,
    level: Ints,
    card_use: Floats,
    idle_use: Floats,
) -> tuple[float, int]:
    best = _fitting_card(cards, kind[2], kind[3])
    if best < 0:
        return NEVER, -1
    if rule == FGD:
        return _fgd(cpu_milli, cards, kind, best, level, card_use, idle_use)
    if rule == BEST_FIT:
        left = 0
        for card in range(len(cards)):
            left += cards[card]
        return -((cpu_milli - kind[0]) / MOST_CPU_MILLI + (left - kind[2] * kind[3]) / (WHOLE * MOST_GPUS)), best
    if rule == PACKING:
        return _packing(cards, gpu_count, kind, best), best
    return 0.0, best


def choose(  # noqa: PLR0917 - likewise
    rule: int,
    kind: Ints,
    changed: Ints,
    cpu_milli: Ints,
    memory_mib: Ints,
    cards: Ints,
    gpus: Ints,
    model: Ints,
    level: Ints,
    card_use: Floats,
    idle_use: Floats,
    scores: Floats,
    chosen: Ints,
) -> int:
    """Score the nodes that changed again and return the first best one; −1 if none can host the pod."""
    for index in range(len(changed)):
        node = changed[index]
        is_accepted = kind[2] == 0 or (kind[4] >> model[node]) & 1
        if cpu_milli[node] < kind[0] or memory_mib[node] < kind[1] or not is_accepted:
            scores[node] = NEVER
        else:
            scores[node], chosen[node] = _score(
                rule,
                cpu_milli[node],
                cards[node],
                gpus[node],
                kind,
                level,
                card_use[model[node]],
                idle_use[model[node]],
            )
    best = -1
    for node in range(len(scores)):
        if scores[node] > NEVER and (best < 0 or scores[node] > scores[best] + 1e-12):
            best = node
    return best


_fitting_card = njit(cache=True)(_fitting_card)
_useful = njit(cache=True)(_useful)
_fgd = njit(cache=True)(_fgd)
_packing = njit(cache=True)(_packing)
_score = njit(cache=True)(_score)
choose = njit(cache=True)(choose)


class Other:
    """One of these rules behind the replay's words."""

    def __init__(self, cluster: Cluster, rule: int, known: Typical, seed: int) -> None:
        self._cluster = cluster
        self._rule = rule
        self._known = known
        self._dice = np.random.default_rng(seed)
        count, kinds = len(cluster.trace.gpus), len(cluster.trace.kinds)
        self._scores = np.full((kinds, count), NEVER)
        self._cards = np.zeros((kinds, count), dtype=np.int64)
        self._changes = list(range(count))
        self._seen = [0] * kinds

    def choose(self, kind: int) -> tuple[int, list[int]] | None:
        """Return node and GPUs, or None if no node can host the pod."""
        changed = np.array(sorted(set(self._changes[self._seen[kind] :])), dtype=np.int64)
        self._seen[kind] = len(self._changes)
        cluster, known, row = self._cluster, self._known, self._cluster.trace.kinds[kind]
        node = choose(
            self._rule,
            row,
            changed,
            cluster.cpu_milli,
            cluster.memory_mib,
            cluster.cards,
            cluster.trace.gpus,
            cluster.trace.model,
            known.level,
            known.card,
            known.idle,
            self._scores[kind],
            self._cards[kind],
        )
        if node < 0:
            return None
        if self._rule == RANDOM:
            node = self._dice.choice(np.flatnonzero(self._scores[kind] > NEVER))
        return int(node), self._cards_of(int(node), kind, row)

    def changed(self, node: int) -> None:
        """Learn that a node is no longer what it was."""
        self._changes.append(node)

    def _cards_of(self, node: int, kind: int, row: Ints) -> list[int]:
        if not row[2]:
            return []
        if row[2] == 1 and row[3] < WHOLE:
            return [int(self._cards[kind, node])]
        whole: list[int] = np.flatnonzero(self._cluster.cards[node] == WHOLE)[: row[2]].tolist()
        return whole
