"""What a round of admission is told by the ledger, without reading what each job would run."""

import threading

from tests.ledger_entries import add, waiting
from tests.waiting import DEADLINE_SECONDS

from pgpu.ledger import Entry, Ledger
from pgpu.model import JobState, Lease, Place, Slice
from pgpu.scheduling import NO_PRECEDENCE, Admission, OverdueReservation, Precedence, Quota, VirtualTime
from pgpu.scheduling.virtual_clocks import Machine
from pgpu.structs import replace


def test_waiting_jobs_are_told_by_model_in_order_of_arrival(ledger: Ledger) -> None:
    for number, model in enumerate(("m", None, "m", "other")):
        entry = waiting(f"{number}" * 12)
        place = Place(after=("a" * 12,) if number == 2 else ())
        add(ledger, replace(entry, job=replace(entry.job, gpu_model=model, owner_uid=number, place=place)))
    with ledger.view() as view:
        first, second = view.waiting("m")
        assert [each.job_id for each in view.waiting(None)] == ["1" * 12]
    assert (first.job_id, first.owner_uid, first.has_predecessors) == ("0" * 12, 0, False)
    assert (second.job_id, second.owner_uid, second.has_predecessors) == ("2" * 12, 2, True)
    assert first.request == waiting().job.request


def test_the_wait_of_a_job_that_others_held_counts_from_when_they_let_it_go(ledger: Ledger) -> None:
    entry = add(ledger, waiting())
    with ledger.decision() as decision:
        decision.put_reasons({entry.job.id: "waits for the end of another"})
        assert [each.eligible_at_seconds for each in decision.waiting(None)] == [entry.job.created_at_seconds]
        decision.mark_eligible([entry.job.id], 50.0)
        assert [each.eligible_at_seconds for each in decision.waiting(None)] == [50.0]
        after = decision.entry(entry.job.id).job
    assert (after.reason, after.created_at_seconds) == (None, entry.job.created_at_seconds)


def test_the_wait_of_another_try_counts_from_its_beginning(ledger: Ledger) -> None:
    entry = add(ledger, waiting())
    lease = Lease(entry.job.id, (Slice("GPU-0", 5),), 1.0)
    with ledger.decision() as decision:
        decision.put(replace(entry, job=replace(entry.job, state=JobState.RUNNING, lease=lease)))
        decision.requeue(entry.job.id, 70.0, None)
        decision.put(entry)
        assert [each.eligible_at_seconds for each in decision.waiting(None)] == [70.0]


def test_another_try_at_the_old_place_does_not_count_the_time_in_which_the_job_was_held(ledger: Ledger) -> None:
    entry = add(ledger, waiting())
    lease = Lease(entry.job.id, (Slice("GPU-0", 5),), 1.0)
    with ledger.decision() as decision:
        decision.hold([entry.job.id], 7, takes_over=False)
        decision.release_held([entry.job.id], 50.0)
        decision.put(replace(entry, job=replace(entry.job, state=JobState.RUNNING, lease=lease)))
        decision.requeue(entry.job.id, None, None)
        decision.put(entry)
        assert [each.eligible_at_seconds for each in decision.waiting(None)] == [50.0]


def test_those_that_hold_memory_are_told_until_it_is_free(ledger: Ledger) -> None:
    entry = add(ledger, waiting())
    lease = Lease(entry.job.id, (Slice("GPU-0", 5),), 1.0)
    granted = replace(entry, job=replace(entry.job, state=JobState.EXITED, lease=lease))
    with ledger.decision() as decision:
        assert decision.holding() == []
        decision.put(granted)
        assert [each.job.lease for each in decision.holding()] == [lease]
        decision.put(replace(granted, lease_released_at_seconds=2.0))
        assert decision.holding() == []


def _hold(ledger: Ledger, letter: str, owner_uid: int, *gpus: str, parked_at_seconds: float | None = None) -> Entry:
    entry = waiting(letter * 12)
    entry = add(ledger, replace(entry, job=replace(entry.job, owner_uid=owner_uid)))
    lease = Lease(entry.job.id, tuple(Slice(gpu, 5) for gpu in gpus), 1.0)
    job = replace(entry.job, state=JobState.RUNNING, lease=lease, parked_at_seconds=parked_at_seconds)
    with ledger.decision() as decision:
        decision.put(replace(entry, job=job))
    return replace(entry, job=job)


def test_all_reads_of_a_job_that_holds_memory_are_one_object_until_it_changes(ledger: Ledger) -> None:
    entry = add(ledger, waiting())
    with ledger.decision() as decision:
        decision.put(replace(entry, job=replace(entry.job, lease=Lease(entry.job.id, (Slice("GPU-0", 1),), 1.0))))
    with ledger.view() as view:
        [held] = view.holding()
        assert view.entry(entry.job.id) is held is ledger.entry(entry.job.id)
    with ledger.decision() as decision:
        decision.put(replace(held, job=replace(held.job, warning="late")))
    assert ledger.job(entry.job.id).warning == "late"
    with ledger.view() as view:
        assert view.holding()[0].job.warning == "late"


def test_jobs_on_a_gpu_of_several_users_are_paced_until_one_user_is_left(ledger: Ledger) -> None:
    for letter, owner_uid, gpu in (("a", 1, "GPU-0"), ("b", 1, "GPU-0"), ("c", 1, "GPU-1")):
        _hold(ledger, letter, owner_uid, gpu)
    with ledger.view() as view:
        assert view.paced() == []
    other = _hold(ledger, "d", 2, "GPU-0")
    _hold(ledger, "e", 2, "GPU-1", parked_at_seconds=3.0)
    with ledger.view() as view:
        assert [entry.job.id[0] for entry in view.paced()] == ["a", "b", "d"]
    with ledger.decision() as decision:
        decision.put(replace(other, lease_released_at_seconds=2.0))
        assert decision.paced() == []


def test_a_job_concerns_those_on_gpus_where_it_is_the_only_one_of_its_user(ledger: Ledger) -> None:
    for letter, owner_uid, gpus in (("a", 1, ["GPU-0"]), ("b", 2, ["GPU-0", "GPU-1"]), ("c", 3, ["GPU-2"])):
        _hold(ledger, letter, owner_uid, *gpus)
    own = "f" * 12
    with ledger.view() as view:
        assert view.beside_other_users(own, 4, ["GPU-0"]) == ["a" * 12, "b" * 12]
        assert view.beside_other_users(own, 1, ["GPU-0"]) == []
        assert view.beside_other_users(own, 1, ["GPU-0", "GPU-1"]) == ["b" * 12]
        assert view.beside_other_users("a" * 12, 1, ["GPU-0"]) == ["b" * 12]
        assert view.beside_other_users(own, 3, ["GPU-2"]) == []


def test_a_quota_is_kept_until_it_is_taken_back(ledger: Ledger) -> None:
    with ledger.decision() as decision:
        decision.put_quota(7, Quota(memory_bytes=5, jobs=None, weight=2.0))
        decision.put_quota(8, Quota(jobs=1))
        decision.put_quota(8, None)
    with ledger.view() as view:
        assert view.quotas() == {7: Quota(memory_bytes=5, weight=2.0)}


def test_gpus_stay_kept_for_a_job_until_it_waits_no_longer(ledger: Ledger) -> None:
    entry = add(ledger, waiting())
    reservation = OverdueReservation(entry.job.id, ("GPU-1", "GPU-0"), 10.0, 20.5, 30.0, 25.0)
    with ledger.decision() as decision:
        decision.put_precedence(entry.job.gpu_model, Admission((), (), (), reservation), VirtualTime(), Machine(0, 0))
    with ledger.view() as view:
        assert view.precedence(entry.job.gpu_model) == Precedence(reservation)
        assert view.precedence("another model") == NO_PRECEDENCE
    with ledger.decision() as decision:
        decision.put_precedence("another model", Admission((), (), ()), VirtualTime(), Machine(0, 0))
        assert decision.precedence(entry.job.gpu_model).reservation == reservation
        decision.put(replace(entry, job=replace(entry.job, state=JobState.CANCELLED)))
        assert decision.precedence(entry.job.gpu_model) == NO_PRECEDENCE
        decision.put(entry)
        assert decision.precedence(entry.job.gpu_model) == NO_PRECEDENCE


def test_a_version_tells_what_a_neighbouring_thread_wrote_meanwhile(ledger: Ledger) -> None:
    def version() -> object:
        with ledger.view() as view:
            return view.version()

    ledger.facts.put("key", "old")
    before = version()
    assert version() == before
    writer = threading.Thread(target=ledger.facts.put, args=("key", "new"))
    writer.start()
    writer.join(DEADLINE_SECONDS)
    assert version() != before
