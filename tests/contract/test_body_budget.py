"""What is being sent to functions is bounded, of each caller and of all, and what never comes is not waited for."""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pgpu.functions.gateway.gateway_access import GatewayAccess, TokenCache
from pgpu.functions.gateway.gateway_app import BodyBudget, BodyRefusedError, GatewayApp
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler
from pgpu.functions.ipc.call_messages import Reply
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import RouterTable
from pgpu.model import Function, Share, Version, VersionState

ALICE, BOB = 7, 8


async def nothing() -> Any:
    raise AssertionError("nothing is read")


def sent(uploads: BodyBudget, *bodies: tuple[int, str, int]) -> list[int]:
    """Announce bodies of (owner, caller, bytes) that stay; return the statuses, 0 for each that is taken."""

    def statuses(stack: ExitStack) -> Iterator[int]:
        for owner_uid, caller, size_bytes in bodies:
            try:
                stack.enter_context(uploads.reserve(owner_uid, caller, nothing)).announce(str(size_bytes))
                yield 0
            except BodyRefusedError as error:
                yield error.refusal.status

    with ExitStack() as stack:
        return list(statuses(stack))


def test_each_caller_has_a_quarter_each_owner_half_and_all_together_have_an_end() -> None:
    uploads = BodyBudget(800)
    assert sent(uploads, (ALICE, "x", 150), (ALICE, "x", 100), (ALICE, "x", 50)) == [0, 503, 0]
    assert sent(uploads, (ALICE, "x", 200), (ALICE, "y", 200), (ALICE, "z", 1), (BOB, "z", 1)) == [0, 0, 503, 0]
    whole = [(ALICE, "u", 200), (ALICE, "v", 200), (BOB, "w", 200), (BOB, "x", 200)]
    assert sent(uploads, *whole, (9, "y", 1)) == [0, 0, 0, 0, 503]


def test_a_body_that_is_its_callers_only_one_may_be_larger_and_none_is_larger_than_all() -> None:
    uploads = BodyBudget(800)
    assert sent(uploads, (ALICE, "x", 700), (ALICE, "x", 1), (BOB, "y", 100), (BOB, "z", 1)) == [0, 503, 0, 503]
    assert sent(uploads, (ALICE, "x", 801)) == [413]


def test_a_body_without_a_length_takes_its_room_as_it_comes_and_gives_it_back() -> None:
    async def sending() -> list[int]:
        pieces = [{"type": "http.request", "body": b"x" * 100, "more_body": True}] * 3

        async def receive() -> Any:
            return pieces.pop()

        uploads, statuses = BodyBudget(800), []
        with uploads.reserve(ALICE, "x", receive) as chunked, uploads.reserve(ALICE, "x", nothing) as other:
            await chunked.receive()
            other.announce("100")
            try:
                await chunked.receive()
            except BodyRefusedError as error:
                statuses.append(error.refusal.status)
        return [*statuses, *sent(uploads, (ALICE, "x", 200), (ALICE, "y", 200))]

    assert asyncio.run(sending()) == [503, 0, 0]


def test_a_body_that_does_not_come_is_given_up_and_who_waits_for_an_answer_is_not() -> None:
    async def waiting() -> None:
        whole, never = asyncio.Event(), asyncio.Event()

        async def receive() -> Any:
            if whole.is_set():
                await never.wait()
            return {"type": "http.request", "body": b"x", "more_body": not whole.is_set()}

        async def silent() -> Any:
            await never.wait()

        uploads = BodyBudget(800, patience_seconds=0.01)
        with uploads.reserve(ALICE, "x", silent) as upload, pytest.raises(BodyRefusedError) as found:
            await upload.receive()
        assert found.value.refusal.status == 408
        with uploads.reserve(ALICE, "x", receive) as upload:
            await upload.receive()
            whole.set()
            watching = asyncio.create_task(upload.receive())
            with uploads.reserve(ALICE, "x", silent) as late, pytest.raises(BodyRefusedError):
                await late.receive()
            assert not watching.done()
            watching.cancel()

    asyncio.run(waiting())


def function() -> Function:
    version = Version("it", 1, os.geteuid(), "a:F", "0", "{}", "process", None, None, VersionState.READY, None, 1.0)
    return Function("it", os.geteuid(), 1.0, (version,), (Share(1, 100),))


def test_a_gateway_reads_no_more_than_it_has_room_for() -> None:
    async def asking() -> list[tuple[int, str]]:
        halls, never = RouterTable(GatewayMetrics()), asyncio.Event()
        halls.adopt([function()])
        access = GatewayAccess(TokenCache(None))  # type: ignore[arg-type]
        app = GatewayApp(halls, access, GatewayRequestHandler(halls, access), None, None, budget=BodyBudget(100))  # type: ignore[arg-type]
        answers: list[tuple[int, str]] = []

        async def receive() -> Any:
            await never.wait()

        async def send(message: Any) -> None:
            if "status" in message:
                answers.append((message["status"], dict(message["headers"]).get(b"retry-after", b"").decode()))
            elif message["body"]:
                assert json.loads(message["body"])["code"] == "busy"

        async def ask() -> None:
            headers = [(b"content-length", b"20"), (b"host", b"pgpu")]
            scope = {"type": "http", "method": "POST", "path": "/functions/it", "headers": headers, "query_string": b""}
            await app({**scope, "state": {"uid": os.geteuid()}}, receive, send)

        first = asyncio.create_task(ask())
        await asyncio.sleep(0)
        await ask()
        first.cancel()
        access.tokens.close()
        return answers

    assert asyncio.run(asking()) == [(503, "1")]


def test_kept_answers_that_nobody_reads_are_held_up_to_a_bound() -> None:
    class Kept:
        async def of_caller(self, *_words: object) -> Reply:
            return Reply(200, {}, b"x" * (15 << 20))

    async def asking() -> list[int]:
        halls, taken, never = RouterTable(GatewayMetrics()), asyncio.Event(), asyncio.Event()
        access = GatewayAccess(TokenCache(None))  # type: ignore[arg-type]
        handler, budget = GatewayRequestHandler(halls, access), BodyBudget(100 << 20)
        app = GatewayApp(halls, access, handler, Kept(), None, budget=budget)  # type: ignore[arg-type]
        statuses: list[int] = []

        async def send(message: Any) -> None:
            if "status" in message:
                statuses.append(message["status"])
            if statuses == [200]:
                taken.set()
                await never.wait()

        async def ask() -> None:
            scope = {
                "type": "http",
                "method": "GET",
                "path": "/calls/x",
                "headers": [(b"host", b"pgpu")],
                "query_string": b"",
            }
            await app({**scope, "state": {"uid": os.geteuid()}}, nothing, send)

        first = asyncio.create_task(ask())
        await taken.wait()
        await ask()
        first.cancel()
        access.tokens.close()
        return statuses

    assert asyncio.run(asking()) == [200, 503]
