"""Who asks the same at the same time shares an answer that is never older than the question."""

import asyncio
import threading

import pytest
from tests.waiting import until

from pgpu.server.fan_out import SingleFlight
from pgpu.services.engine_pool import SharedComputation


def test_of_a_hundred_who_ask_at_once_two_are_computed_for() -> None:
    computed = []
    gate = threading.Event()

    def compute() -> int:
        gate.wait(30)
        computed.append(1)
        return len(computed)

    async def ask_all() -> list[int]:
        flights = SingleFlight()
        asked = [asyncio.create_task(flights.answer("key", compute)) for _ in range(100)]
        await asyncio.sleep(0)
        gate.set()
        return list(await asyncio.gather(*asked))

    assert sorted(asyncio.run(ask_all())) == [1] + [2] * 99


def test_an_answer_is_computed_after_it_was_asked_for() -> None:
    async def ask_in_turn() -> list[int]:
        flights, seen = SingleFlight(), [0]

        def compute() -> int:
            return seen[0]

        answers = []
        for number in range(5):
            seen[0] = number
            answers.append(await flights.answer("key", compute))
        return answers

    assert asyncio.run(ask_in_turn()) == [0, 1, 2, 3, 4]


def test_what_fails_fails_for_those_who_asked_then_and_for_nobody_else() -> None:
    async def ask_twice() -> int:
        flights = SingleFlight()

        def fail() -> int:
            raise KeyError

        with pytest.raises(KeyError):
            await flights.answer("key", fail)
        found: int = await flights.answer("key", lambda: 7)
        return found

    assert asyncio.run(ask_twice()) == 7


def test_who_goes_takes_nobody_along() -> None:
    gate = threading.Event()

    def compute() -> int:
        gate.wait(30)
        return 7

    async def ask_and_go() -> int:
        flights = SingleFlight()
        first = asyncio.create_task(flights.answer("key", compute))
        second = asyncio.create_task(flights.answer("key", compute))
        await asyncio.sleep(0)
        first.cancel()
        gate.set()
        return int(await second)

    assert asyncio.run(ask_and_go()) == 7


def test_threads_that_ask_while_one_is_computed_for_share_the_next() -> None:
    computed: list[int] = []
    has_begun, gate = threading.Event(), threading.Event()

    def compute() -> int:
        has_begun.set()
        gate.wait(30)
        computed.append(1)
        return len(computed)

    shared, told = SharedComputation(compute), []
    threads = [threading.Thread(target=lambda: told.append(shared.answer())) for _ in range(20)]
    threads[0].start()
    assert has_begun.wait(30)
    for thread in threads[1:]:
        thread.start()
    until(lambda: shared.asked == len(threads))
    gate.set()
    for thread in threads:
        thread.join(30)
    assert sorted(told) == [1] + [2] * 19
    assert shared.answer() == 3


def test_whoever_shares_an_answer_that_failed_asks_again() -> None:
    outcomes: list[ValueError | str] = [ValueError("once"), "found"]

    def compute() -> str:
        found = outcomes.pop(0)
        if isinstance(found, ValueError):
            raise found
        return found

    shared = SharedComputation(compute)
    with pytest.raises(ValueError, match="once"):
        shared.answer()
    assert shared.answer() == "found"
