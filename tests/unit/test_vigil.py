"""Who watches whom: every supervisor's death is noticed by somebody, and wakes only a few."""

from hypothesis import given
from hypothesis import strategies as st

from pgpu.engine.supervisor.vigil import is_head, watched
from pgpu.ledger import Entry
from pgpu.model import Job, JobSpec, JobState, Lease, ProcessHolder, Request, Slice


def entry(number: int, state: JobState, *, is_supervised: bool = True, model: str = "m") -> Entry:
    is_granted = state is not JobState.WAITING
    lease = Lease(f"job{number}", (Slice("GPU-0", 1),), 0.0) if is_granted else None
    holder = ProcessHolder(1000 + number, 1, "b") if state is JobState.RUNNING else None
    job = Job(
        f"job{number}", JobSpec((), "process"), Request(1), state, 0.0, lease=lease, holder=holder, gpu_model=model
    )
    return Entry(job, number, supervisor=ProcessHolder(number + 1, 1, "b") if is_supervised else None)


states = st.sampled_from([JobState.WAITING, JobState.STARTING, JobState.RUNNING])
ledgers = st.lists(st.tuples(states, st.booleans(), st.sampled_from("mn")), min_size=2, max_size=12).map(
    lambda parts: [entry(i, s, is_supervised=b, model=m) for i, (s, b, m) in enumerate(parts)]
)


@given(ledgers)
def test_every_supervisor_is_watched_by_another(entries: list[Entry]) -> None:
    supervised = [each for each in entries if each.supervisor is not None]
    if len(supervised) > 1:
        for each in supervised:
            others = [other for other in supervised if other is not each]
            assert any(each.supervisor in watched(other, entries) for other in others)


@given(ledgers)
def test_the_head_of_a_queue_watches_all_that_hold_its_gpus(entries: list[Entry]) -> None:
    for head in entries:
        if head.supervisor is not None and is_head(head, entries):
            for other in entries:
                if other.job.state is JobState.RUNNING and other.job.gpu_model == head.job.gpu_model:
                    assert other.job.holder in watched(head, entries)


@given(ledgers)
def test_all_others_watch_one_process_at_most(entries: list[Entry]) -> None:
    for each in entries:
        if each.supervisor is not None and not is_head(each, entries):
            assert len(watched(each, entries)) <= 1


@given(ledgers)
def test_each_kind_of_gpu_has_one_head_if_anybody_waits(entries: list[Entry]) -> None:
    for model in "mn":
        waiting = [e for e in entries if e.job.gpu_model == model and e.job.state is JobState.WAITING]
        heads = [e for e in entries if e.job.gpu_model == model and is_head(e, entries)]
        assert heads == waiting[:1]


def test_nobody_watches_itself() -> None:
    alone = entry(0, JobState.WAITING)
    assert watched(alone, [alone]) == set()
