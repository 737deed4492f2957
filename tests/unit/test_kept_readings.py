"""What profiles were read as is kept, so that no round in a transaction reads one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.test_advising import PROFILE

from pgpu.advising import needs_estimation
from pgpu.engine.admission.auto_sharing import ProfileReadings
from pgpu.engine.history.run_history import history_name
from pgpu.ledger import Ledger
from pgpu.model import Antagonist, Contest, Gpu, Profile
from pgpu.structs import replace

GPU = Gpu("GPU-0", "fake", 0, 1 << 30, "1.0", is_simulated=True)
CALL = ("program", 7)
MET = (Contest(Antagonist.DRAM, 0, 0.1, 1.4, 1.2, 0.5), Contest(Antagonist.COMPUTE, 0, 0.5, 1.1, 1.3, 0.5))
KNOWN = replace(PROFILE, signature=CALL[0], owner_uid=CALL[1], gpu_name=history_name(GPU), contests=MET)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


def another_process() -> None:
    """Forget what was read in this one."""
    needs_estimation._cache.clear()


def remembered(ledger: Ledger) -> Profile:
    with ledger.decision() as decision:
        decision.profiles.add(KNOWN, "a" * 12)
    return KNOWN


def test_a_reading_comes_back_as_it_was() -> None:
    found = needs_estimation.estimate_needs(KNOWN)
    assert needs_estimation.estimate_of(needs_estimation.text_of(found)) == found


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"busy": 1, "needs": {"pipes": {"no": 1}}}'])
def test_what_is_no_reading_counts_as_never_read(text: str) -> None:
    assert needs_estimation.estimate_of(text) is None


def test_profiles_that_differ_are_kept_apart() -> None:
    assert needs_estimation.name_of(KNOWN) != needs_estimation.name_of(replace(KNOWN, contests=MET[:1]))


def test_whoever_decides_finds_read_what_was_prepared_before_even_in_another_process(ledger: Ledger) -> None:
    profile = remembered(ledger)
    another_process()
    ProfileReadings().prepare(ledger, [GPU], {CALL, ("never seen", 7), ("", 7)})
    another_process()
    with ledger.decision() as decision:
        ProfileReadings().recall(decision, profile)
        assert needs_estimation.is_cached(profile)


def test_what_nobody_prepared_is_kept_once_it_was_read(ledger: Ledger) -> None:
    profile, readings = remembered(ledger), ProfileReadings()
    another_process()
    with ledger.view() as view:
        readings.recall(view, profile)
    assert not needs_estimation.is_cached(profile)
    readings.keep(ledger.facts)
    assert ledger.facts.get(needs_estimation.PREFIX + needs_estimation.name_of(profile)) == needs_estimation.text_of(
        needs_estimation.estimate_needs(profile)
    )


def test_a_round_computes_no_more_readings_than_it_has_time_for(ledger: Ledger) -> None:
    readings, profiles = ProfileReadings(), [replace(KNOWN, contests=MET[:1]), replace(KNOWN, contests=MET[1:])]
    another_process()
    with ledger.view() as view:
        for profile in profiles:
            readings.recall(view, profile)
    for count in (1, 2):
        readings.keep(ledger.facts, 0.0)
        assert sum(map(needs_estimation.is_cached, profiles)) == count


def test_only_so_much_is_remembered_in_one_process() -> None:
    another_process()
    for number in range(needs_estimation._MOST_CACHED + 3):
        needs_estimation.cache_estimate(replace(KNOWN, signature=str(number)), needs_estimation.estimate_needs(PROFILE))
    assert len(needs_estimation._cache) == needs_estimation._MOST_CACHED
