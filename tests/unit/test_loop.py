"""The supervisor's loop: what one call puts away, no later call of the same round is made for."""

import os
import selectors
from collections.abc import Iterator
from functools import partial

import pytest

from pgpu.engine.event_loop import CALM_SECONDS, READABLE, EventLoop


@pytest.fixture
def loop() -> Iterator[EventLoop]:
    made = EventLoop()
    yield made
    made.close()


@pytest.fixture
def ready() -> Iterator[list[int]]:
    """Two descriptors that are ready in the same round."""
    pairs = [os.pipe() for _ in range(2)]
    for _, writer in pairs:
        os.write(writer, b"x")
    yield [reader for reader, _ in pairs]
    for descriptor in (end for pair in pairs for end in pair):
        os.close(descriptor)


def test_a_descriptor_that_an_earlier_call_forgot_is_not_called_for(loop: EventLoop, ready: list[int]) -> None:
    called: list[int] = []

    def put_the_others_away(mine: int, _events: int) -> None:
        called.append(mine)
        for other in ready:
            if other != mine:
                loop.forget(other)

    for descriptor in ready:
        loop.watch(descriptor, READABLE, partial(put_the_others_away, descriptor))
    loop.turn()
    assert len(called) == 1


def test_a_descriptor_that_is_watched_anew_is_called_as_it_is_watched_now(loop: EventLoop, ready: list[int]) -> None:
    called: list[str] = []

    def watch_all_anew(_events: int) -> None:
        called.append("old")
        for descriptor in ready:
            loop.watch(descriptor, READABLE, lambda _: called.append("new"))

    for descriptor in ready:
        loop.watch(descriptor, READABLE, watch_all_anew)
    loop.turn()
    assert called == ["old", "new"]


def test_work_of_each_second_of_one_loop_is_due_at_the_same_time() -> None:
    clock = [100.0]
    loop = EventLoop(lambda: clock[0])
    due: list[float] = []
    for now_seconds in (100.25, 100.75, 101.0):
        clock[0] = now_seconds
        due.append(loop.call_on_beat(lambda: None).due_seconds)
    due.append(loop.call_on_beat(lambda: None, 5.0).due_seconds)
    loop.close()
    assert due == [101.0, 101.0, 102.0, 105.0]


class MadeTime(selectors.EpollSelector):
    """Time that passes only while a loop waits."""

    seconds = 1000.0

    def now_seconds(self) -> float:
        return self.seconds

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        self.seconds += 0.0 if ready else timeout or 0.0
        return ready


@pytest.fixture
def made_time() -> Iterator[MadeTime]:
    with MadeTime() as made:
        yield made


def test_a_loop_is_calm_after_a_time_in_which_nothing_happened(made_time: MadeTime) -> None:
    loop, reading_writing, done = EventLoop(made_time.now_seconds, lambda: made_time), os.pipe(), list[bytes]()
    loop.watch(reading_writing[0], READABLE, lambda _: done.append(os.read(reading_writing[0], 1)))
    loop.call_later(10 * CALM_SECONDS, lambda: done.append(b"timer"))
    steps = loop.calm_until(lambda: len(done) == 2)
    assert next(steps) is loop
    assert made_time.seconds == 1000.0 + CALM_SECONDS
    assert loop.timeout_seconds() == 9 * CALM_SECONDS
    os.write(reading_writing[1], b"x")
    with selectors.EpollSelector() as around:
        around.register(loop, READABLE)
        assert around.select(0)
    assert next(steps) is loop
    assert done == [b"x"]
    made_time.seconds += 8 * CALM_SECONDS
    assert list(steps) == []
    assert done == [b"x", b"timer"]
    for descriptor in reading_writing:
        os.close(descriptor)


def test_a_loop_with_something_to_do_each_second_is_never_calm(made_time: MadeTime) -> None:
    loop, done = EventLoop(made_time.now_seconds, lambda: made_time), list[float]()

    def work() -> None:
        done.append(made_time.seconds)
        loop.call_on_beat(work)

    work()
    assert list(loop.calm_until(lambda: len(done) == 10)) == []
