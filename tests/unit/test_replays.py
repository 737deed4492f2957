"""The replay that benchmarks rest on: it sees what it should see."""

from collections.abc import Sequence

import pytest
from benchmarks.makespan import p1
from benchmarks.makespan.sets import CARD_MIB, cluster
from benchmarks.no_failures import without_admission
from benchmarks.replaying import (
    NO_HEADROOM,
    Arrival,
    MemoryFailureError,
    Policy,
    candidate_of,
    cards,
    default_objective,
    easy,
    fifo,
    in_order_of,
    makespan_objective,
    replay,
)

from pgpu.model import Slice
from pgpu.scheduling import Admission, Candidate, GpuRoom, Grant, Held, Precedence
from pgpu.scheduling.makespan import plan_batch
from pgpu.units import GIB, MIB

CARD = cards(1, 10 * GIB)


def job(name: str, gib: int, lasts: float, came: float = 0.0, predicted: float | None = None) -> Arrival:
    return Arrival(candidate_of(name, gib * GIB, came, predicted or lasts), lasts)


def ends(policy: Policy, *arrivals: Arrival) -> dict[str, float]:
    return {name: fate.ended_seconds for name, fate in replay(CARD, arrivals, policy, headroom=NO_HEADROOM).items()}


JOBS = (job("head", 8, 10), job("wide", 8, 10), job("tail", 2, 30))


def test_each_policy_starts_whom_its_name_says() -> None:
    assert ends(fifo, *JOBS) == {"head": 10, "wide": 20, "tail": 40}
    assert ends(easy, *JOBS) == {"head": 10, "wide": 20, "tail": 30}
    assert ends(in_order_of(lambda each: -each.request.memory_bytes), *JOBS) == {"tail": 30, "head": 10, "wide": 20}
    assert max(ends(makespan_objective(500, 500), *JOBS).values()) == 30
    assert ends(default_objective, *JOBS)["wide"] == 20


def test_jobs_last_as_long_as_they_do_whatever_was_predicted() -> None:
    assert ends(fifo, job("wrong", 4, 10, came=5.0, predicted=99)) == {"wrong": 15}


@pytest.mark.parametrize("seed", [9, 11, 17])
def test_a_batch_on_two_gpus_ends_when_its_plan_says(seed: int) -> None:
    batch = cluster(seed, 10, 2)
    plan = plan_batch(batch.jobs, batch.capacity_bytes, effort=5_000)
    arrivals = [
        Arrival(candidate_of(each.job_id, each.memory_bytes, 0.0, each.duration_seconds), each.duration_seconds)
        for each in batch.jobs
    ]
    fates = replay(cards(2, CARD_MIB * MIB), arrivals, makespan_objective(5_000, 0), headroom=NO_HEADROOM)
    assert max(fate.ended_seconds for fate in fates.values()) <= plan.end_seconds * (1 + 1e-6)


def test_companions_slow_jobs_down() -> None:
    arrivals = [job("one", 2, 10), job("two", 2, 10, came=5)]
    fates = replay(CARD, arrivals, fifo, headroom=NO_HEADROOM, slowdown=float)
    assert [fates[name].ended_seconds for name in ("one", "two")] == pytest.approx([15, 20])


def test_a_grant_past_the_memory_of_a_gpu_is_a_failure() -> None:
    def careless(
        rooms: Sequence[GpuRoom], queue: Sequence[Candidate], _now: float, _held: Sequence[Held], _before: Precedence
    ) -> Admission:
        uuid = rooms[0].gpu.uuid
        grants = [Grant(each.job_id, (Slice(uuid, each.request.memory_bytes),)) for each in queue]
        return Admission(tuple(grants), (), ())

    with pytest.raises(MemoryFailureError):
        ends(careless, *JOBS)
    assert without_admission([job("one", 20, 10), job("two", 20, 10, came=1), job("three", 20, 10, came=11)], 1) == 1


def test_a_job_that_never_starts_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="1 jobs would wait for ever"):
        ends(fifo, job("too large", 11, 1))


def test_the_papers_25_end_as_12_and_13_if_planned_and_as_20_and_5_if_not() -> None:
    seconds = p1.ends()
    assert seconds["planned with P1's table"] == pytest.approx(17.97, abs=0.01)
    assert seconds["first come, first served"] == pytest.approx(25.56, abs=0.01)
