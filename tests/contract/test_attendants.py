"""The steps of an agent's jobs, where no thread can be created and where one fails."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.machine import make_machine

from pgpu.engine.agent.attendants import Attendants
from pgpu.engine.agent.containers import SubmissionTurn
from pgpu.engine.engine import Engine
from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.host.thread_turns import limit_turns
from pgpu.runtimes.container_record import RECORD
from pgpu.units import GIB

Attend = Callable[[Engine, str, SubmissionTurn, Callable[[], EventLoop]], Iterator[EventLoop]]


@pytest.fixture
def main_loop() -> Iterator[EventLoop]:
    loop = EventLoop()
    yield loop
    loop.close()
    limit_turns(None)
    threading.stack_size(0)


def attending(root: Path, loop: EventLoop, job_ids: str, attend: Attend) -> Attendants:
    """Attend containers, of which each job has the record alone."""
    engine = make_machine(root, [GIB])
    attendants = Attendants(loop, engine, lambda _: engine, attend, lambda *_: None, lambda: None)
    for job_id in job_ids:
        home = engine.settings.runtime_directory / "slices" / job_id
        home.mkdir(parents=True)
        (home / RECORD).touch()
        attendants.start(job_id)
    return attendants


def test_calm_jobs_go_on_although_no_thread_can_be_created(tmp_path: Path, main_loop: EventLoop) -> None:
    calm: list[EventLoop] = []
    ended_in: list[str] = []
    may_end = threading.Event()
    reader, writer = os.pipe()

    def attend(_engine: Engine, _id: str, _turn: SubmissionTurn, make: Callable[[], EventLoop]) -> Iterator[EventLoop]:
        loop = make()
        loop.watch(reader, READABLE, lambda _: None)
        calm.append(loop)
        yield loop
        may_end.wait()
        ended_in.append(threading.current_thread().name)
        loop.close()

    attendants = attending(tmp_path, main_loop, "ab", attend)
    main_loop.run_until(
        lambda: len(calm) == 2 and not [each for each in threading.enumerate() if each.name in {"a", "b"}]
    )

    threading.stack_size(1 << 47)  # all of the address space: the kernel has no room for it
    os.write(writer, b".")
    main_loop.turn()
    may_end.set()
    main_loop.run_until(lambda: not attendants.ids)
    assert ended_in == ["spare", "spare"]
    attendants.close()
    os.close(reader)
    os.close(writer)


def test_a_step_that_fails_without_a_log_gives_its_job_back(tmp_path: Path, main_loop: EventLoop) -> None:
    def attend(_engine: Engine, _id: str, _turn: SubmissionTurn, _make: Callable[[], EventLoop]) -> Iterator[EventLoop]:
        yield from ()
        raise SystemExit

    attendants = attending(tmp_path, main_loop, "a", attend)
    main_loop.run_until(lambda: not attendants.ids)
    attendants.close()
