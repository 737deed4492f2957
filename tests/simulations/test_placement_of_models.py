"""Pods that name models of GPUs find them free, although most pods accept any; on a synthetic trace."""

import statistics

from benchmarks.placement.cluster import Cluster, Outcome, replay
from benchmarks.placement.openb import arrivals, departures
from benchmarks.placement.ours import Ours
from benchmarks.placement.synthetic import typed_trace

SEEDS = range(1, 4)


def arrived(seed: int, *, knows_models: bool) -> Outcome:
    trace = typed_trace(seed)
    cluster = Cluster(trace.shuffled(seed))
    return replay(cluster, arrivals(trace, seed), Ours(cluster, knows_models=knows_models))


def rejected(seed: int, *, knows_models: bool) -> float:
    trace = typed_trace(seed)
    cluster = Cluster(trace.shuffled(seed))
    return replay(cluster, departures(trace, seed, 0.9), Ours(cluster, knows_models=knows_models)).rejected


def test_much_more_is_allocated_where_the_mix_knows_models() -> None:
    knowing = [arrived(seed, knows_models=True) for seed in SEEDS]
    others = [arrived(seed, knows_models=False) for seed in SEEDS]

    gain = [one.allocated_at_full - other.allocated_at_full for one, other in zip(knowing, others, strict=True)]
    assert statistics.fmean(gain) > 0.04
    # Once more has arrived than there is, anything fills the GPUs.
    loss = [other.allocated - one.allocated for one, other in zip(knowing, others, strict=True)]
    assert statistics.fmean(loss) < 0.01


def test_with_departures_less_is_rejected_where_the_mix_knows_models() -> None:
    seed = SEEDS[0]
    assert rejected(seed, knows_models=True) < rejected(seed, knows_models=False)
