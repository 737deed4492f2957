"""A job's needs, read from its profile: what counters told as it is, the rest from what antagonists beside it did.

Whatever the contests were, that is taken for true which explains them best: the figures with which `contention` gives back
what the job and the antagonists lost.

What nothing told is named. Of the multiprocessors, of memory bandwidth and of the L2 cache all is taken to be needed then:
they are what jobs lose to each other most often, and a gain that rests on not knowing them is none. Arithmetic and L1 cache
are taken to be needed no more than the multiprocessors are: whoever fills its room pays for it already.

Source: Bubble-Up (MICRO 2011): what a program loses beside known pressure, and what its pressure costs a known program.
"""

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path

from pgpu.advising.contention import PIPES, Needs
from pgpu.advising.needs_fit import TYPICAL_RATE, ObservedContest, antagonist_needs, fit_error, refine_needs
from pgpu.model import Antagonist, Contest, Evidence, Profile, Resource

MOST_SLOWDOWN = 1000.0
"""A file that says more is believed so far."""

_ROUNDS = 2
"""Memory and cache are told from each other's contests: so often one follows from the other."""

_BOUND = 0.9
"""A job that needs so much of one thing is taken to be held up by it."""

_NOTICEABLE = 0.02
"""Who takes longer by so much with a smaller L1 cache lives in it."""

_FOOTPRINTS = (0.0, 0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 1.0, 1.3, 2.0)
_LOST = (0.0, 0.3, 0.8, 1.5, 3.0, 7.0)
_GRAINS = (1.0, 2.0, 4.0, 8.0)
"""Tried first, to be refined around the best."""

_NEARER = ((-0.1, -0.06, -0.03, 0.0, 0.03, 0.06, 0.1), (0.75, 0.9, 1.0, 1.12, 1.3), (0.7, 1.0, 1.4))
"""Steps around it: added to the footprint, times what is lost, times the grain."""

MULTIPROCESSORS, ARITHMETIC, MEMORY_BANDWIDTH = "multiprocessors", "arithmetic", "memory bandwidth"
L1_CACHE, L2_CACHE = "L1 cache", "L2 cache"
"""What a profile may not tell, in words."""


@dataclass(frozen=True, slots=True)
class NeedsEstimate:
    """What a profile tells."""

    busy: float
    """0 to 1: the fraction of its time in which a kernel runs."""

    needs: Needs
    evidence: tuple[Evidence, ...]
    """What all this was measured with, the most trustworthy last."""

    unknown: tuple[str, ...]
    """What nothing told, in words."""


_MOST_READ = 512
_read: dict[Profile, NeedsEstimate] = {}
"""What was read in this process, the oldest first."""

_lock = threading.Lock()


def is_cached(profile: Profile) -> bool:
    """Whether `read` answers at once."""
    return profile in _read


def cache_estimate(profile: Profile, reading: NeedsEstimate) -> None:
    """Have `read` answer so."""
    with _lock:
        while len(_read) >= _MOST_READ:
            del _read[next(iter(_read))]
        _read[profile] = reading


def estimate_needs(profile: Profile) -> NeedsEstimate:
    """Read a profile, which takes tenths of a second the first time where antagonists tell of it."""
    found = _read.get(profile)
    if found is None:
        found = _newly_read(profile)
        cache_estimate(profile, found)
    return found


def _newly_read(profile: Profile) -> NeedsEstimate:
    told = _told(profile)
    contests = _met(profile)
    kinds = {each.contest.antagonist for each in contests}
    pipes: dict[Resource, float] = {pipe: told[pipe] for pipe in PIPES if pipe in told and pipe is not Resource.PCIE}
    needs = Needs(sm=told.get(Resource.SM, 1.0), spread=_spread(profile), pipes=pipes, l1=_l1(profile))
    needs = _with_own(needs, contests)
    needs = _with_pipe(needs, contests, Resource.FP32, Antagonist.COMPUTE)
    needs = _with_pipe(needs, contests, Resource.L2, Antagonist.L2_BANDWIDTH)
    l2_rate = _l2_rate(_contests(profile))
    needs = _with_memory(needs, contests, told.get(Resource.DRAM), l2_rate)
    needs = _with_spare_threads(needs, contests)
    for _ in range(_ROUNDS):
        needs = _with_cache(needs, contests, _footprint(profile), l2_rate)
        needs = _with_memory(needs, contests, told.get(Resource.DRAM), l2_rate)
    if Resource.DRAM not in told:
        needs = refine_needs(
            needs, contests, l2_rate, _told_figures(profile, told), lives_in_l1=_l1(profile) > _NOTICEABLE
        )
    is_known = {
        MULTIPROCESSORS: Resource.SM in told,
        ARITHMETIC: Antagonist.COMPUTE in kinds or bool({Resource.FP32, Resource.TENSOR, Resource.FP64} & told.keys()),
        MEMORY_BANDWIDTH: Antagonist.DRAM in kinds or Resource.DRAM in told,
        L1_CACHE: profile.sensitivity.cache is not None,
        L2_CACHE: Antagonist.L2 in kinds or profile.footprint_bytes is not None,
    }
    if not is_known[MEMORY_BANDWIDTH]:
        needs = replace(needs, memory=1.0, lost_memory=max(1.0, needs.lost_memory))
    if Antagonist.L2 not in kinds:
        needs = _with_feared_cache(needs, _footprint(profile))
    return NeedsEstimate(
        busy=_clamped(profile.busy_fraction),
        needs=needs,
        evidence=_evidence(profile),
        unknown=tuple(words for words, is_told in is_known.items() if not is_told),
    )


def _told_figures(profile: Profile, told: Mapping[Resource, float]) -> frozenset[str]:
    named = {"fp32": Resource.FP32 in told, "l2": Resource.L2 in told, "footprint": _footprint(profile) is not None}
    return frozenset(name for name, is_told in named.items() if is_told)


def _with_feared_cache(needs: Needs, footprint: float | None) -> Needs:
    """Of a job that nothing took the cache from: it needs all of it, unless its footprint is known, and lives on what it has there."""
    feared = 1.0 if footprint is None else footprint
    lost = max(1.0, needs.lost_memory) if feared else needs.lost_memory
    return replace(needs, footprint=feared, lost_memory=lost)


def _met(profile: Profile) -> list[ObservedContest]:
    contests = _contests(profile)
    return [ObservedContest(each, antagonist_needs(each, _l2_rate(contests))) for each in contests]


def _l2_rate(contests: Sequence[Contest]) -> float | None:
    """Return what the L2 cache gives in a second, of what the memory does."""
    rates = [each.antagonist_rate for each in contests if each.antagonist is Antagonist.L2_BANDWIDTH]
    return next((rate for rate in rates if rate), None)


def _beside(contests: Sequence[ObservedContest], antagonist: Antagonist) -> list[ObservedContest]:
    return [each for each in contests if each.contest.antagonist is antagonist]


def _with_pipe(needs: Needs, contests: Sequence[ObservedContest], pipe: Resource, antagonist: Antagonist) -> Needs:
    """Find what the job needs of a pipe, in hundredths, unless a counter told it."""
    against = _beside(contests, antagonist)
    if not against or pipe in needs.pipes:
        return needs
    return _best([replace(needs, pipes={**needs.pipes, pipe: step / 100}) for step in range(101)], against)


def _with_memory(needs: Needs, contests: Sequence[ObservedContest], told: float | None, l2_rate: float | None) -> Needs:
    """Find what the memory must do for it while it has the cache, given what is thought of the cache: streams take of that, too."""
    against = _beside(contests, Antagonist.DRAM)
    if told is not None:
        return _needing(needs, told, l2_rate)
    if not against:
        return needs
    return _best([_needing(needs, step / 50, l2_rate) for step in range(51)], against)


def _needing(needs: Needs, memory: float, l2_rate: float | None) -> Needs:
    saved = needs.lost_memory - needs.memory
    reads = needs.pipes.get(Resource.L2)
    lost = memory + saved if reads is None or not l2_rate or not needs.footprint else max(memory, reads * l2_rate)
    return replace(needs, memory=memory, lost_memory=lost, stream=memory / l2_rate if l2_rate else 0.0)


def _with_own(needs: Needs, contests: Sequence[ObservedContest]) -> Needs:
    """Whoever loses nothing with half of the room has threads to spare."""
    against = _beside(contests, Antagonist.ROOM)
    return _best(_owning(needs), against) if against else needs


def _with_spare_threads(needs: Needs, contests: Sequence[ObservedContest]) -> Needs:
    """Where nobody took its room: a job that something else holds up may have threads to spare."""
    held_up = max(needs.memory, *needs.pipes.values(), 0.0) >= _BOUND
    against = _beside(contests, Antagonist.COMPUTE) if held_up and not _beside(contests, Antagonist.ROOM) else []
    return _best(_owning(needs), against) if against else needs


def _owning(needs: Needs) -> list[Needs]:
    return [replace(needs, own=step / 20) for step in range(20, 0, -1)]


def _with_cache(
    needs: Needs, contests: Sequence[ObservedContest], footprint: float | None, l2_rate: float | None
) -> Needs:
    """Find how much of the cache it has, how often it comes back to it, and what that saves the memory.

    Where the bandwidth of the cache is known to both, the last is: all that it reads there would come from memory.
    """
    against = _beside(contests, Antagonist.L2)
    if not against:
        return needs if footprint is None else replace(needs, footprint=footprint)
    reads = needs.pipes.get(Resource.L2)
    saved = None if reads is None or not l2_rate else max(0.0, reads * l2_rate - needs.memory)
    sizes = _FOOTPRINTS if footprint is None else (footprint,)
    lost = _LOST if saved is None else (saved,)
    coarse = _best(
        [_cached(needs, *tried) for tried in product(sizes, lost, _GRAINS if saved is not None else (1.0,))], against
    )
    steps, factors, ratios = _NEARER
    nearer = product(
        [max(0.0, coarse.footprint + step) for step in steps] if footprint is None else sizes,
        [(coarse.lost_memory - needs.memory) * factor for factor in factors] if saved is None else lost,
        [max(1.0, coarse.grain * ratio) for ratio in ratios] if saved is not None else (1.0,),
    )
    return _best([coarse, *(_cached(needs, *tried) for tried in nearer)], against)


def _cached(needs: Needs, footprint: float, lost: float, grain: float) -> Needs:
    return replace(needs, footprint=footprint, lost_memory=needs.memory + lost, grain=grain)


def _best(tried: Sequence[Needs], contests: Sequence[ObservedContest]) -> Needs:
    """Return what explains the contests best; of several that explain them alike the first."""
    return min(tried, key=lambda needs: fit_error(needs, contests))


def _contests(profile: Profile) -> list[Contest]:
    """Return what was measured, within what can be; where only sensitivities were kept, what those were measured with."""
    found = [_sane(each, profile.gpu_l2_bytes) for each in profile.contests]
    kinds = {each.antagonist for each in found}
    kept = {Antagonist.L2: profile.sensitivity.l2, Antagonist.DRAM: profile.sensitivity.dram}
    for antagonist, lost in kept.items():
        if lost is not None and antagonist not in kinds:
            part = 1.0 if antagonist is Antagonist.L2 else TYPICAL_RATE
            found.append(_sane(Contest(antagonist, 0, 0.1, 1 + lost, 1.0, part), None))
    return found


def _sane(contest: Contest, l2_bytes: int | None) -> Contest:
    part = contest.antagonist_fraction
    if part is None and contest.antagonist is Antagonist.L2 and l2_bytes:
        part = contest.swept_bytes / l2_bytes
    return replace(
        contest,
        sm_fraction=_clamped(contest.sm_fraction),
        slowdown=min(MOST_SLOWDOWN, max(1.0, contest.slowdown)),
        antagonist_slowdown=min(MOST_SLOWDOWN, max(1.0, contest.antagonist_slowdown)),
        antagonist_fraction=None if part is None else _clamped(part),
    )


def _told(profile: Profile) -> dict[Resource, float]:
    """Where one resource was measured in several ways the most trustworthy counts."""
    order = list(Evidence)
    demands = sorted(profile.demands, key=lambda demand: order.index(demand.evidence))
    return {demand.resource: _clamped(demand.fraction) for demand in demands}


def _footprint(profile: Profile) -> float | None:
    if profile.footprint_bytes is None or not profile.gpu_l2_bytes:
        return None
    return min(2.0, max(0.0, profile.footprint_bytes / profile.gpu_l2_bytes))


def _spread(profile: Profile) -> float:
    """Return on how many of the multiprocessors there are blocks, weighted by time; all where nobody knows."""
    total_ns = sum(kernel.total_ns for kernel in profile.kernels)
    if not profile.gpu_sm_count or total_ns <= 0:
        return 1.0
    parts = [
        min(1.0, kernel.grid[0] * kernel.grid[1] * kernel.grid[2] / profile.gpu_sm_count) * kernel.total_ns
        for kernel in profile.kernels
    ]
    return _clamped(sum(parts) / total_ns)


def _l1(profile: Profile) -> float:
    return min(MOST_SLOWDOWN, max(0.0, profile.sensitivity.cache or 0.0))


def _evidence(profile: Profile) -> tuple[Evidence, ...]:
    found = {demand.evidence for demand in profile.demands}
    sensitivity = profile.sensitivity
    if profile.contests or any(value is not None for value in (sensitivity.cache, sensitivity.l2, sensitivity.dram)):
        found.add(sensitivity.evidence)
    if profile.kernels:
        found.add(Evidence.LAUNCHES)
    return tuple(each for each in Evidence if each in found)


def _clamped(value: float) -> float:
    return min(1.0, max(0.0, value))


PREFIX = "profile-read/"
"""What the keys of such texts begin with."""


def name_of(profile: Profile) -> str:
    """Return the rest of the key under which a profile's reading is kept."""
    return hashlib.sha256(f"{_formulas()} {profile!r}".encode(errors="surrogateescape")).hexdigest()[:32]


def text_of(reading: NeedsEstimate) -> str:
    """Return a reading as text that is kept."""
    return json.dumps(asdict(reading))


def reading_of(text: str) -> NeedsEstimate | None:
    """Read what `text_of` wrote; None where something else stands there."""
    try:
        fields = json.loads(text)
        needs = fields["needs"]
        pipes = {Resource(name): float(value) for name, value in needs["pipes"].items()}
        evidence = tuple(Evidence(each) for each in fields["evidence"])
        return NeedsEstimate(fields["busy"], Needs(**{**needs, "pipes": pipes}), evidence, tuple(fields["unknown"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


@cache
def _formulas() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
