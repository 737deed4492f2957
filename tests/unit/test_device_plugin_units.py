"""GiB of GPU memory as a kubelet's devices: which are chosen, and what claim they make."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.engine.claims import check_words
from pgpu.errors import CapacityError, RequestError
from pgpu.kubernetes.unit_ids import (
    Unit,
    claim_of,
    is_ours,
    preferred,
    uid_of,
    unit_of,
    units_in,
    units_of,
)
from pgpu.units import GIB

UUIDS = [f"GPU-00000000-0000-0000-0000-{index:012d}" for index in range(3)]
UNITS = st.builds(Unit, st.sampled_from(UUIDS), st.integers(0, 12))


def _ids(*amounts: int) -> list[str]:
    return [Unit(uuid, number).id for uuid, amount in zip(UUIDS, amounts, strict=False) for number in range(amount)]


@given(st.sets(UNITS), st.integers(1, 14))
def test_as_many_as_are_asked_for_are_chosen_of_one_gpu_or_none_has_as_many(free: set[Unit], count: int) -> None:
    most = max((sum(unit.gpu_uuid == uuid for unit in free) for uuid in UUIDS), default=0)
    try:
        chosen = preferred([unit.id for unit in free], [], count)
    except CapacityError:
        assert most < count
        return
    units = units_of(chosen)
    assert len(units) == count
    assert set(units) <= free
    assert len({unit.gpu_uuid for unit in units}) == 1


@given(st.sets(UNITS, min_size=1), st.integers(1, 14))
def test_no_fuller_gpu_than_the_chosen_one_has_room(free: set[Unit], count: int) -> None:
    amounts = {uuid: sum(unit.gpu_uuid == uuid for unit in free) for uuid in UUIDS}
    fitting = [amount for amount in amounts.values() if amount >= count]
    if fitting:
        chosen = unit_of(preferred([unit.id for unit in free], [], count)[0]).gpu_uuid
        assert amounts[chosen] == min(fitting)


@given(st.sets(UNITS, min_size=1), st.data())
def test_what_must_be_included_is(free: set[Unit], data: st.DataObject) -> None:
    uuid = data.draw(st.sampled_from(sorted(free))).gpu_uuid
    there = sorted(unit for unit in free if unit.gpu_uuid == uuid)
    wanted = data.draw(st.sets(st.sampled_from(there)))
    count = data.draw(st.integers(max(1, len(wanted)), len(there)))
    chosen = preferred([unit.id for unit in free], [unit.id for unit in wanted], count)
    assert {unit.id for unit in wanted} <= set(chosen)
    assert len(chosen) == count


def test_what_must_be_included_and_lies_on_two_gpus_is_refused() -> None:
    with pytest.raises(CapacityError, match="init container"):
        preferred(_ids(2, 2), [Unit(UUIDS[0], 0).id, Unit(UUIDS[1], 0).id], 2)


def test_more_that_must_be_included_than_are_asked_for_are_refused() -> None:
    with pytest.raises(RequestError):
        preferred(_ids(4), _ids(3), 2)


@given(st.sets(st.integers(0, 200), min_size=1))
def test_units_make_one_claim_whoever_names_them_first(numbers: set[int]) -> None:
    ids = [Unit(UUIDS[0], number).id for number in numbers]
    claims = [claim_of(units_of(order)) for order in (sorted(ids), sorted(ids, reverse=True))]
    assert claims[0] == claims[1]
    check_words(claims[0])
    assert claims[0].slices[0].memory_bytes == len(numbers) * GIB
    assert is_ours(claims[0])
    assert units_in(claims[0]) == {Unit(UUIDS[0], number) for number in numbers}


@given(st.sets(UNITS, min_size=1), st.sets(UNITS, min_size=1))
def test_other_units_are_another_claim(one: set[Unit], other: set[Unit]) -> None:
    assert (uid_of(one) == uid_of(other)) is (one == other)
    assert len(uid_of(one)) <= 63


@given(UNITS)
def test_an_id_is_read_as_it_was_written(unit: Unit) -> None:
    assert unit_of(unit.id) == unit


def test_an_exporter_that_cuts_at_two_colons_has_the_gpu() -> None:
    assert Unit(UUIDS[0], 17).id.split("::") == [UUIDS[0], "17"]
