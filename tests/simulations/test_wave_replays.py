"""A batch that does not fit at once, replayed second by second: P1's jobs under P1's own times, and jobs that do not contend."""

import random
from collections import Counter
from collections.abc import Callable, Mapping
from statistics import fmean

import pytest
from benchmarks.replaying import NO_HEADROOM, Arrival, Fate, cards, default_objective, replay
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from pgpu.lab.p1 import P1_DEVICE_MIB, P1_JOB_MIB, P1_TABLE
from pgpu.model import Batch, Gpu, Request
from pgpu.scheduling import Admission, Candidate, GpuRoom, Held, admit
from pgpu.scheduling.start_rule import HOLD_UNKNOWN_SECONDS
from pgpu.structs import Struct, replace
from pgpu.units import GIB, MIB

FITTING = P1_DEVICE_MIB // P1_JOB_MIB
BEST_END, BEST_MEAN = 17.97, 13.6
FILLED_END, FILLED_MEAN = 25.56, 18.4

TICK_SECONDS = 1.0
MEASURED_AFTER_SECONDS = 2.0

Law = Callable[[int], float]
"""Jobs on one GPU → seconds that each of them runs."""


def p1_law(count: int) -> float:
    """The longest of so many of P1's containers; it has no row for one."""
    return {row.jobs: row.longest_seconds for row in P1_TABLE}[max(2, count)]


def no_contention(seconds: float) -> Law:
    return lambda _: seconds


class Outcome(Struct):
    ends: dict[str, float]
    starts: dict[str, float]
    most_at_once: int = 0

    @property
    def end(self) -> float:
        return max(self.ends.values())

    @property
    def mean(self) -> float:
        """Mean response: all came at second 0."""
        return fmean(self.ends.values())


def batch_of(size: int, *, duration_seconds: float | None = None, is_batch: bool = True) -> list[Candidate]:
    batch = Batch("job0", size) if is_batch else None
    return [
        Candidate(f"job{number}", Request(P1_JOB_MIB * MIB), duration_seconds=duration_seconds, batch=batch)
        for number in range(size)
    ]


def play(
    queue: list[Candidate],
    law: Law,
    demand: float | None,
    *,
    gpus: int = 1,
    error: float = 0.0,
    work: Mapping[str, float] | None = None,
    seed: int = 0,
) -> Outcome:
    """Run a queue to its end, in rounds at each end and, as the keeper's, each second while a job is held back.

    Args:
        queue: Comes at second 0.
        law: Of each GPU.
        demand: Measured once a job has run for two seconds; None if nothing is measured.
        gpus: Equal ones.
        error: Each measurement is off by up to this part of it.
        work: By id, in units of what the law's time takes; 1 for the others.
        seed: Of the errors.
    """
    dice = random.Random(seed)
    cards = [Gpu(f"GPU-{index}", "Test", index, P1_DEVICE_MIB * MIB, "1.0", is_simulated=True) for index in range(gpus)]
    waiting = {candidate.job_id: candidate for candidate in queue}
    left = {candidate.job_id: (work or {}).get(candidate.job_id, 1.0) for candidate in queue}
    running: dict[str, Held] = {}
    outcome, now, since_round = Outcome({}, {}), 0.0, 0.0
    while waiting or running:
        held = [_measured(each, now, demand, error, dice) for each in running.values()]
        admission = admit(_rooms(cards, held), list(waiting.values()), now, held=held)
        for grant in admission.grants:
            candidate = waiting.pop(grant.job_id)
            running[grant.job_id] = Held(
                grant.job_id,
                0,
                grant.slices,
                now,
                duration_seconds=candidate.duration_seconds,
                batch=candidate.batch,
                usual_demand=candidate.usual_demand,
            )
            outcome.starts[grant.job_id] = now
        counts = Counter(each.slices[0].gpu_uuid for each in running.values())
        outcome.most_at_once = max(outcome.most_at_once, *counts.values())
        _check(admission, waiting, counts, cards, now)
        paces = {job_id: 1 / law(counts[each.slices[0].gpu_uuid]) for job_id, each in running.items()}
        step = min(left[job_id] / pace for job_id, pace in paces.items())
        since_round = min(step, TICK_SECONDS) if admission.holds_back else step
        now += since_round
        for job_id, pace in paces.items():
            left[job_id] -= since_round * pace
            if left[job_id] <= 1e-9:
                outcome.ends[job_id] = now
                del running[job_id]
    return outcome


def _measured(held: Held, now: float, demand: float | None, error: float, dice: random.Random) -> Held:
    if demand is None or now - held.granted_at_seconds < MEASURED_AFTER_SECONDS:
        return held
    return replace(held, demand=min(1.0, demand * (1 + dice.uniform(-error, error))))


def _rooms(cards: list[Gpu], held: list[Held]) -> list[GpuRoom]:
    taken = Counter[str]()
    for each in held:
        for part in each.slices:
            taken[part.gpu_uuid] += part.memory_bytes
    return [GpuRoom(card, 0, 0, taken[card.uuid]) for card in cards]


def _check(
    admission: Admission, waiting: Mapping[str, Candidate], counts: Counter[str], cards: list[Gpu], now: float
) -> None:
    """No GPU is idle while a job that fits waits, and no job is held back for longer than it may."""
    if waiting:
        assert all(counts[card.uuid] for card in cards)
    if now >= HOLD_UNKNOWN_SECONDS and any(each.duration_seconds is None for each in waiting.values()):
        assert all(counts[card.uuid] == FITTING for card in cards)
        assert not admission.holds_back


# P1's table. Fixed seeds; demands from 1/8 to 1/25 of a GPU, since P1 gives none (P2: 4 %).


@pytest.mark.parametrize("demand", [1 / 8, 1 / 10, 1 / 13.5, 1 / 17, 1 / 20, 1 / 25])
def test_p1s_first_batch_ends_as_12_and_13_without_any_history(demand: float) -> None:
    outcome = play(batch_of(25), p1_law, demand)
    assert outcome.end <= 1.01 * BEST_END
    assert outcome.mean <= BEST_MEAN
    assert outcome.most_at_once == 13


@pytest.mark.parametrize("demand", [1 / 8, 1 / 13.5, 1 / 25])
def test_p1s_second_batch_ends_as_the_first_one(demand: float) -> None:
    """By then the program's run time is known, and its demand as the average over a run, in which it also loads."""
    second = [replace(each, usual_demand=0.7 * demand) for each in batch_of(25, duration_seconds=10.0)]
    outcome = play(second, p1_law, demand)
    assert outcome.end <= 1.01 * BEST_END
    assert outcome.mean <= BEST_MEAN


def test_filling_the_gpu_takes_p1s_25_as_long_as_the_paper_says() -> None:
    outcome = play(batch_of(25, is_batch=False), p1_law, None)
    assert outcome.end == pytest.approx(FILLED_END, abs=0.01)
    assert outcome.mean == pytest.approx(FILLED_MEAN, abs=0.05)


@examples(12, 60)
@given(demand=st.floats(1 / 25, 1 / 8), error=st.floats(0, 0.2), seed=st.integers(0, 1000))
def test_p1s_first_batch_ends_within_a_tenth_of_the_best_whatever_is_measured(
    demand: float, error: float, seed: int
) -> None:
    """Each measurement is off by up to a fifth, and each job's work by a fiftieth."""
    dice = random.Random(seed)
    work = {f"job{number}": dice.uniform(0.98, 1.02) for number in range(25)}
    outcome = play(batch_of(25), p1_law, demand, error=error, work=work, seed=seed)
    assert outcome.end <= 1.10 * BEST_END
    assert outcome.mean <= 1.05 * BEST_MEAN


@settings(deadline=None, max_examples=30)
@given(st.integers(1, FITTING), st.floats(0.001, 1.0) | st.none())
def test_a_batch_that_fits_in_one_wave_starts_at_once(size: int, demand: float | None) -> None:
    assert set(play(batch_of(size), p1_law, demand).starts.values()) == {0.0}


@pytest.mark.parametrize(("size", "most"), [(30, 15), (40, 20), (45, 15), (21, 11), (100, 20)])
def test_a_wave_is_an_even_part_of_the_batch_in_as_few_waves_as_memory_allows(size: int, most: int) -> None:
    outcome = play(batch_of(size), p1_law, 1 / 13.5)
    assert outcome.most_at_once == most
    assert outcome.end <= 1.001 * play(batch_of(size, is_batch=False), p1_law, None).end


@pytest.mark.parametrize("seed", range(6))
def test_a_large_job_beside_a_flood_of_batches_waits_at_most_one_of_their_jobs_longer(seed: int) -> None:
    """Each hour comes a batch, most of them of several waves; then a job of another user that needs a whole GPU."""
    waves, filled = (flood_with_a_large_job(seed, has_batches=has_batches) for has_batches in (True, False))
    waits = [fates["large"].started_seconds - fates["large"].came_seconds for fates in (waves, filled)]
    assert waits[0] <= waits[1] + LONGEST_SECONDS
    ends = [max(fate.ended_seconds for fate in fates.values()) for fates in (waves, filled)]
    assert ends[0] <= 1.02 * ends[1]


LONGEST_SECONDS = 30 * 60.0


def flood_with_a_large_job(seed: int, *, has_batches: bool) -> Mapping[str, Fate]:
    """Replay ten hours on two GPUs where nothing contends and nothing is measured."""
    dice = random.Random(seed)
    arrivals = [Arrival(Candidate("large", Request(22 * GIB), None, 2, 2 * 3600.0), 3600.0)]
    for hour in range(10):
        size = dice.randint(13, 60)
        batch = Batch(f"{hour}-0", size) if has_batches else None
        arrivals += [
            Arrival(
                Candidate(f"{hour}-{number}", Request(4 * GIB), None, 1, hour * 3600.0, batch=batch),
                dice.uniform(0.66, 1.0) * LONGEST_SECONDS,
            )
            for number in range(size)
        ]
    return replay(cards(2, 24 * GIB), arrivals, default_objective, headroom=NO_HEADROOM)


# Where nothing contends: what the rule costs.


@examples(12, 60)
@given(
    size=st.integers(21, 120),
    gpus=st.integers(1, 3),
    demand=st.floats(0.001, 1.0) | st.none(),
    seconds=st.sampled_from([8.0, 30.0, 60.0, 3600.0]),
    is_known=st.booleans(),
)
def test_a_batch_that_does_not_contend_ends_as_early_as_with_filled_gpus(
    size: int, gpus: int, demand: float | None, seconds: float, *, is_known: bool
) -> None:
    duration = seconds if is_known else None
    law = no_contention(seconds)
    waves = play(batch_of(size, duration_seconds=duration), law, demand, gpus=gpus)
    filled = play(batch_of(size, is_batch=False), law, None, gpus=gpus)
    assert waves.end <= 1.02 * filled.end


@pytest.mark.parametrize(("seconds", "most"), [(8.0, 1.10), (30.0, 1.04), (60.0, 1.02)])
def test_jobs_that_hardly_use_the_gpu_wait_only_until_that_is_measured(seconds: float, most: float) -> None:
    waves = play(batch_of(25), no_contention(seconds), 0.01)
    filled = play(batch_of(25, is_batch=False), no_contention(seconds), None)
    assert waves.mean <= most * filled.mean
    assert waves.most_at_once == FITTING


def test_a_job_of_unknown_duration_is_held_back_for_ten_minutes_at_most() -> None:
    outcome = play(batch_of(25), no_contention(7200.0), 0.5)
    starts = Counter(round(start) for start in outcome.starts.values())
    assert starts == {0: 13, HOLD_UNKNOWN_SECONDS: 7, 7200: 5}
