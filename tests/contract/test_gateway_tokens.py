"""What a gateway asks about tokens: each once, a bounded number at a time, and made-up ones are in their own way alone."""

import asyncio
import threading
from collections import Counter
from collections.abc import Iterable

import pytest

from pgpu.errors import CapacityError, NodeError
from pgpu.functions.gateway.gateway_access import Credentials, TokenCache
from pgpu.services.messages import Bearer

GOOD = Bearer("it@1.0")


class Desk:
    """Answers about good tokens at once, and about others when it is let."""

    def __init__(self) -> None:
        self.asked = Counter[str]()
        self.may_answer = threading.Event()

    def bearer(self, token: str) -> Bearer:
        self.asked[token] += 1
        if token.startswith("good"):
            return GOOD
        self.may_answer.wait()
        if token.startswith("away"):
            raise NodeError("away")
        return Bearer()


def caller(token: str, uid: int | None = None) -> Credentials:
    return Credentials(f"Bearer {token}", uid)


async def asked_about(bearers: TokenCache, callers: Iterable[Credentials]) -> list[asyncio.Task[None]]:
    asking = [asyncio.create_task(bearers.look_up(each)) for each in callers]
    await asyncio.sleep(0)
    return asking


def refused(asking: Iterable["asyncio.Task[None]"]) -> int:
    return sum(each.done() and isinstance(each.exception(), CapacityError) for each in asking)


def test_a_flood_of_made_up_tokens_is_bounded_and_in_nobody_elses_way() -> None:
    async def flooding() -> None:
        desk = Desk()
        bearers = TokenCache(desk, cache_seconds=0.0)  # type: ignore[arg-type]
        await bearers.look_up(caller("good"))
        flood = await asked_about(bearers, [caller(f"made up {number}") for number in range(500)])
        assert refused(flood) == 500 - 32
        await bearers.look_up(caller("good"))  # it is not remembered any more, and asked about at once
        assert desk.asked["good"] == 2
        local = await asked_about(bearers, [caller(f"made up {number}", uid=7) for number in range(500, 600)])
        assert refused(local) == 100 - 32
        desk.may_answer.set()
        await asyncio.gather(*flood, *local, return_exceptions=True)
        await bearers.look_up(caller("good new"))
        assert bearers.get(caller("good new")) is None
        bearers.close()

    asyncio.run(flooding())


def test_a_token_is_asked_about_once_however_many_show_it() -> None:
    async def asking() -> None:
        desk = Desk()
        bearers = TokenCache(desk)  # type: ignore[arg-type]
        many = await asked_about(bearers, [caller("made up")] * 500 + [caller("away")] * 2)
        desk.may_answer.set()
        answers = await asyncio.gather(*many, return_exceptions=True)
        assert answers[:500] == [None] * 500
        assert all(isinstance(each, NodeError) for each in answers[500:])
        assert (desk.asked["made up"], bearers.get(caller("made up"))) == (1, Bearer())
        bearers.close()

    asyncio.run(asking())


def test_made_up_tokens_are_forgotten_before_good_ones_are() -> None:
    async def asking() -> None:
        desk = Desk()
        desk.may_answer.set()
        bearers = TokenCache(desk, most_cached=3)  # type: ignore[arg-type]
        for token in ("good", *map(str, range(10))):
            await bearers.look_up(caller(token))
        assert [bearers.get(caller(token)) for token in ("good", "9", "0")] == [GOOD, Bearer(), None]
        bearers.close()

    asyncio.run(asking())


def test_who_is_cancelled_takes_nobody_elses_answer_with_them() -> None:
    async def asking() -> None:
        desk = Desk()
        bearers = TokenCache(desk)  # type: ignore[arg-type]
        first, second = await asked_about(bearers, [caller("x"), caller("x")])
        first.cancel()
        desk.may_answer.set()
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
        bearers.close()

    asyncio.run(asking())
