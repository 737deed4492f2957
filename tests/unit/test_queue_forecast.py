"""When a waiting job will probably start."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pgpu.model import Gpu, Request, Slice
from pgpu.scheduling import Candidate, GpuRoom, Held, OrderRules, Quota, expected_starts
from pgpu.scheduling.forecast import MOST_JOBS
from pgpu.structs import replace
from pgpu.units import GIB

NOW = 10_000.0


def room(gib: int = 24, granted_gib: int = 0) -> GpuRoom:
    return GpuRoom(Gpu("GPU-0", "Test", 0, gib * GIB, "1.0", is_simulated=False), 0, 0, granted_gib * GIB)


def job(name: str, gib: int, lasts: float | None = None, uid: int = 0) -> Candidate:
    return Candidate(name, Request(gib * GIB), None, uid, NOW, lasts)


def holds(gib: int, lasts: float | None) -> Held:
    return Held("running", 0, (Slice("GPU-0", gib * GIB),), NOW, 0.0, lasts)


def start_times(*arguments: Any, **words: Any) -> dict[str, float]:
    return {job_id: start.at_seconds for job_id, start in expected_starts(*arguments, **words).items()}


def test_a_job_starts_when_the_one_that_holds_its_memory_ends() -> None:
    waiting = [job("first", 20, 100), job("second", 20, 200)]
    starts = start_times([room(granted_gib=16)], waiting, NOW, held=[holds(16, 60)])
    assert starts == {"first": NOW + 60, "second": NOW + 160}


def test_jobs_of_unknown_length_are_taken_to_run_as_long_as_the_rules_say() -> None:
    waiting = [job("first", 20), job("second", 20)]
    starts = start_times([room()], waiting, NOW, rules=OrderRules(default_duration_seconds=50))
    assert starts == {"first": NOW, "second": NOW + 50}


def test_a_start_is_known_only_while_every_end_before_it_is_predicted_from_runs() -> None:
    def known(*held: Held, lasts: float | None = 10) -> dict[str, str | None]:
        waiting = [job("first", 20, lasts), job("second", 20, lasts)]
        starts = expected_starts([room(granted_gib=16)], waiting, NOW, held=held)
        return {job_id: start.assumed for job_id, start in starts.items()}

    assert known(holds(16, 60)) == {"first": None, "second": None}
    assert known(holds(16, 60), lasts=None) == {"first": None, "second": "first"}
    assert known(holds(16, None)) == {"first": "running", "second": "running"}
    overrun = replace(holds(16, 60), granted_at_seconds=NOW - 61)
    assert known(overrun) == {"first": "running", "second": "running"}


def bounds(*arguments: Any, **words: Any) -> dict[str, tuple[float | None, float | None]]:
    found = expected_starts(*arguments, **words)
    return {
        job_id: (
            None if start.not_before_seconds is None else start.not_before_seconds - NOW,
            None if start.by_seconds is None else start.by_seconds - NOW,
        )
        for job_id, start in found.items()
    }


def test_an_unknown_start_is_not_before_known_ends_make_room() -> None:
    # Behind a job of unknown length: it ends some time after 60 s.
    waiting = [job("first", 20), job("second", 20)]
    assert bounds([room(granted_gib=16)], waiting, NOW, held=[holds(16, 60)]) == {
        "first": (None, None),  # known
        "second": (60, None),
    }
    # What is known makes no room, and what is unknown may end now.
    assert bounds([room(granted_gib=16)], waiting[:1], NOW, held=[holds(16, None)]) == {"first": (None, None)}


def test_an_unknown_start_comes_at_the_latest_when_known_ends_make_room() -> None:
    gpus = [
        GpuRoom(Gpu(f"GPU-{number}", "Test", number, 24 * GIB, "1.0", is_simulated=False), 0, 0, 16 * GIB)
        for number in range(2)
    ]
    unknown = replace(holds(16, None), granted_at_seconds=NOW - 5)
    known = Held("known", 0, (Slice("GPU-1", 16 * GIB),), NOW, 0.0, 90)
    rules = OrderRules(default_duration_seconds=50)
    waiting = [job("first", 20, 10)]
    assert start_times(gpus, waiting, NOW, held=[unknown, known], rules=rules) == {"first": NOW + 45}
    assert bounds(gpus, waiting, NOW, held=[unknown, known], rules=rules) == {"first": (None, 90)}
    overdue = replace(unknown, duration_seconds=3)
    assert bounds(gpus, waiting, NOW, held=[overdue, known], rules=rules) == {"first": (None, 90)}


def test_an_unknown_start_behind_another_job_has_no_latest_time() -> None:
    # If the job of unknown length ends first, `large` starts at 90 s and takes the whole GPU; else `small` starts then.
    held = [holds(8, None), replace(holds(12, 90), job_id="known")]
    waiting = [job("large", 24), job("small", 12)]
    rooms = [room(granted_gib=20)]
    rules = OrderRules(default_duration_seconds=50)
    assert bounds(rooms, waiting, NOW, held=held, rules=rules) == {"large": (90, None), "small": (None, None)}


@given(
    st.lists(st.tuples(st.integers(1, 24), st.sampled_from((None, 20, 90))), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 12), st.sampled_from((None, 5, 60))), max_size=2),
    st.integers(1, 200),
)
def test_a_start_is_never_before_its_lower_bound_however_long_unknown_jobs_run(
    wanted: list[tuple[int, int | None]], running: list[tuple[int, int | None]], default_seconds: int
) -> None:
    held = [replace(holds(gib, lasts), job_id=f"held{number}") for number, (gib, lasts) in enumerate(running)]
    waiting = [job(f"job{number}", gib, lasts) for number, (gib, lasts) in enumerate(wanted)]
    rules = OrderRules(default_duration_seconds=default_seconds)
    rooms = [room(granted_gib=sum(gib for gib, _ in running))]
    for start in expected_starts(rooms, waiting, NOW, held=held, rules=rules).values():
        assert start.not_before_seconds is None or start.not_before_seconds <= start.at_seconds


def test_nothing_is_foretold_of_a_job_that_no_end_will_let_start() -> None:
    outsiders = GpuRoom(room().gpu, 0, 10 * GIB, 0)
    assert start_times([outsiders], [job("large", 20)], NOW) == {}
    assert start_times([room()], [job("banned", 1)], NOW, quotas={0: Quota(jobs=0)}) == {}


def test_the_end_of_a_long_queue_is_left_open() -> None:
    starts = start_times([room()], [job(f"job{i}", 20, 1) for i in range(MOST_JOBS + 50)], NOW)
    assert len(starts) == MOST_JOBS + 1


def test_a_job_that_waits_for_a_less_busy_gpu_starts_at_the_end_of_its_hold() -> None:
    busy = replace(holds(2, 1500), usual_demand=0.9)
    waiting = [replace(job("held back", 2, 1200), usual_demand=0.9)]
    assert start_times([room(granted_gib=2)], waiting, NOW, held=[busy]) == {"held back": NOW + 1200}


def test_a_job_whose_wait_is_limited_is_not_forecast_as_held_back() -> None:
    busy = replace(holds(20, 1500), usual_demand=0.9)
    soon = replace(holds(2, 60), job_id="soon", usual_demand=0.1)
    limited = replace(job("limited", 4, 1200), usual_demand=0.9, deadline_seconds=NOW + 600)
    assert start_times([room(granted_gib=22)], [limited], NOW, held=[busy, soon]) == {"limited": NOW + 60}


def test_the_gpu_is_forecast_with_the_start() -> None:
    other = GpuRoom(Gpu("GPU-1", "Test", 1, 24 * GIB, "1.0", is_simulated=False), 0, 0, 0)
    starts = expected_starts([room(granted_gib=16), other], [job("first", 20, 100)], NOW, held=[holds(16, 60)])
    assert starts["first"].gpu_uuids == ("GPU-1",)


@given(st.lists(st.tuples(st.integers(1, 24), st.integers(1, 100)), max_size=8))
def test_at_no_foretold_moment_more_is_held_than_there_is(parts: list[tuple[int, int]]) -> None:
    waiting = [job(f"job{i}", gib, lasts) for i, (gib, lasts) in enumerate(parts)]
    starts = start_times([room()], waiting, NOW)
    assert starts.keys() == {each.job_id for each in waiting}
    for moment in starts.values():
        holding = [w for w in waiting if starts[w.job_id] <= moment < starts[w.job_id] + (w.duration_seconds or 0)]
        assert sum(each.request.memory_bytes for each in holding) <= 24 * GIB


def test_a_job_that_goes_after_others_starts_once_the_last_of_them_has_ended_and_it_fits() -> None:
    later = [(job("third", 20, 10), {"second", "running"}), (job("fourth", 20, 10), {"third"})]
    waiting = [job("first", 20, 100), job("second", 4, 30)]
    starts = start_times([room(granted_gib=4)], waiting, NOW, held=[holds(4, 40)], later=later)
    assert starts == {"second": NOW, "first": NOW + 30, "third": NOW + 130, "fourth": NOW + 140}


def test_the_wait_of_a_job_that_goes_after_others_counts_from_their_end() -> None:
    chained, urgent = replace(job("chained", 20, 10), eligible_at_seconds=0.0), job("urgent", 20, 10)
    urgent = replace(urgent, request=Request(20 * GIB, priority=50))
    later = [(chained, {"running"}), (urgent, {"running"})]
    assert start_times([room(granted_gib=24)], [], NOW, held=[holds(24, 60)], later=later) == {
        "urgent": NOW + 60,
        "chained": NOW + 70,
    }


def test_nothing_is_foretold_of_a_job_that_only_the_limit_of_its_array_keeps_back() -> None:
    later = [(job("element", 1, 10), set[str]()), (job("last", 1, 10), {"element"})]
    assert start_times([room(granted_gib=20)], [], NOW, held=[holds(20, 60)], later=later) == {}


def test_nothing_is_foretold_of_a_job_that_goes_after_one_of_another_queue() -> None:
    assert start_times([room()], [], NOW, later=[(job("third", 1, 10), {"elsewhere"})]) == {}
