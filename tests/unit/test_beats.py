"""Periodic work of a job's loop, made by another thread while the loop's own thread sleeps."""

import itertools
import os
import selectors
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.engine.beats import Beats, JobLoop
from pgpu.engine.event_loop import READABLE, EventLoop
from pgpu.engine.write_watch import WriteWatch


class Worker:
    """A thread that runs a loop of its own until it is released; `prepare` is called there first."""

    def __init__(self, beats: Beats, prepare: Callable[[JobLoop], object]) -> None:
        self.error: Exception | None = None
        self._is_over = False
        self._has_begun = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(beats, prepare), daemon=True)
        self.thread.start()
        assert self._has_begun.wait(DEADLINE_SECONDS)
        until(self.sleeps)

    def _run(self, beats: Beats, prepare: Callable[[JobLoop], object]) -> None:
        self.loop = beats.make_loop()
        prepare(self.loop)
        self._has_begun.set()
        try:
            self.loop.run_until(lambda: self._is_over)
        except ValueError as exc:
            self.error = exc
        self.loop.close()

    def sleeps(self) -> bool:
        """Whether the thread waits for its descriptors and timers."""
        return not self.loop._at_work.locked()

    def end(self) -> None:
        """Have the thread end at a strike, and wait for it."""
        self._is_over = True
        self.loop.call_on_beat(lambda: None, is_light=lambda: False)
        self.loop.strike()
        self.thread.join(DEADLINE_SECONDS)


@pytest.fixture
def beats() -> Iterator[Beats]:
    loop = EventLoop()
    yield Beats(loop)
    loop.close()


def test_work_that_cannot_block_is_done_by_the_striking_thread_each_time(beats: Beats) -> None:
    done: list[threading.Thread] = []

    def work(loop: JobLoop) -> None:
        loop.call_on_beat(lambda: work(loop))
        done.append(threading.current_thread())

    worker = Worker(beats, work)
    beats.strike()
    beats.strike()
    assert done == [worker.thread, *[threading.main_thread()] * 2]
    worker.end()


def test_work_that_may_block_is_left_to_the_thread(beats: Beats) -> None:
    done: list[threading.Thread] = []
    worker = Worker(
        beats, lambda loop: loop.call_on_beat(lambda: done.append(threading.current_thread()), is_light=lambda: False)
    )
    beats.strike()
    until(lambda: done == [worker.thread])
    until(worker.sleeps)
    worker.end()


def test_work_that_is_due_while_the_thread_is_at_work_is_done_before_it_sleeps(beats: Beats) -> None:
    done: list[threading.Thread] = []
    is_busy, may_go_on = threading.Event(), threading.Event()

    def be_busy() -> None:
        is_busy.set()
        assert may_go_on.wait(DEADLINE_SECONDS)

    def prepare(loop: JobLoop) -> None:
        loop.call_on_beat(be_busy, is_light=lambda: False)

    worker = Worker(beats, prepare)
    beats.strike()
    assert is_busy.wait(DEADLINE_SECONDS)
    worker.loop.call_on_beat(lambda: done.append(threading.current_thread()))
    beats.strike()
    assert done == []
    may_go_on.set()
    until(lambda: done == [worker.thread])
    until(worker.sleeps)
    worker.end()


def test_an_error_of_the_work_is_raised_in_the_thread_of_the_loop(beats: Beats) -> None:
    def fail() -> None:
        raise ValueError

    worker = Worker(beats, lambda loop: loop.call_on_beat(fail))
    beats.strike()
    worker.thread.join(DEADLINE_SECONDS)
    assert isinstance(worker.error, ValueError)


def test_a_timer_that_the_work_sets_is_kept(beats: Beats) -> None:
    called = threading.Event()

    def prepare(loop: JobLoop) -> None:
        def set_timer() -> None:
            loop.call_later(0.0, called.set)

        loop.call_on_beat(set_timer)

    worker = Worker(beats, prepare)
    beats.strike()
    assert called.wait(DEADLINE_SECONDS)
    until(worker.sleeps)
    worker.end()


def test_no_work_is_done_for_a_loop_that_was_closed(beats: Beats) -> None:
    done: list[int] = []
    worker = Worker(beats, lambda _loop: None)
    worker.end()
    worker.loop.call_on_beat(lambda: done.append(1))
    worker.loop.strike()
    beats.strike()
    assert done == []


def test_a_calm_loop_is_struck_without_a_thread_and_goes_on_in_another(beats: Beats) -> None:
    loop, done = beats.make_loop(calm_seconds=0.0), list[threading.Thread]()

    def work() -> None:
        done.append(threading.current_thread())

    loop.call_on_beat(work)
    steps = loop.calm_until(lambda: len(done) == 2)
    first = threading.Thread(target=next, args=(steps,))
    first.start()
    first.join(DEADLINE_SECONDS)
    beats.strike()
    assert done == [threading.main_thread()]
    loop.call_on_beat(work, is_light=lambda: False)
    beats.strike()
    with selectors.EpollSelector() as around:
        around.register(loop, READABLE)
        assert around.select(DEADLINE_SECONDS)
    second = threading.Thread(target=list, args=(steps,))
    second.start()
    second.join(DEADLINE_SECONDS)
    assert done == [threading.main_thread(), second]
    loop.close()


def test_a_watched_file_that_is_removed_leaves_nothing(tmp_path: Path) -> None:
    loop, calls = EventLoop(), list[int]()
    watch, file = WriteWatch(loop), tmp_path / "usage"
    file.touch()
    watch.add(file, lambda: calls.append(1))
    file.write_bytes(b"1")
    loop.run_until(lambda: len(calls) == 2)  # the second one is made when the file is watched again
    watch.remove(file)
    file.unlink()
    loop.turn()  # inotify reports the end of a watch in the call that ends it
    assert watch._paths == {}
    assert calls == [1, 1]
    watch.close()
    loop.close()


def test_many_jobs_do_not_keep_the_main_thread_from_its_messages() -> None:
    clock = itertools.count()  # a second passes between any two readings
    loop = EventLoop(lambda: float(next(clock)))
    beats = Beats(loop)
    reading, writing = os.pipe()
    done: list[str] = []
    loop.watch(reading, READABLE, lambda _: done.append(os.read(reading, 7).decode()))

    def work() -> None:
        done.append("work")
        if len(done) == 2:
            os.write(writing, b"message")

    workers = [Worker(beats, lambda made: made.call_on_beat(work)) for _ in range(3)]
    beats.strike()
    assert done == ["work"]
    loop.turn()
    loop.turn()
    assert done == ["work", "work", "message", "work"]
    for worker in workers:
        worker.end()
    loop.close()
    os.close(reading)
    os.close(writing)
