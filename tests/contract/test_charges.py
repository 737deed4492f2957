"""What the ledger charges to the clocks of users: machine time times dominant share by weight, whatever happens in between."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from tests.examples import examples
from tests.ledger_entries import Clock, instance_of, waiting

from pgpu.ledger import Entry, Ledger
from pgpu.model import JobState, Lease, SharingMode, Slice
from pgpu.scheduling import Admission, Grant, Held, Quota, VirtualTime
from pgpu.scheduling.virtual_clocks import Machine
from pgpu.structs import replace

MACHINE = Machine(1000, 2)
MODEL = waiting().job.gpu_model
USER = waiting().job.owner_uid
JOB = waiting().job.id


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def charged(ledger_path: Path, clock: Clock) -> Iterator[Ledger]:
    with closing(Ledger(ledger_path, now=clock)) as ledger:
        yield ledger


def grant(
    ledger: Ledger,
    *,
    memory_bytes: int = 100,
    time: VirtualTime | None = None,
    is_late: bool = False,
    sharing: SharingMode = SharingMode.TIME_SLICE,
) -> Entry:
    """Start the job on one GPU, as a round does."""
    with ledger.decision() as decision:
        entry = decision.add(waiting(), ())
        lease = Lease(JOB, (Slice("GPU-0", memory_bytes),), 1.0, sharing=sharing)
        entry = replace(entry, job=replace(entry.job, state=JobState.RUNNING, lease=lease))
        decision.put(entry)
        before = decision.precedence(MODEL).time
        admission = Admission((Grant(JOB, lease.slices, is_late),), (), (), None, time or VirtualTime())
        decision.put_precedence(MODEL, admission, before, MACHINE)
    return entry


def put(ledger: Ledger, entry: Entry) -> None:
    with ledger.decision() as decision:
        decision.put(entry)


def with_slice(entry: Entry, part: Slice) -> Entry:
    assert entry.job.lease is not None
    return replace(entry, job=replace(entry.job, lease=replace(entry.job.lease, slices=(part,))))


def used(ledger: Ledger) -> float:
    with ledger.view() as view:
        return view.precedence(MODEL).time.clocks.get(USER, 0.0)


def test_a_lease_is_charged_while_it_is_held_and_no_longer(charged: Ledger, clock: Clock) -> None:
    entry = grant(charged)
    clock.seconds += 10
    assert used(charged) == pytest.approx(1.0)
    put(charged, replace(entry, lease_released_at_seconds=2.0))
    clock.seconds += 10
    assert used(charged) == pytest.approx(1.0)


def test_a_share_of_compute_counts_where_it_is_larger(charged: Ledger, clock: Clock) -> None:
    entry = grant(charged)
    put(charged, with_slice(entry, Slice("GPU-0", 100, 0.5)))
    clock.seconds += 10
    assert used(charged) == pytest.approx(2.5)


def test_any_slice_of_a_mig_instance_is_charged_for_all_of_it(charged: Ledger, clock: Clock) -> None:
    with charged.decision() as decision:
        decision.put_gpus([instance_of("GPU-0", 250)], 1.0)
    grant(charged)
    clock.seconds += 10
    assert used(charged) == pytest.approx(2.5)
    rate = replace(MACHINE, instance_bytes={"GPU-0": 250}).rate_of(Held(JOB, USER, (Slice("GPU-0", 100),), 0.0))
    assert rate == 0.25, "rounds expect what the ledger charges"


def test_a_job_alone_on_its_gpu_is_charged_for_all_of_it(charged: Ledger, clock: Clock) -> None:
    grant(charged, sharing=SharingMode.EXCLUSIVE)
    clock.seconds += 10
    assert used(charged) == pytest.approx(5.0)


def test_time_before_a_resize_is_charged_by_the_size_before(charged: Ledger, clock: Clock) -> None:
    entry = grant(charged, memory_bytes=500)
    clock.seconds += 10
    put(charged, with_slice(entry, Slice("GPU-0", 100)))
    clock.seconds += 10
    assert used(charged) == pytest.approx(6.0)


@pytest.mark.parametrize("away", [{"parked_at_seconds": 5.0}, {"suspended_by": "other"}])
def test_a_job_off_its_gpu_is_not_charged(charged: Ledger, clock: Clock, away: dict[str, Any]) -> None:
    entry = grant(charged)
    clock.seconds += 10
    put(charged, replace(entry, job=replace(entry.job, **away)))
    clock.seconds += 100
    put(charged, entry)
    clock.seconds += 10
    assert used(charged) == pytest.approx(2.0)


def test_time_before_a_change_of_the_weight_is_charged_by_the_weight_before(charged: Ledger, clock: Clock) -> None:
    grant(charged)
    clock.seconds += 10
    with charged.decision() as decision:
        decision.put_quota(USER, Quota(weight=4.0))
    clock.seconds += 10
    assert used(charged) == pytest.approx(1.25)


def test_time_before_a_gpu_was_closed_is_charged_by_the_machine_of_before(charged: Ledger, clock: Clock) -> None:
    grant(charged, memory_bytes=500)
    clock.seconds += 10
    with charged.decision() as decision:
        before = decision.precedence(MODEL).time
        decision.put_precedence(MODEL, Admission((), (), (), None, before), before, Machine(500, 1))
    clock.seconds += 10
    assert used(charged) == pytest.approx(15.0)


def test_a_job_that_is_queued_again_pays_for_what_it_held(charged: Ledger, clock: Clock) -> None:
    entry = grant(charged)
    clock.seconds += 10
    with charged.decision() as decision:
        decision.requeue(JOB, 5.0, None)
        decision.put(replace(entry, job=replace(entry.job, state=JobState.WAITING, lease=None)))
    clock.seconds += 10
    assert used(charged) == pytest.approx(1.0)


def test_a_lease_of_an_earlier_boot_is_charged_no_further(charged: Ledger, clock: Clock) -> None:
    entry = grant(charged)
    clock.seconds += 10
    put(charged, with_slice(entry, Slice("GPU-0", 100, 0.1)))
    clock.seconds, clock.boot = 1e6, "second boot"
    put(charged, replace(entry, lease_released_at_seconds=2.0))
    assert used(charged) == pytest.approx(1.0)


def test_a_lease_that_outlives_its_boot_is_charged_again_from_its_next_write_on(charged: Ledger, clock: Clock) -> None:
    entry = grant(charged)
    clock.seconds += 10
    clock.seconds, clock.boot = 50.0, "second boot"
    put(charged, entry)
    clock.seconds += 10
    assert used(charged) == pytest.approx(1.0)


def test_floors_contenders_and_clocks_that_a_round_set_forward_are_kept(charged: Ledger, clock: Clock) -> None:
    after = VirtualTime({USER: 3.0, 8: 100.0}, {0: 90.0, -5: 80.0}, {(8, 0): True, (USER, 0): False, (8, -5): True})
    grant(charged, time=after)
    clock.seconds += 10
    with charged.view() as view:
        now = view.precedence(MODEL).time
        assert now.clocks == pytest.approx({USER: 4.0, 8: 100.0})
        assert (now.floors, now.contenders) == (after.floors, after.contenders)
        assert view.precedence("another model").time == VirtualTime()


def test_late_and_other_machine_time_is_counted_from_the_first_late_job_on(charged: Ledger, clock: Clock) -> None:
    entry = grant(charged, is_late=True)
    clock.seconds += 10

    def commit(late: float | None, other: float | None) -> None:
        with charged.decision() as decision:
            before = decision.precedence(MODEL).time
            after = replace(before, late_seconds=late, other_seconds=other)
            decision.put_precedence(MODEL, Admission((), (), (), None, after), before, MACHINE)

    commit(0.0, 0.0)
    clock.seconds += 10
    with charged.view() as view:
        now = view.precedence(MODEL).time
    assert now.late_seconds == pytest.approx(1.0)
    assert now.other_seconds == 0.0
    assert now.late_ids == {JOB}
    put(charged, replace(entry, lease_released_at_seconds=2.0))
    clock.seconds += 10
    with charged.view() as view:
        assert view.precedence(MODEL).time.late_seconds == pytest.approx(1.0)
    commit(None, None)
    assert used(charged) == pytest.approx(2.0)


steps = st.lists(
    st.tuples(
        st.sampled_from(["size", "compute", "park", "suspend", "weight", "reopen", "round"]),
        st.integers(1, 9),
        st.integers(0, 100),
    ),
    max_size=12,
)


@examples(15, 60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_clocks_are_the_sum_of_rate_and_time_by_weight_through_all_changes(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int, int]]
) -> None:
    clock = Clock()
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    ledger = Ledger(path, now=clock)
    entry = grant(ledger)
    expected, weight, last = 0.0, 1.0, 0.0
    for kind, amount, seconds in changes:
        clock.seconds += seconds
        lease = entry.job.lease
        assert lease is not None
        part = lease.slices[0]
        rate = max(part.memory_bytes / 1000, (part.compute_share or 0.0) / 2)
        if entry.job.parked_at_seconds is None and entry.job.suspended_by is None:
            expected += rate * seconds / weight
        if kind == "size":
            entry = with_slice(entry, replace(part, memory_bytes=amount * 100))
        elif kind == "compute":
            entry = with_slice(entry, replace(part, compute_share=amount / 10))
        elif kind == "park":
            parked = None if entry.job.parked_at_seconds is not None else 7.0
            entry = replace(entry, job=replace(entry.job, parked_at_seconds=parked))
        elif kind == "suspend":
            by = None if entry.job.suspended_by is not None else "other"
            entry = replace(entry, job=replace(entry.job, suspended_by=by))
        elif kind == "weight":
            weight = amount / 2
            with ledger.decision() as decision:
                decision.put_quota(USER, Quota(weight=weight))
        elif kind == "reopen":
            ledger.close()
            ledger = Ledger(path, now=clock)
        else:
            with ledger.decision() as decision:
                before = decision.precedence(MODEL).time
                decision.put_precedence(MODEL, Admission((), (), (), None, before), before, MACHINE)
        put(ledger, entry)
        now = used(ledger)
        assert now >= last
        last = now
    assert used(ledger) == pytest.approx(expected)
    ledger.close()
