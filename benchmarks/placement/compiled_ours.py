"""pgpu's rating compiled, with the tables of pgpu's own `Outlook`: what `placement.rate` computes, for openb's pods.

For streams with departures, which take the placer itself a minute each. It is a copy, so it is compared, decision by
decision: by a test on a short stream, and by `python -m benchmarks.placement.same` on openb's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.placement.cluster import WHOLE, Cluster
from benchmarks.placement.openb import Ints
from benchmarks.placement.others import Floats
from numba import njit

from pgpu.scheduling.cluster_resources import GpuType
from pgpu.scheduling.outlook import Outlook
from pgpu.units import MIB


@dataclass(frozen=True, slots=True)
class Tables:
    """What an outlook knows, as arrays."""

    level: Ints
    """By model and free CPU in thousandths: which row of `worth`."""

    worth: Floats
    """By model, level and free milli."""

    wide: Ints
    """By model, a row for each kind on several GPUs: GPUs, CPU (milli), memory (MiB)."""

    wide_weight: Floats
    """By model and kind; 0 past its last kind."""


def tables(outlook: Outlook, models: Sequence[str], cluster: Cluster) -> Tables:
    """Read an outlook."""
    worths = [outlook.worth(GpuType(WHOLE, 0, model)) for model in models]
    most_level = max(len(each.by_cpu) for each in worths)
    most_wide = max(len(each.wide) for each in worths)
    found = Tables(
        np.zeros((len(models), int(cluster.trace.cpu_milli.max()) + 1), np.int64),
        np.zeros((len(models), most_level, WHOLE + 1)),
        np.zeros((len(models), most_wide, 3), np.int64),
        np.zeros((len(models), most_wide)),
    )
    for model, each in enumerate(worths):
        found.level[model] = np.searchsorted(each.thresholds_milli, np.arange(found.level.shape[1]), side="right")
        for level, row in enumerate(each.by_cpu):
            found.worth[model, level] = [row[each.cell(milli, 0)] for milli in range(WHOLE + 1)]
        for place, (shape, weight) in enumerate(each.wide):
            found.wide[model, place] = shape.gpu_count, shape.cpu_milli, shape.host_memory_bytes // MIB
            found.wide_weight[model, place] = weight
    return found


def _idle_worth(idle: int, cpu_milli: int, memory_mib: int, wide: Ints, wide_weight: Floats) -> float:
    weight = 0.0
    for kind in range(len(wide_weight)):
        if wide[kind, 0] <= idle and wide[kind, 1] <= cpu_milli and wide[kind, 2] <= memory_mib:
            weight += wide_weight[kind]
    return idle * weight


def _worth_one(  # noqa: PLR0917 - compiled functions take no keywords
    milli: int, share: float, cpu_milli: int, node_share: float, level: Ints, worth: Floats
) -> float:
    part = 2.0 * share
    if part < node_share:
        return float(worth[level[int(cpu_milli * part / node_share)], milli])
    return float(worth[level[cpu_milli], milli])


def _share(cards: Ints) -> float:
    share = 0.0
    for card in range(len(cards)):
        alike = _alike(cards, card)
        if alike:
            share += cards[card] / WHOLE * alike
    return share


def _alike(cards: Ints, card: int) -> int:
    """Return how many cards are like this one if it is the first of them; 0 if it is not, or nothing of it is free."""
    if cards[card] == 0:
        return 0
    alike = 0
    for other in range(len(cards)):
        if cards[other] == cards[card]:
            if other < card:
                return 0
            alike += 1
    return alike


def _worth(cards: Ints, cpu_milli: int, node_share: float, level: Ints, worth: Floats) -> float:
    found = 0.0
    for card in range(len(cards)):
        alike = _alike(cards, card)
        if alike:
            found += alike * _worth_one(cards[card], cards[card] / WHOLE, cpu_milli, node_share, level, worth)
    return found


def rate(  # noqa: PLR0917 - compiled functions take no keywords
    cpu_milli: int,
    memory_mib: int,
    cards: Ints,
    kind: Ints,
    level: Ints,
    worth: Floats,
    wide: Ints,
    wide_weight: Floats,
) -> tuple[float, float, float, int]:
    """Return what is lost, what stays free of the node and of the GPUs, and the first GPU, for a pod that fits."""
    places, cards = cards, np.sort(cards)
    share, idle = _share(cards), 0
    for card in range(len(cards)):
        idle += cards[card] == WHOLE
    before = _worth(cards, cpu_milli, share, level, worth) + _idle_worth(idle, cpu_milli, memory_mib, wide, wide_weight)
    cpu_left, memory_left, milli = cpu_milli - kind[0], memory_mib - kind[1], kind[3]
    if kind[2] == 0:
        kept = _worth(cards, cpu_left, share, level, worth)
        kept += _idle_worth(idle, cpu_left, memory_left, wide, wide_weight)
        return np.rint((before - kept) * 1e9), share, 0.0, 0
    taken = milli / WHOLE
    if kind[2] > 1:
        left = share - taken * kind[2]
        kept = _worth(cards, cpu_left, left, level, worth)
        kept += _idle_worth(idle - kind[2], cpu_left, memory_left, wide, wide_weight)
        kept -= kind[2] * _worth_one(WHOLE, 1.0, cpu_left, left, level, worth)
        return np.rint((before - kept) * 1e9), left, 0.0, 0
    left = share - taken
    of_all = _worth(cards, cpu_left, left, level, worth)
    best_lost, best_left, best = math.inf, math.inf, -1
    for card in range(len(cards)):
        if cards[card] < milli or not _alike(cards, card):
            continue
        of_it = cards[card] / WHOLE
        gained = _worth_one(cards[card] - milli, of_it - taken, cpu_left, left, level, worth) - _worth_one(
            cards[card], of_it, cpu_left, left, level, worth
        )
        kept = of_all + gained
        if idle:
            kept += _idle_worth(idle - (cards[card] == WHOLE), cpu_left, memory_left, wide, wide_weight)
        lost = np.rint((before - kept) * 1e9)
        if lost < best_lost or (lost == best_lost and of_it - taken < best_left):
            best_lost, best_left, best = lost, of_it - taken, _first(places, cards[card])
    return best_lost, left, best_left, best


def _first(cards: Ints, milli: int) -> int:
    for card in range(len(cards)):
        if cards[card] == milli:
            return card
    return -1


_alike = njit(cache=True)(_alike)
_first = njit(cache=True)(_first)
_idle_worth = njit(cache=True)(_idle_worth)
_worth_one = njit(cache=True)(_worth_one)
_share = njit(cache=True)(_share)
_worth = njit(cache=True)(_worth)
rate = njit(cache=True)(rate)


def choose_ours(  # noqa: PLR0917 - compiled functions take no keywords
    kind: Ints,
    changed: Ints,
    cpu_milli: Ints,
    memory_mib: Ints,
    cards: Ints,
    models: Ints,
    known: tuple[Ints, Floats, Ints, Floats],
    ratings: Floats,
    chosen: Ints,
) -> int:
    """Rate the nodes that changed again and return the first best one; −1 if none can host the pod."""
    level, worth, wide, wide_weight = known
    for index in range(len(changed)):
        node = changed[index]
        enough = 0
        for card in range(cards.shape[1]):
            enough += cards[node, card] >= kind[3]
        model = models[node]
        has_gpus = kind[2] == 0 or (enough >= kind[2] and (kind[4] >> model) & 1)
        if cpu_milli[node] < kind[0] or memory_mib[node] < kind[1] or not has_gpus:
            ratings[node, 0] = math.inf
        else:
            ratings[node, 0], ratings[node, 1], ratings[node, 2], chosen[node] = rate(
                cpu_milli[node],
                memory_mib[node],
                cards[node],
                kind,
                level[model],
                worth[model],
                wide[model],
                wide_weight[model],
            )
    best = -1
    for node in range(len(ratings)):
        if ratings[node, 0] < math.inf and (best < 0 or _is_less(ratings[node], ratings[best])):
            best = node
    return best


def _is_less(one: Floats, other: Floats) -> bool:
    for figure in range(3):
        if one[figure] != other[figure]:
            return bool(one[figure] < other[figure])
    return False


_is_less = njit(cache=True)(_is_less)
choose_ours = njit(cache=True)(choose_ours)
