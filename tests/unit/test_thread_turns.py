"""Turns of threads: a few at a time, given up in a pause, never a deadlock."""

import threading
from collections.abc import Iterator

import pytest
from tests.waiting import until

from pgpu.host import thread_turns
from pgpu.host.thread_turns import limit_turns, pause, turn


@pytest.fixture(autouse=True)
def _no_limit_behind_a_test() -> Iterator[None]:
    limit_turns(None)
    yield
    limit_turns(None)


def test_without_a_limit_every_thread_runs() -> None:
    with turn(), pause():
        pass


def test_no_more_threads_than_turns_run_at_a_time() -> None:
    limit_turns(2, longest_wait_seconds=60.0)
    guard, running, most = threading.Lock(), [0], [0]

    def work() -> None:
        with turn():
            for _ in range(50):
                with guard:
                    running[0] += 1
                    most[0] = max(most[0], running[0])
                with guard:
                    running[0] -= 1
                with pause():
                    pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most[0] <= 2


def test_a_pause_gives_the_turn_to_another_thread() -> None:
    limit_turns(1, longest_wait_seconds=60.0)
    has_run = threading.Event()

    def work() -> None:
        with turn():
            has_run.set()

    with turn():
        other = threading.Thread(target=work)
        other.start()
        assert not has_run.is_set()
        with pause():
            assert has_run.wait(60)
        other.join()


def test_threads_whose_turns_are_all_blocked_run_without_one() -> None:
    limit_turns(1, longest_wait_seconds=0.01)
    with turn():
        other = threading.Thread(target=lambda: turn().__enter__())
        other.start()
        other.join()


def test_a_thread_that_got_no_turn_gives_none_back() -> None:
    limit_turns(0, longest_wait_seconds=0.01)
    with turn(), pause():
        pass
    assert thread_turns._turns is not None
    assert thread_turns._turns.free == 0


def test_a_pause_outside_of_a_turn_takes_none() -> None:
    limit_turns(1)
    with pause():
        pass
    assert thread_turns._turns is not None
    assert thread_turns._turns.free == 1


def test_a_pause_within_a_pause_takes_no_second_turn() -> None:
    limit_turns(1, longest_wait_seconds=60.0)
    for _ in range(3):
        with turn(), pause(), pause():
            assert thread_turns._turns is not None
            assert thread_turns._turns.free == 1
    assert thread_turns._turns is not None
    assert thread_turns._turns.free == 1


def test_a_thread_that_comes_back_is_first_and_one_that_begins_is_not_left_out() -> None:
    limit_turns(1, longest_wait_seconds=60.0)
    turns = thread_turns._turns
    assert turns is not None
    order: list[str] = []
    has_paused, may_return = threading.Event(), threading.Event()

    def come_back() -> None:
        with turn():
            with pause():
                has_paused.set()
                may_return.wait()
            order.append("back")
            while len(order) == 1:
                with pause():
                    pass

    def begin() -> None:
        with turn():
            order.append("begun")

    threads = [threading.Thread(target=come_back), threading.Thread(target=begin)]
    threads[0].start()
    has_paused.wait()
    with turn():
        threads[1].start()
        until(lambda: turns.beginning)
        may_return.set()
        until(lambda: turns.returning)
    for each in threads:
        each.join()
    assert order == ["back", "begun"]
