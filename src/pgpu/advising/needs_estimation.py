"""Estimate of a job's resource needs from its profile: from counters where there are any, else from its contests with antagonists.

The needs chosen are those with which `contention` best reproduces what the job and the antagonists lost.

What the profile does not contain is listed. For multiprocessors, memory bandwidth and L2 cache full use is assumed then: these
are lost most often, and a gain that depends on not knowing them is no gain. Arithmetic and L1 cache are assumed to be used no
more than the multiprocessors, since their shortage is already counted.

An estimate takes tenths of a second, so it is cached in the process, and the engine stores it as text. The source files of the
formulas are part of the key, so other versions of the formulas never share an entry.

Source: Bubble-Up (MICRO 2011): what a program loses beside known pressure, and what its pressure costs a known program.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path

from pgpu.advising.contention import PIPES, Needs
from pgpu.advising.needs_fit import TYPICAL_RATE, ObservedContest, antagonist_needs, fit_error, refine_needs
from pgpu.digests import sha256
from pgpu.model import Antagonist, Contest, Evidence, Profile, Resource
from pgpu.structs import Struct, replace, to_builtins

# Prefix of the keys of stored estimates.
PREFIX = "profile-read/"

# Larger slowdowns in a profile are cut to this.
MOST_SLOWDOWN = 1000.0

# Needs of memory and of the cache depend on each other: number of iterations between them.
_ROUNDS = 2

# A job that needs this much of a resource is assumed to be limited by it.
_BOUND = 0.9

# A job that is this much slower with a smaller L1 cache depends on it.
_NOTICEABLE = 0.02

_FOOTPRINTS = (0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.3, 2.0)
_LOST = (0.0, 0.3, 0.8, 1.5, 3.0, 7.0)

# Coarse grid, refined around the best point.
_GRAINS = (1.0, 2.0, 4.0, 8.0)

# Fine grid around the best point of the coarse one: added to the footprint, times the lost memory, times the grain.
_FINE_GRID = ((-0.1, -0.06, -0.03, 0.0, 0.03, 0.06, 0.1), (0.75, 0.9, 1.0, 1.12, 1.3), (0.7, 1.0, 1.4))

MULTIPROCESSORS, ARITHMETIC, MEMORY_BANDWIDTH = "multiprocessors", "arithmetic", "memory bandwidth"

# Names of resources that may be unknown.
L1_CACHE, L2_CACHE = "L1 cache", "L2 cache"


class NeedsEstimate(Struct, frozen=True):
    """Needs of one job, and what the estimate is based on."""

    busy: float
    """0 to 1: the fraction of its time in which a kernel runs."""

    needs: Needs
    evidence: tuple[Evidence, ...]
    """Sources of the measurements, the most trustworthy last."""

    unknown: tuple[str, ...]
    """Names of resources of unknown use."""


_MOST_CACHED = 512

# Cache of this process, the oldest first.
_cache: dict[Profile, NeedsEstimate] = {}

_lock = threading.Lock()


def is_cached(profile: Profile) -> bool:
    """Whether `estimate_needs` returns at once."""
    return profile in _cache


def cache_estimate(profile: Profile, estimate: NeedsEstimate) -> None:
    with _lock:
        while len(_cache) >= _MOST_CACHED:  # The oldest first: a dict keeps the order of insertion.
            del _cache[next(iter(_cache))]
        _cache[profile] = estimate


def estimate_needs(profile: Profile) -> NeedsEstimate:
    """Estimate the needs of a job; takes tenths of a second the first time if there are contests."""
    # Without the lock: two threads may compute the same estimate at once, which is the same for both.
    found = _cache.get(profile)
    if found is None:
        found = _estimate(profile)
        cache_estimate(profile, found)
    return found


def _estimate(profile: Profile) -> NeedsEstimate:
    # Of several measurements of one resource the most trustworthy, which is the last, counts.
    order = list(Evidence)
    demands = sorted(profile.demands, key=lambda demand: order.index(demand.evidence))
    fractions = {demand.resource: _clamp(demand.fraction) for demand in demands}
    footprint, dram = _footprint(profile), fractions.get(Resource.DRAM)
    l1 = min(MOST_SLOWDOWN, max(0.0, profile.sensitivity.cache or 0.0))
    measured = _valid_contests(profile)
    l2_rate = _l2_rate(measured)
    contests = [ObservedContest(each, antagonist_needs(each, l2_rate)) for each in measured]
    kinds = {each.contest.antagonist for each in contests}

    # First each figure from its own contests, then all of them together.
    pipes: dict[Resource, float] = {
        pipe: fractions[pipe] for pipe in PIPES if pipe in fractions and pipe is not Resource.PCIE
    }
    needs = Needs(sm=fractions.get(Resource.SM, 1.0), spread=_occupied_share(profile), pipes=pipes, l1=l1)
    room = _contests_with(contests, Antagonist.ROOM)
    if room:  # a job that loses nothing with half of the room has more threads than it needs
        needs = _best(_with_own(needs), room)
    needs = _with_pipe(needs, contests, Resource.FP32, Antagonist.COMPUTE)
    needs = _with_pipe(needs, contests, Resource.L2, Antagonist.L2_BANDWIDTH)
    needs = _with_memory(needs, contests, dram, l2_rate)
    # Without such a contest: a job limited by something else may have more threads than it needs.
    is_limited = max(needs.memory, *needs.pipes.values(), 0.0) >= _BOUND
    compute = _contests_with(contests, Antagonist.COMPUTE)
    if is_limited and not room and compute:
        needs = _best(_with_own(needs), compute)
    for _ in range(_ROUNDS):
        needs = _with_cache(needs, contests, footprint, l2_rate)
        needs = _with_memory(needs, contests, dram, l2_rate)
    if dram is None:
        fixed = {"fp32": Resource.FP32 in fractions, "l2": Resource.L2 in fractions, "footprint": footprint is not None}
        known = frozenset(name for name, is_measured in fixed.items() if is_measured)
        needs = refine_needs(needs, contests, l2_rate, known, lives_in_l1=l1 > _NOTICEABLE)
    is_known = _is_known(profile, fractions, kinds)
    return NeedsEstimate(
        busy=_clamp(profile.busy_fraction),
        needs=_with_unknown(needs, is_known, kinds, footprint),
        evidence=_evidence(profile),
        unknown=tuple(words for words, is_measured in is_known.items() if not is_measured),
    )


def _is_known(profile: Profile, fractions: Mapping[Resource, float], kinds: set[Antagonist]) -> dict[str, bool]:
    return {
        MULTIPROCESSORS: Resource.SM in fractions,
        ARITHMETIC: Antagonist.COMPUTE in kinds
        or bool({Resource.FP32, Resource.TENSOR, Resource.FP64} & fractions.keys()),
        MEMORY_BANDWIDTH: Antagonist.DRAM in kinds or Resource.DRAM in fractions,
        L1_CACHE: profile.sensitivity.cache is not None,
        L2_CACHE: Antagonist.L2 in kinds or profile.footprint_bytes is not None,
    }


def _with_unknown(needs: Needs, is_known: Mapping[str, bool], kinds: set[Antagonist], footprint: float | None) -> Needs:
    """Assume full use of memory bandwidth if it is unknown, and of the L2 cache if no antagonist exhausted it."""
    if not is_known[MEMORY_BANDWIDTH]:
        needs = replace(needs, memory=1.0, lost_memory=max(1.0, needs.lost_memory))
    if Antagonist.L2 in kinds:
        return needs
    assumed = 1.0 if footprint is None else footprint
    lost = max(1.0, needs.lost_memory) if assumed else needs.lost_memory
    return replace(needs, footprint=assumed, lost_memory=lost)


def _l2_rate(contests: Sequence[Contest]) -> float | None:
    """Return the bandwidth of the L2 cache relative to that of memory."""
    rates = [each.antagonist_rate for each in contests if each.antagonist is Antagonist.L2_BANDWIDTH]
    return next((rate for rate in rates if rate), None)


def _contests_with(contests: Sequence[ObservedContest], antagonist: Antagonist) -> list[ObservedContest]:
    return [each for each in contests if each.contest.antagonist is antagonist]


def _with_pipe(needs: Needs, contests: Sequence[ObservedContest], pipe: Resource, antagonist: Antagonist) -> Needs:
    """Find the need of a pipe, in hundredths, unless it is known from a counter."""
    against = _contests_with(contests, antagonist)
    if not against or pipe in needs.pipes:
        return needs
    return _best([replace(needs, pipes={**needs.pipes, pipe: step / 100}) for step in range(101)], against)


def _with_memory(needs: Needs, contests: Sequence[ObservedContest], dram: float | None, l2_rate: float | None) -> Needs:
    """Find the need of memory with the L2 cache, given the estimate of its cache use, since streams use the cache too."""
    against = _contests_with(contests, Antagonist.DRAM)
    if dram is not None:
        return _with_memory_time(needs, dram, l2_rate)
    if not against:
        return needs
    return _best([_with_memory_time(needs, step / 50, l2_rate) for step in range(51)], against)


def _with_memory_time(needs: Needs, memory: float, l2_rate: float | None) -> Needs:
    saved = needs.lost_memory - needs.memory
    reads = needs.pipes.get(Resource.L2)
    lost = memory + saved if reads is None or not l2_rate or not needs.footprint else max(memory, reads * l2_rate)
    return replace(needs, memory=memory, lost_memory=lost, stream=memory / l2_rate if l2_rate else 0.0)


def _with_own(needs: Needs) -> list[Needs]:
    return [replace(needs, own=step / 20) for step in range(20, 0, -1)]


def _with_cache(
    needs: Needs, contests: Sequence[ObservedContest], footprint: float | None, l2_rate: float | None
) -> Needs:
    """Find its footprint in the L2 cache, how often it returns to it, and the memory traffic that this saves.

    If the bandwidths of job and cache are known, so is the last: all of its reads would go to memory.
    """
    against = _contests_with(contests, Antagonist.L2)
    if not against:
        return needs if footprint is None else replace(needs, footprint=footprint)
    reads = needs.pipes.get(Resource.L2)
    saved = None if reads is None or not l2_rate else max(0.0, reads * l2_rate - needs.memory)

    def with_cache_use(size: float, lost: float, grain: float) -> Needs:
        return replace(needs, footprint=size, lost_memory=needs.memory + lost, grain=grain)

    sizes = _FOOTPRINTS if footprint is None else (footprint,)
    lost = _LOST if saved is None else (saved,)
    grid = product(sizes, lost, _GRAINS if saved is not None else (1.0,))
    coarse = _best([with_cache_use(*tried) for tried in grid], against)
    steps, factors, ratios = _FINE_GRID
    fine = product(
        [max(0.0, coarse.footprint + step) for step in steps] if footprint is None else sizes,
        [(coarse.lost_memory - needs.memory) * factor for factor in factors] if saved is None else lost,
        [max(1.0, coarse.grain * ratio) for ratio in ratios] if saved is not None else (1.0,),
    )
    return _best([coarse, *(with_cache_use(*tried) for tried in fine)], against)


def _best(tried: Sequence[Needs], contests: Sequence[ObservedContest]) -> Needs:
    """Return the needs of least error; the first of equal ones."""
    return min(tried, key=lambda needs: fit_error(needs, contests))


def _valid_contests(profile: Profile) -> list[Contest]:
    """Return the contests within valid ranges; for sensitivities without a contest, one that stands for it."""
    found = [_within_range(each, profile.gpu_l2_bytes) for each in profile.contests]
    kinds = {each.antagonist for each in found}
    kept = {Antagonist.L2: profile.sensitivity.l2, Antagonist.DRAM: profile.sensitivity.dram}
    for antagonist, lost in kept.items():
        if lost is not None and antagonist not in kinds:
            part = 1.0 if antagonist is Antagonist.L2 else TYPICAL_RATE
            found.append(_within_range(Contest(antagonist, 0, 0.1, 1 + lost, 1.0, part), None))
    return found


def _within_range(contest: Contest, l2_bytes: int | None) -> Contest:
    part = contest.antagonist_fraction
    if part is None and contest.antagonist is Antagonist.L2 and l2_bytes:
        part = contest.swept_bytes / l2_bytes
    return replace(
        contest,
        sm_fraction=_clamp(contest.sm_fraction),
        slowdown=min(MOST_SLOWDOWN, max(1.0, contest.slowdown)),
        antagonist_slowdown=min(MOST_SLOWDOWN, max(1.0, contest.antagonist_slowdown)),
        antagonist_fraction=None if part is None else _clamp(part),
    )


def _footprint(profile: Profile) -> float | None:
    if profile.footprint_bytes is None or not profile.gpu_l2_bytes:
        return None
    return min(2.0, max(0.0, profile.footprint_bytes / profile.gpu_l2_bytes))


def _occupied_share(profile: Profile) -> float:
    """Return the share of the multiprocessors that have blocks, weighted by time; 1 if unknown."""
    total_ns = sum(kernel.total_ns for kernel in profile.kernels)
    if not profile.gpu_sm_count or total_ns <= 0:
        return 1.0
    parts = [
        min(1.0, kernel.grid[0] * kernel.grid[1] * kernel.grid[2] / profile.gpu_sm_count) * kernel.total_ns
        for kernel in profile.kernels
    ]
    return _clamp(sum(parts) / total_ns)


def _evidence(profile: Profile) -> tuple[Evidence, ...]:
    found = {demand.evidence for demand in profile.demands}
    sensitivity = profile.sensitivity
    if profile.contests or any(value is not None for value in (sensitivity.cache, sensitivity.l2, sensitivity.dram)):
        found.add(sensitivity.evidence)
    if profile.kernels:
        found.add(Evidence.LAUNCHES)
    return tuple(each for each in Evidence if each in found)


def _clamp(value: float) -> float:
    return min(1.0, max(0.0, value))


def name_of(profile: Profile) -> str:
    """Return the rest of the key under which a profile's estimate is stored."""
    return sha256(f"{_hash_formulas()} {profile!r}".encode(errors="surrogateescape")).hexdigest()[:32]


# Part of each key: an estimate that other formulas made is never used, and expires. Read once per process.
@cache
def _hash_formulas() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def text_of(reading: NeedsEstimate) -> str:
    """Serialise an estimate as JSON."""
    return json.dumps(to_builtins(reading))


def estimate_of(text: str) -> NeedsEstimate | None:
    """Parse the text of `text_of`; None if it is invalid."""
    try:
        fields = json.loads(text)
        needs = fields["needs"]
        pipes = {Resource(name): float(value) for name, value in needs["pipes"].items()}
        evidence = tuple(Evidence(each) for each in fields["evidence"])
        return NeedsEstimate(fields["busy"], Needs(**{**needs, "pipes": pipes}), evidence, tuple(fields["unknown"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
