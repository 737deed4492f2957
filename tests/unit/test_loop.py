"""The supervisor's loop: what one call puts away, no later call of the same round is made for."""

import os
from collections.abc import Iterator
from functools import partial

import pytest

from pgpu.engine.event_loop import READABLE, EventLoop


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
