"""Parked jobs that wait for their own GPU: where another would do at once, they are told to begin anew."""

from collections.abc import Sequence

from pgpu.model import Gpu, Request
from pgpu.scheduling import Admission, Candidate, GpuRoom, Quota, admit
from pgpu.scheduling.preemption import jobs_to_restart_elsewhere
from pgpu.units import GIB

NOW = 1000.0


def room(index: int, free_gib: int) -> GpuRoom:
    gpu = Gpu(f"GPU-{index}", "Fake", index, 10 * GIB, "1", is_simulated=True)
    return GpuRoom(gpu, 0, 0, (10 - free_gib) * GIB)


def parked(job_id: str = "parked", gib: int = 4) -> Candidate:
    return Candidate(job_id, Request(gib * GIB), gpu_uuid="GPU-0")


def found(
    rooms: Sequence[GpuRoom],
    queue: Sequence[Candidate],
    quotas: dict[int, Quota] | None = None,
    staying: tuple[str, ...] = (),
) -> tuple[str, ...]:
    def play(line: Sequence[Candidate]) -> Admission:
        return admit(rooms, line, NOW, quotas=quotas)

    return jobs_to_restart_elsewhere(play(queue), queue, play, staying)


def test_who_has_its_place_again_stays() -> None:
    assert found([room(0, 4), room(1, 10)], [parked()]) == ()


def test_where_another_gpu_has_room_it_begins_anew() -> None:
    assert found([room(0, 3), room(1, 4)], [parked()]) == ("parked",)


def test_what_would_lose_its_work_waits_for_its_own_gpu() -> None:
    assert found([room(0, 3), room(1, 4)], [parked()], staying=("parked",)) == ()


def test_where_none_has_room_it_waits() -> None:
    assert found([room(0, 3), room(1, 3)], [parked()]) == ()


def test_whose_owner_may_have_no_more_waits() -> None:
    assert found([room(0, 3), room(1, 4)], [parked()], {0: Quota(memory_bytes=GIB)}) == ()


def test_no_more_begin_anew_than_have_room() -> None:
    assert len(found([room(0, 3), room(1, 4)], [parked("a"), parked("b")])) == 1


def test_room_that_somebody_else_starts_in_is_nobodys() -> None:
    other = Candidate("other", Request(4 * GIB), eligible_at_seconds=-1e6)
    assert found([room(0, 3), room(1, 4)], [parked(), other]) == ()
