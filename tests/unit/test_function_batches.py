"""Calls of a batch fail alone: arrays of one shape go together, and what raised runs again in halves."""

import json
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from pgpu.functions.api import Batch, Declaration
from pgpu.functions.handler import handler_of, signature_of
from pgpu.functions.ipc.call_messages import Call, Reply
from pgpu.functions.protocols import Interpreter
from pgpu.functions.worker.batch_run import BatchRun, shapes_of
from pgpu.functions.worker.call_codec import CallCodec, WorkItem


class Mark:
    """Of a replica that has taken some calls back."""

    def __init__(self, *withheld: int) -> None:
        self.withheld = withheld

    def begin(self, number: int) -> bool:
        return number not in self.withheld


def run(
    handler: Callable[..., Any], bodies: list[Any], *, retries: bool = True, withheld: tuple[int, ...] = ()
) -> dict[int, Reply | None]:
    """Run a batch of calls with these bodies, numbered from 1; return their replies."""
    signature = signature_of(handler, is_batched=True)
    codec = CallCodec(handler_of(handler, signature), Interpreter(signature, "it"))
    works = [
        WorkItem(number, Call(f"r{number}", "POST", "/", "", {"content-type": "application/json"}, 60.0), 1e12, body)
        for number, body in enumerate((json.dumps(each).encode() for each in bodies), 1)
    ]
    replies: dict[int, Reply | None] = {}

    def finish(work: WorkItem, reply: Reply | None, _began: float) -> None:
        assert work.number not in replies, "a call is answered once"
        replies[work.number] = reply

    declaration = Declaration(batch=Batch(len(works)), retry_batches=retries)
    batch = BatchRun(works, codec, Mark(*withheld), declaration, finish)  # type: ignore[arg-type]
    while batch.next_group():
        try:
            results = handler(*zip(*batch.rows, strict=True))
        except BaseException as error:  # noqa: BLE001 - as in an executor
            batch.fail(error)
        else:
            batch.answer(results)
    return replies


def statuses(replies: dict[int, Reply | None]) -> list[int]:
    return [reply.status for _, reply in sorted(replies.items()) if reply is not None]


@given(st.lists(st.booleans(), min_size=1, max_size=33))
def test_calls_that_fail_alone_fail_and_all_others_are_answered(odd: list[bool]) -> None:
    ran: Counter[int] = Counter()

    def handler(x: list[int]) -> list[int]:
        ran.update(x)
        if any(odd[each] for each in x):
            raise KeyError("it")
        return [each * 2 for each in x]

    assert statuses(run(handler, [*range(len(odd))])) == [500 if each else 200 for each in odd]
    assert max(ran.values()) <= 1 + math.ceil(math.log2(len(odd)))


def test_seven_good_calls_beside_an_odd_one_are_answered() -> None:
    def handler(x: list[int]) -> list[float]:
        return [1 / each for each in x]

    assert statuses(run(handler, [1, 1, 1, 0, 1, 1, 1, 1])) == [200] * 3 + [500] + [200] * 4


def test_a_handler_with_side_effects_gets_each_call_once() -> None:
    ran: Counter[int] = Counter()

    def handler(x: list[int]) -> list[float]:
        ran.update(x)
        return [1 / each for each in x]

    assert statuses(run(handler, [0, 1, 2, 3], retries=False)) == [500] * 4
    assert set(ran.values()) == {1}


def test_arrays_of_one_shape_and_dtype_go_together() -> None:
    sizes = []

    def handler(x: list[npt.NDArray[Any]]) -> list[float]:
        sizes.append(len(x))
        return [float(each) for each in np.stack(x).sum(axis=1)]

    assert statuses(run(handler, [[1.0, 2.0], [1.0, 2.0, 3.0], [3.0, 4.0]])) == [200] * 3
    assert sorted(sizes) == [1, 2]
    assert shapes_of((np.zeros(2, np.float32), "a")) == shapes_of((np.ones(2, np.float32), "b"))
    assert shapes_of((np.zeros(2, np.float32),)) != shapes_of((np.zeros(2, np.float64),))


def test_a_call_that_the_replica_took_back_is_neither_run_nor_answered() -> None:
    replies = run(lambda x: [*x], [1, 2, 3], withheld=(2,))
    assert replies[2] is None
    assert statuses(replies) == [200, 200]


def test_too_few_results_fail_the_calls_that_miss_one() -> None:
    def handler(x: list[int]) -> list[int]:
        return [each for each in x if each]

    assert statuses(run(handler, [1, 0, 1])) == [200, 500, 200]
