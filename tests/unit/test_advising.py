"""What profiles of jobs alone tell of the same jobs together."""

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgpu.advising.advice import MOST_CLIENTS, Advice, Confidence, GpuKind, advise, choice, predict, slowdowns
from pgpu.advising.constants_fit import ColocatedRun, constants_of, errors, fit, text_of
from pgpu.advising.contention import Constants, Lines, Needs, fair_level, hits, mps_slowdown, touches_of
from pgpu.advising.needs_estimation import estimate_needs
from pgpu.advising.needs_fit import antagonist_needs
from pgpu.model import Antagonist, Contest, Demand, Evidence, Profile, Resource, Sensitivity, SharingMode
from pgpu.structs import replace

GPU = GpuKind("RTX 3090", (8, 6))
OLD = GpuKind("GTX 980 Ti", (5, 2))
MIB = 1 << 20

PROFILE = Profile(
    signature="train.py@0a1b2c3d",
    gpu_name="RTX 3090",
    owner_uid=1000,
    measured_at_seconds=1.0,
    duration_seconds=30.0,
    peak_bytes=1205 * MIB,
    context_bytes=254 * MIB,
    busy_fraction=1.0,
    gpu_l2_bytes=6 * MIB,
    gpu_sm_count=82,
)


def job(busy: float = 1.0, *, name: str = "a", l1: float | None = 0.0, **fractions: float) -> Profile:
    """A job whose demands are known from counters."""
    demands = tuple(Demand(Resource(word), part, Evidence.COUNTERS) for word, part in fractions.items())
    return replace(
        PROFILE,
        signature=name,
        busy_fraction=busy,
        demands=demands,
        sensitivity=Sensitivity(cache=l1),
        footprint_bytes=0,
    )


def swept(touched: float, slowdown: float, antagonist_slowdown: float = 1.0) -> Contest:
    return Contest(Antagonist.L2, round(touched * 6 * MIB), 0.1, slowdown, antagonist_slowdown)


def streamed(part: float, slowdown: float, antagonist_slowdown: float) -> Contest:
    return Contest(Antagonist.DRAM, 1 << 30, 0.1, slowdown, antagonist_slowdown, antagonist_fraction=part)


fractions = st.floats(min_value=0, max_value=1)
contests = st.builds(
    lambda kind, touched, slowdown, back: Contest(kind, round(touched * 6 * MIB), 0.1, slowdown, back, touched),
    st.sampled_from(Antagonist),
    st.floats(min_value=0.05, max_value=1),
    st.floats(min_value=0.9, max_value=8),
    st.floats(min_value=0.9, max_value=8),
)
demands = st.builds(Demand, st.sampled_from(Resource), fractions, st.sampled_from(Evidence))
profiles = st.builds(
    lambda busy, demands, footprint, cache, contests, name: replace(
        PROFILE,
        signature=name,
        busy_fraction=busy,
        demands=tuple(demands),
        footprint_bytes=footprint,
        sensitivity=Sensitivity(cache=cache),
        contests=tuple(contests),
    ),
    fractions,
    st.lists(demands, max_size=4),
    st.none() | st.integers(min_value=0, max_value=12 * MIB),
    st.none() | st.floats(min_value=0, max_value=5),
    st.lists(contests, max_size=2),
    st.sampled_from("abcd"),
)
few = settings(max_examples=30, deadline=None)
"""Reading a profile tries hundreds of explanations."""

together = st.lists(profiles, min_size=1, max_size=4)


def both(advice: Advice) -> list[tuple[float, float]]:
    return [(each.time_slice_slowdown, each.mps_slowdown) for each in advice.jobs]


@few
@given(together)
def test_nobody_gets_faster_by_company(jobs: Sequence[Profile]) -> None:
    assert all(min(pair) >= 1 - 1e-9 for pair in both(advise(jobs, GPU)))


@few
@given(profiles)
def test_a_job_alone_takes_its_time(alone: Profile) -> None:
    found = advise([alone], GPU)
    assert both(found) == [(1.0, 1.0)]
    assert (found.mode, found.gain) == (SharingMode.TIME_SLICE, 1.0)


@few
@given(together.filter(lambda jobs: len(jobs) > 1), st.randoms())
def test_advice_does_not_depend_on_the_order_of_the_jobs(jobs: list[Profile], random: Random) -> None:
    order = list(range(len(jobs)))
    random.shuffle(order)
    straight, shuffled = advise(jobs, GPU), advise([jobs[index] for index in order], GPU)
    assert shuffled.jobs == tuple(straight.jobs[index] for index in order)
    assert (shuffled.mode, shuffled.gain) == (straight.mode, straight.gain)


@few
@given(together, profiles)
def test_one_more_companion_makes_nobody_faster_in_turns_and_never_all_under_mps(
    jobs: list[Profile], companion: Profile
) -> None:
    before, after = both(advise(jobs, GPU)), both(advise([*jobs, companion], GPU))
    for (sliced, _mps), (sliced_after, _mps_after) in zip(before, after[:-1], strict=True):
        assert sliced_after >= sliced - 1e-9
    # Whom the newcomer holds up presses less on the rest, so one of them may get faster.
    assert any(mps_after >= mps - 1e-9 for (_, mps), (_, mps_after) in zip(before, after[:-1], strict=True))


def test_two_jobs_that_always_compute_take_twice_as_long_in_turns() -> None:
    found = advise([job(), job()], GPU, constants=Constants(switch_overhead=0.0))
    assert both(found)[0][0] == 2


def test_two_jobs_in_turns_wait_as_long_as_the_other_computes() -> None:
    found = slowdowns([0.5, 0.5], lambda _job, beside: 1 + sum(beside))
    assert found == pytest.approx([1.25, 1.25])


def test_many_jobs_are_averaged_and_still_share_one_gpu() -> None:
    found = slowdowns([1.0] * 20, lambda index, beside: 1 + sum(beside) - beside[index])
    assert found == pytest.approx([20.0] * 20)


def test_kernels_that_fill_little_of_the_gpu_do_not_slow_each_other_under_mps() -> None:
    found = advise([job(sm=0.4, dram=0.3), job(sm=0.4, dram=0.3)], GPU)
    assert both(found)[0] == pytest.approx((2.06, 1.0))
    assert found.mode is SharingMode.MPS


def test_kernels_that_each_fill_the_gpu_gain_little_under_mps() -> None:
    found = advise([job(sm=1.0), job(sm=1.0)], GPU)
    assert found.mode is SharingMode.TIME_SLICE


def test_a_memory_bound_and_a_compute_bound_job_with_room_for_both_belong_under_mps() -> None:
    found = advise([job(sm=0.5, dram=0.9), job(sm=0.5, fp32=0.9, dram=0.1)], GPU)
    assert found.mode is SharingMode.MPS
    assert found.gain == pytest.approx(2.06)


def test_jobs_that_lose_the_cache_to_each_other_take_turns() -> None:
    thrashing = replace(
        job(sm=0.4, dram=0.2),
        footprint_bytes=5 * MIB,
        contests=(swept(0.25, 1.2), swept(0.5, 1.9), swept(1.0, 3.0)),
    )
    found = advise([thrashing, replace(thrashing, signature="b")], GPU)
    assert found.mode is SharingMode.TIME_SLICE
    assert found.jobs[0].mps_slowdown > 3


def test_a_cache_sensitive_job_beside_one_that_touches_nothing_belongs_under_mps() -> None:
    thrashing = replace(job(sm=0.4, dram=0.2), footprint_bytes=5 * MIB, contests=(swept(0.5, 1.9), swept(1.0, 3.0)))
    assert advise([thrashing, job(sm=0.4, name="b")], GPU).mode is SharingMode.MPS


def test_an_interactive_job_that_nothing_keeps_fast_stays_alone() -> None:
    found = advise([job(sm=1.0), job(sm=1.0, name="b")], GPU, tolerance=1.3)
    assert found.mode is SharingMode.EXCLUSIVE


def test_an_interactive_job_that_computes_little_may_take_turns() -> None:
    found = advise([job(0.1, sm=1.0), job(0.1, sm=1.0, name="b")], GPU, tolerance=1.3)
    assert found.mode is SharingMode.TIME_SLICE


def test_mps_is_refused_where_the_slowest_gets_slower_than_in_turns() -> None:
    assert choice([2.0, 2.0], [1.0, 2.5], gain=1.3, tolerance=None, may_use_mps=True) is SharingMode.TIME_SLICE


def test_users_who_do_not_trust_each_other_never_share_mps() -> None:
    found = advise([job(sm=0.2), replace(job(sm=0.2), owner_uid=1001)], GPU)
    assert found.mode is SharingMode.TIME_SLICE
    assert len(found.gates) == 1


def test_before_volta_mps_is_told_to_be_faster_and_is_not_advised() -> None:
    found = advise([job(sm=0.2), job(sm=0.2, name="b")], OLD)
    assert (found.mode, found.faster_mode) == (SharingMode.TIME_SLICE, SharingMode.MPS)


def test_mps_has_room_for_48_clients() -> None:
    crowd = [job(0.01, sm=0.01) for _each in range(MOST_CLIENTS + 1)]
    assert advise(crowd, GPU).gates
    assert not advise(crowd[:-1], GPU).gates


def test_jobs_on_several_gpus_and_mig_instances_stay_off_mps() -> None:
    pair = [job(sm=0.2), job(sm=0.2, name="b")]
    assert advise(pair, GPU, gpu_counts=[1, 2]).mode is SharingMode.TIME_SLICE
    assert advise(pair, replace(GPU, is_instance=True)).mode is SharingMode.TIME_SLICE


def test_confidence_follows_the_evidence_of_the_job_of_which_least_is_known() -> None:
    launches = replace(PROFILE, demands=(Demand(Resource.SM, 0.5, Evidence.LAUNCHES),))
    gpm = replace(PROFILE, demands=(Demand(Resource.DRAM, 0.5, Evidence.GPM),))
    assert advise([job(sm=0.5, dram=0.1)], GPU).confidence is Confidence.HIGH
    assert advise([replace(gpm, footprint_bytes=0)], GPU).confidence is Confidence.GOOD
    assert advise([gpm], GPU).confidence is Confidence.FAIR
    antagonists = replace(PROFILE, contests=(swept(1.0, 1.0), streamed(0.5, 1.0, 1.0)))
    assert advise([antagonists], GPU).confidence is Confidence.FAIR
    assert advise([job(sm=0.5, dram=0.1), launches], GPU).confidence is Confidence.LOW


@pytest.mark.parametrize(
    "told",
    [
        {"sensitivity": Sensitivity(cache=0.0)},
        {"contests": (swept(1.0, 1.0),)},
        {"contests": (streamed(0.5, 1.0, 1.0),)},
    ],
)
def test_antagonists_that_left_memory_or_the_l2_cache_alone_tell_too_little(told: dict[str, object]) -> None:
    assert advise([replace(PROFILE, **told)], GPU).confidence is Confidence.LOW  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "demands", [(), (Demand(Resource.SM, 0.1, Evidence.LAUNCHES),), (Demand(Resource.SM, 0.1, Evidence.COUNTERS),)]
)
def test_who_may_need_all_of_the_memory_gains_nothing_under_mps(demands: tuple[Demand, ...]) -> None:
    launches = replace(PROFILE, demands=demands, kernels=())
    found = advise([launches, replace(launches, signature="b")], GPU)
    assert found.mode is SharingMode.TIME_SLICE
    assert found.jobs[0].mps_slowdown >= 2


def test_who_may_need_all_of_the_l2_cache_is_taken_to_lose_it() -> None:
    known = job(sm=0.2, dram=0.6)
    unknown = replace(known, footprint_bytes=None)
    assert advise([known, known], GPU).jobs[0].mps_slowdown < 1.25
    assert advise([unknown, unknown], GPU).jobs[0].mps_slowdown > 1.5


def test_what_nothing_told_is_named() -> None:
    assert estimate_needs(PROFILE).unknown == (
        "multiprocessors",
        "arithmetic",
        "memory bandwidth",
        "L1 cache",
        "L2 cache",
    )
    assert not estimate_needs(replace(job(sm=1, dram=0, fp32=0), footprint_bytes=MIB)).unknown


def test_of_several_figures_for_one_resource_the_most_trustworthy_counts() -> None:
    told = (Demand(Resource.SM, 0.9, Evidence.COUNTERS), Demand(Resource.SM, 0.1, Evidence.LAUNCHES))
    assert estimate_needs(replace(PROFILE, demands=told)).needs.sm == 0.9


def test_the_bandwidth_that_an_antagonist_lost_is_the_jobs() -> None:
    """To a step of the search, a fiftieth."""
    assert estimate_needs(replace(PROFILE, contests=(streamed(0.8, 1.0, 1.6),))).needs.memory == pytest.approx(
        0.5, abs=0.021
    )


def test_a_job_that_lost_bandwidth_needs_more_than_it_had() -> None:
    assert estimate_needs(replace(PROFILE, contests=(streamed(0.5, 1.5, 1.0),))).needs.memory == pytest.approx(
        0.75, abs=0.02
    )


L2_RATE = 2.0
"""The L2 cache gives twice as much in a second as the memory."""


def beside_antagonists(truth: Needs) -> Profile:
    """The profile of a job with such needs, measured beside antagonists that know nothing of it."""
    against = [
        *(Contest(Antagonist.L2, 0, 1.0, 1.0, 1.0, part, L2_RATE) for part in (0.25, 0.5, 1.0)),
        *(Contest(Antagonist.DRAM, 0, part, 1.0, 1.0, rate, rate) for part, rate in ((0.1, 0.5), (0.5, 1.0))),
        Contest(Antagonist.L2_BANDWIDTH, 0, 1.0, 1.0, 1.0, 1.0, L2_RATE),
        Contest(Antagonist.COMPUTE, 0, 1.0, 1.0, 1.0, 1.0),
        Contest(Antagonist.ROOM, 0, 1.0, 1.0, 1.0, 1.0),
    ]
    met = tuple(
        replace(
            each,
            slowdown=mps_slowdown(truth, [(antagonist_needs(each, L2_RATE), 1.0)], Constants()),
            antagonist_slowdown=mps_slowdown(antagonist_needs(each, L2_RATE), [(truth, 1.0)], Constants()),
        )
        for each in against
    )
    demands = (Demand(Resource.SM, truth.sm, Evidence.LAUNCHES),)
    return replace(PROFILE, demands=demands, contests=met, sensitivity=Sensitivity(cache=truth.l1))


def kind(l2: float, streamed: float, *, sm: float = 1.0, own: float = 1.0, fp32: float = 0.0, **cache: float) -> Needs:
    """Whoever loses some of its lines alone reads them from memory, too."""
    pipes = {Resource.L2: l2, Resource.FP32: fp32}
    needs = Needs(sm, 1.0, own, pipes, streamed, l2 * L2_RATE, stream=streamed / L2_RATE, **cache)
    alone = hits([Lines(needs.footprint, touches_of(needs))], needs.stream)[0] if needs.footprint else 1.0
    return replace(needs, memory=streamed + (needs.lost_memory - streamed) * (1 - alone))


KINDS = {
    "streams": kind(0.475, 0.95, own=0.5),
    "computes": kind(0.1, 0.1, fp32=0.9),
    "waits": kind(0.15, 0.2, sm=0.3),
    "lives in L2": kind(0.9, 0.2, sm=0.4, footprint=0.8),
    "comes back often": kind(0.9, 0.2, sm=0.4, footprint=0.8, grain=4.0),
    "half in L2": kind(0.7, 0.3, sm=0.4, footprint=0.4),
}


AT_AN_EDGE = {("half in L2", "comes back often"): 0.35, ("lives in L2", "waits"): 0.30}
"""How far off pairs are told that just do or just do not fit into the cache together: hits fall off steeply there, and three
antagonists show three points of that."""


def test_what_two_jobs_do_together_is_told_from_what_each_does_beside_antagonists() -> None:
    """To 3 % on average, and to 15 % whoever is not at the edge of a cache together."""
    profiles = {name: beside_antagonists(needs) for name, needs in KINDS.items()}
    errors_of = {
        (one, other): advise([profiles[one], profiles[other]], GPU).jobs[0].mps_slowdown
        / mps_slowdown(first, [(second, 1.0)], Constants())
        - 1
        for one, first in KINDS.items()
        for other, second in KINDS.items()
    }
    wrong = {pair: abs(each) for pair, each in errors_of.items()}
    assert sum(wrong.values()) / len(wrong) < 0.04, errors_of
    assert not {pair: each for pair, each in wrong.items() if each > AT_AN_EDGE.get(pair, 0.15)}


def test_a_job_that_loses_nothing_still_presses_on_those_that_do() -> None:
    met = tuple(Contest(Antagonist.L2, 0, 1.0, 1.0, back, part, L2_RATE) for part, back in ((0.5, 1.0), (1.0, 1.4)))
    found = estimate_needs(replace(PROFILE, contests=met)).needs
    assert found.footprint > 0.2
    assert found.lost_memory - found.memory < 0.5


def test_sets_that_fit_together_are_kept_and_sets_that_do_not_are_lost() -> None:
    small, large = Lines(0.25, 1.0), Lines(0.9, 1.0)
    assert hits([small, small], 0.0) == pytest.approx([1.0, 1.0], abs=0.01)
    assert max(hits([large, large], 0.0)) < 0.5
    assert hits([large, Lines(0.9, 0.0)], 0.0) == pytest.approx([1.0, 1.0], abs=0.1)


def test_who_comes_back_to_its_lines_more_often_keeps_more_of_them() -> None:
    mine, theirs = hits([Lines(0.9, 4.0), Lines(0.9, 1.0)], 0.0)
    assert mine > 2 * theirs


@given(st.floats(min_value=0.01, max_value=5), st.lists(st.floats(min_value=0, max_value=5), max_size=5))
def test_shares_never_sum_to_more_than_the_whole_and_nobody_gets_more_than_wanted(
    mine: float, theirs: list[float]
) -> None:
    everybody = [mine, *theirs]
    shares = [min(each, fair_level(everybody)) for each in everybody]
    assert math.fsum(shares) <= 1 + 1e-9
    assert all(share <= wanted for share, wanted in zip(shares, everybody, strict=True))


def test_constants_are_found_again_from_pairs_that_were_made_with_them() -> None:
    truth = Constants(switch_overhead=0.11, crowd_overhead=0.04)
    jobs = [job(sm=0.4, dram=0.6), job(0.7, sm=0.8, fp32=0.9, name="b")]
    pairs = [(one, other) for one in jobs for other in jobs]
    modes = (SharingMode.TIME_SLICE, SharingMode.MPS)
    measured = [ColocatedRun(pair, mode, predict(pair, mode, truth)) for pair in pairs for mode in modes]
    found = fit(measured, Constants())
    assert found.switch_overhead == pytest.approx(0.11, abs=0.01)
    assert found.crowd_overhead == pytest.approx(0.04, abs=0.01)
    assert found.is_calibrated
    assert errors(measured, found).worst < 0.01 < errors(measured, Constants()).mean
    assert constants_of(text_of(found)) == found
