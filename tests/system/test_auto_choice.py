"""Which mode `auto` gives a job, by what is known of its program, of those that are there, and of how long it would wait."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tests.unit.test_advising import PROFILE

from pgpu.engine.admission.auto_sharing import AutoSharing, keep_declined
from pgpu.engine.history.run_history import history_name
from pgpu.ledger import Entry, Ledger
from pgpu.model import (
    Demand,
    Evidence,
    Gpu,
    Job,
    JobSpec,
    JobState,
    Lease,
    Profile,
    Request,
    Resource,
    Run,
    SharingMode,
    SharingWish,
    Slice,
)
from pgpu.scheduling import GpuRoom
from pgpu.scheduling.capacity import IDLE, mode_of
from pgpu.structs import replace
from pgpu.units import GIB

GPU = Gpu("GPU-0", "fake", 0, 24 * GIB, "1.0", is_simulated=True, compute_capability=(8, 6))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def chosen(
    ledger: Ledger,
    profile: Profile,
    *requests: Request,
    in_containers: Mapping[int, str | None] | None = None,
    room: GpuRoom | None = None,
    holding: Sequence[Entry] = (),
    lasting_seconds: float | None = None,
    auto: AutoSharing | None = None,
) -> list[SharingWish]:
    """Let jobs of one program wait, some in containers with a user, and return in which mode they would start."""
    users = in_containers or {}
    known = replace(profile, gpu_name=history_name(GPU), signature="program", owner_uid=os.getuid())
    with ledger.decision() as decision:
        decision.profiles.add(known, "0" * 12)
        for place, request in enumerate(requests):
            spec = (
                JobSpec(("true",), "docker", image="debian", user=users[place])
                if place in users
                else JobSpec(("true",), "process")
            )
            waiting = Job(
                f"{place:x}" * 12, spec, request, JobState.WAITING, 1.0, signature="program", owner_uid=os.getuid()
            )
            decision.put(replace(decision.add(Entry(waiting), ()), job=waiting))
    auto = auto or AutoSharing(has_mps=True)
    lasting = {} if lasting_seconds is None else {("program", os.getuid()): lasting_seconds}
    with ledger.view() as view:
        rooms = [room or GpuRoom(GPU, 0, 0, 0)]
        return [each.request.sharing for each in auto.choose_modes(view, rooms, view.waiting(None), holding, lasting)]


LIGHT = replace(
    PROFILE,
    demands=(Demand(Resource.SM, 0.2, Evidence.COUNTERS), Demand(Resource.DRAM, 0.1, Evidence.COUNTERS)),
    footprint_bytes=0,
)
AUTO = Request(GIB, sharing=SharingWish.AUTO)


def test_jobs_of_one_program_get_the_mode_that_each_of_them_can_have(ledger: Ledger) -> None:
    on_two, paged, large = (
        replace(AUTO, gpu_count=2),
        replace(AUTO, oversubscribes=True),
        replace(AUTO, memory_bytes=25 * GIB),
    )
    mps, sliced = SharingWish.MPS, SharingWish.TIME_SLICE
    requests = (AUTO, on_two, paged, large, AUTO, AUTO, AUTO)
    users = {5: None, 6: "somebody"}
    assert chosen(ledger, LIGHT, *requests, in_containers=users) == [mps, sliced, sliced, sliced, mps, mps, sliced]


def test_a_parked_job_returns_in_time_slices_in_which_it_began(ledger: Ledger) -> None:
    assert chosen(ledger, LIGHT, AUTO) == [SharingWish.MPS]
    with ledger.view() as view:
        parked = [replace(each, gpu_uuid=GPU.uuid) for each in view.waiting(None)]
        [back] = AutoSharing(has_mps=True).choose_modes(view, [GpuRoom(GPU, 0, 0, 0)], parked, (), {})
    assert mode_of(back.request.sharing) is SharingMode.TIME_SLICE


def test_a_program_that_could_be_no_client_lately_is_not_tried_again(ledger: Ledger) -> None:
    keep_declined(ledger.facts, "program", os.getuid())
    assert chosen(ledger, LIGHT, AUTO) == [SharingWish.TIME_SLICE]


def there(seconds_ago: float) -> Entry:
    """A job of the same program in time slices."""
    began = time.time() - seconds_ago
    lease = Lease("e" * 12, (Slice(GPU.uuid, GIB),), began)
    spec = JobSpec(("true",), "process")
    words = {"signature": "program", "owner_uid": os.getuid(), "started_at_seconds": began}
    return Entry(Job("e" * 12, spec, AUTO, JobState.RUNNING, began, lease=lease, **words))  # type: ignore[arg-type]


IN_TIME_SLICES = GpuRoom(GPU, 0, 0, GIB, tenancy=IDLE.with_job(SharingMode.TIME_SLICE, 0))


@pytest.mark.parametrize(
    ("seconds_ago", "lasting_seconds", "mode"),
    [(90, 100, SharingWish.MPS), (10, 100, SharingWish.TIME_SLICE), (90, None, SharingWish.TIME_SLICE)],
    ids=["soon-empty", "just-begun", "nobody-knows"],
)
def test_a_job_waits_for_a_gpu_in_time_slices_that_is_empty_soon(
    ledger: Ledger, seconds_ago: float, lasting_seconds: float | None, mode: SharingWish
) -> None:
    found = chosen(
        ledger, LIGHT, AUTO, room=IN_TIME_SLICES, holding=[there(seconds_ago)], lasting_seconds=lasting_seconds
    )
    assert found == [mode]


def test_whoever_may_wait_for_so_long_alone_waits_for_no_mode(ledger: Ledger) -> None:
    words = {"room": IN_TIME_SLICES, "holding": [there(90)], "lasting_seconds": 100.0}
    with ledger.decision() as decision:
        known = replace(LIGHT, gpu_name=history_name(GPU), signature="program", owner_uid=os.getuid())
        decision.profiles.add(known, "0" * 12)
        job = Job("0" * 12, JobSpec(("true",), "process"), AUTO, JobState.WAITING, 1.0, signature="program")
        job = replace(job, owner_uid=os.getuid())
        decision.add(Entry(job, wait_deadline_seconds=time.time() + 1000), ())
    assert chosen(ledger, LIGHT, **words) == [SharingWish.TIME_SLICE]  # type: ignore[arg-type]


@pytest.mark.parametrize(("taken_gib", "mode"), [(1, SharingWish.TIME_SLICE), (24, SharingWish.MPS)])
def test_a_job_that_could_have_started_gives_up_to_wait_once_the_whole_wait_is_too_long(
    ledger: Ledger, taken_gib: int, mode: SharingWish
) -> None:
    """Who could not start anyway has passed up nothing."""
    clock = [0.0]
    auto = AutoSharing(has_mps=True, now_seconds=lambda: clock[0])
    room = replace(IN_TIME_SLICES, granted_bytes=taken_gib * GIB)
    known = replace(LIGHT, gpu_name=history_name(GPU), signature="program", owner_uid=os.getuid())
    waiting = Job("0" * 12, JobSpec(("true",), "process"), AUTO, JobState.WAITING, 1.0, signature="program")
    with ledger.decision() as decision:
        decision.profiles.add(known, "0" * 12)
        decision.add(Entry(replace(waiting, owner_uid=os.getuid())), ())
    words = {"room": room, "holding": [there(90)], "lasting_seconds": 100.0, "auto": auto}
    assert chosen(ledger, LIGHT, **words) == [SharingWish.MPS]  # type: ignore[arg-type]
    clock[0] = 95.0
    assert chosen(ledger, LIGHT, **words) == [mode]  # type: ignore[arg-type]


def ran(sharing: SharingMode, *, began: float, job_id: str) -> Run:
    return Run("program", history_name(GPU), job_id, os.getuid(), GIB, 1, 1, 0, 100.0, began + 100, 0, sharing=sharing)


def test_what_a_program_lost_in_time_slices_makes_it_wait_until_it_ran_under_mps(ledger: Ledger) -> None:
    """Runs that took turns count as long as they were together."""
    with ledger.decision() as decision:
        for begun, sharing in enumerate([SharingMode.TIME_SLICE, SharingMode.TIME_SLICE]):
            for who in range(2):
                job_id = f"d{begun}{who}" * 4
                lease = Lease(job_id, (Slice(GPU.uuid, GIB),), 1.0)
                job = Job(job_id, JobSpec(("true",), "process"), AUTO, JobState.WAITING, 1.0)
                entry = decision.add(Entry(job), ())
                job = replace(job, state=JobState.EXITED, lease=lease, started_at_seconds=100.0 * begun)
                job = replace(job, finished_at_seconds=100.0 * begun + 100)
                decision.put(replace(entry, job=job, lease_released_at_seconds=100.0 * begun + 100))
                if who:
                    decision.history.add(ran(sharing, began=100.0 * begun, job_id=job_id))
    call = ("program", os.getuid())
    with ledger.view() as view:
        assert view.history.sliced_seconds(call, history_name(GPU)) == 200.0
    assert chosen(ledger, LIGHT, AUTO, room=IN_TIME_SLICES, holding=[there(40)], lasting_seconds=100.0) == [
        SharingWish.MPS
    ]
    with ledger.decision() as decision:
        decision.history.add(ran(SharingMode.MPS, began=300.0, job_id="d11" * 4))
        assert decision.history.sliced_seconds(call, history_name(GPU)) == 0.0


def test_the_smaller_of_one_program_is_not_kept_from_mps_by_a_larger_before_it(ledger: Ledger) -> None:
    assert chosen(ledger, LIGHT, replace(AUTO, gpu_count=2), AUTO) == [SharingWish.TIME_SLICE, SharingWish.MPS]


def test_what_launches_alone_tell_starts_nobody_under_mps(ledger: Ledger) -> None:
    launches = replace(LIGHT, demands=(Demand(Resource.SM, 0.1, Evidence.LAUNCHES),))
    assert chosen(ledger, launches, AUTO, AUTO) == [SharingWish.TIME_SLICE] * 2
