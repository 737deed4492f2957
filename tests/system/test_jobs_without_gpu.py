"""Jobs without a GPU through the whole engine: how many run at a time, after whom, and what outlives a crash."""

import signal
from collections.abc import Iterator

import pytest
from tests.system.engine_worlds import LONG, World, kill, world
from tests.waiting import until

from pgpu.errors import RequestError
from pgpu.ledger import ALL_GPUS
from pgpu.model import Job, JobState, ProcessHolder, Submission


@pytest.fixture
def bare() -> Iterator[World]:
    """A machine without a GPU, on which one such job runs at a time."""
    with world((), jobs_without_gpu=1) as made:
        yield made


def submit(made: World, command: tuple[str, ...] = LONG, **words: object) -> Job:
    return made.submit(command, gib=0, count=0, **words)  # type: ignore[arg-type]


def test_the_next_one_starts_when_one_ends(bare: World) -> None:
    first, second = submit(bare), submit(bare, ("true",))
    bare.until_running(first)
    until(lambda: "as many run as may" in (bare.reason(second) or ""))
    bare.client.stop(first.id, grace_seconds=0)
    assert bare.client.wait(second.id).exit_code == 0


def test_who_would_not_wait_is_told_so(bare: World) -> None:
    bare.until_running(submit(bare))
    refused = submit(bare, ("true",), timeout=0)
    assert (refused.state, refused.wait_timed_out) == (JobState.CANCELLED, True)


def test_its_supervisor_s_death_ends_it_not_and_its_own_frees_its_place(bare: World) -> None:
    job, waiting = submit(bare), submit(bare, ("true",))
    bare.until_running(job)
    dead = bare.kill_supervisor(job)
    until(lambda: bare.entry(job).supervisor not in {None, dead})
    assert bare.state(job) is JobState.RUNNING
    holder = bare.entry(job).job.holder
    assert isinstance(holder, ProcessHolder)
    kill(holder)
    assert bare.client.wait(waiting.id).exit_code == 0


def test_only_an_administrator_who_closes_everything_keeps_them_waiting() -> None:
    with world((10,)) as made:
        with made.engine.ledger.decision() as decision:
            decision.close_gpu("GPU-0", 0.0)
        assert made.client.wait(submit(made, ("true",)).id).exit_code == 0
        with made.engine.ledger.decision() as decision:
            decision.close_gpu(ALL_GPUS, 0.0)
        job = submit(made, ("true",))
        until(lambda: "administrator" in (made.reason(job) or ""))
        with made.engine.deciding() as decision:
            decision.open_gpu(ALL_GPUS)
        assert made.client.wait(job.id).exit_code == 0


def test_it_sees_no_gpu_gets_signals_and_cannot_be_resized(bare: World) -> None:
    script = 'trap "exit 9" USR1; echo "[$CUDA_VISIBLE_DEVICES]"; while :; do sleep 0.01; done'
    job = submit(bare, ("bash", "-c", script))
    until(lambda: any(part == b"[]\n" for _, part in bare.client.logs(job.id, follow=False)))
    with pytest.raises(RequestError, match="no GPU"):
        bare.client.resize(job.id, 1 << 30)
    bare.client.signal(job.id, signal.SIGUSR1)
    ended = bare.client.wait(job.id)
    assert (ended.exit_code, ended.peak_bytes, bare.client.waste()) == (9, None, [])


def test_one_request_may_hold_both_kinds() -> None:
    with world((10,)) as made:
        one, other = submit(made), made.submit(gib=1)
        specs = [(one.spec, one.request), (other.spec, other.request)]
        jobs = made.client.submit_all([Submission(spec, request) for spec, request in reversed(specs)])
        for job in (one, other, *jobs):
            made.until_running(job)
        leases = [made.entry(job).job.lease for job in jobs]
        assert [len(lease.slices) for lease in leases if lease is not None] == [1, 0]
