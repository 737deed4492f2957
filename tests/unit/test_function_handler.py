import functools
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

import pytest

import pgpu
from pgpu.errors import RequestError
from pgpu.functions.api import Batch, Declaration
from pgpu.functions.handler import REQUIRED, Loaded, Parameter, signature_of

HERE = pgpu.Context("id-1")


class Detector:
    def __init__(self, threshold: float = 0.5) -> None:
        self.threshold = threshold
        self.is_closed = False

    def __call__(self, image: bytes, context: pgpu.Context, top_k: int = 10) -> list[str]:
        """Find things.

        More of it.
        """
        return [image.decode(), str(top_k), context.request_id]

    def close(self) -> None:
        self.is_closed = True


def loaded(target: Any) -> Loaded:
    return Loaded(target, getattr(target, "__name__", "it"), Declaration())


def test_a_class_is_read_before_it_is_constructed() -> None:
    signature = loaded(Detector).signature(Declaration())
    assert signature.parameters == (Parameter("image", bytes), Parameter("top_k", int, 10))
    assert (signature.result, signature.description, signature.context_index) == (list[str], "Find things.", 1)


def test_a_class_is_constructed_with_its_declared_arguments() -> None:
    handler = loaded(Detector).construct(Declaration(arguments={"threshold": 0.9}))
    assert handler.target.threshold == 0.9
    assert handler.call((b"cat", 3), HERE) == ["cat", "3", "id-1"]
    assert handler.close is not None
    handler.close()
    assert handler.target.is_closed
    assert (handler.warmup, handler.health) == (None, None)


def test_arguments_that_the_constructor_does_not_take_are_refused_before_it_runs() -> None:
    with pytest.raises(RequestError, match="unexpected keyword argument 'wieghts'"):
        loaded(Detector).construct(Declaration(arguments={"wieghts": "x"}))
    with pytest.raises(RequestError, match="no class"):
        loaded(len).construct(Declaration(arguments={"x": 1}))


def test_a_health_that_would_always_say_yes_is_refused() -> None:
    class Ill:
        def __call__(self) -> None: ...

        async def health(self) -> bool:
            return False

    with pytest.raises(RequestError, match="asynchronous"):
        loaded(Ill).construct(Declaration())


def test_what_a_constructor_raises_goes_through_as_it_is() -> None:
    class Broken:
        def __init__(self) -> None:
            raise ZeroDivisionError

        def __call__(self) -> None: ...

    with pytest.raises(ZeroDivisionError):
        loaded(Broken).construct(Declaration())


def test_a_batch_hands_over_columns_with_the_types_of_their_elements() -> None:
    def embed(texts: list[str], *, contexts: list[pgpu.Context], scale: list[int] | None = None) -> list[float]:
        return [
            len(text) * (scale or [1])[0] + len(each.request_id) for text, each in zip(texts, contexts, strict=True)
        ]

    handler = loaded(embed).construct(Declaration(batch=Batch(4)))
    assert [each.annotation for each in handler.signature.parameters] == [str, Any]
    assert handler.signature.result is float
    assert handler.call_batch([("a", 2), ("bcd", 2)], [HERE, HERE]) == [6, 10]


def test_arguments_by_name_and_others_arrive_where_they_belong() -> None:
    def serve(first: int, /, second: str, *, third: float = 0.5, **others: int) -> Any:
        return first, second, third, others

    handler = loaded(serve).construct(Declaration())
    assert handler.signature.takes_others
    assert handler.signature.others is int
    assert handler.call((1, "b", 0.1, {"more": 7}), HERE) == (1, "b", 0.1, {"more": 7})


def test_a_context_in_the_middle_stays_there_beside_arguments_by_name() -> None:
    def serve(first: int, context: pgpu.Context, second: int, *, third: int) -> list[Any]:
        return [first, context.request_id, second, third]

    handler = loaded(serve).construct(Declaration())
    assert handler.call((1, 2, 3), HERE) == [1, "id-1", 2, 3]


def test_every_kind_of_callable_is_read() -> None:
    async def waits(x: int) -> int:
        return x

    async def streams(x: int) -> AsyncIterator[str]:
        yield str(x)

    def promises(x: "int") -> Iterator[bytes]:
        return iter([b"%d" % x])

    class Instance:
        async def __call__(self, x: Annotated[int, "seconds"]) -> None: ...

        @staticmethod
        def alone(x: int) -> None: ...

    read = [
        signature_of(each) for each in (waits, streams, promises, Instance(), functools.partial(waits), Instance.alone)
    ]
    assert [(each.is_async, each.is_stream) for each in read] == [
        (True, False),
        (True, True),
        (False, True),
        (True, False),
        (True, False),
        (False, False),
    ]
    assert [each.parameters[0].name for each in read] == ["x"] * 6
    assert [each.result for each in read[1:3]] == [str, bytes]
    assert all(each.parameters[0].default is REQUIRED for each in read)


def test_what_no_request_can_fill_is_refused_before_the_first_one() -> None:
    def twice(a: pgpu.Context, b: pgpu.Context) -> None: ...

    def unknown(image: "Image") -> None: ...  # type: ignore[name-defined] # noqa: F821

    def stream(x: list[int]) -> Iterator[int]:
        yield from x

    def others(x: list[int], **more: int) -> list[int]:
        return [*x, *more.values()]

    class NoCall: ...

    with pytest.raises(RequestError, match="twice"):
        signature_of(twice)
    with pytest.raises(RequestError, match="image: the annotation 'Image' is not known"):
        signature_of(unknown)
    with pytest.raises(RequestError, match="cannot stream"):
        signature_of(stream, is_batched=True)
    with pytest.raises(RequestError, match="cannot take \\*\\*more"):
        signature_of(others, is_batched=True)
    with pytest.raises(RequestError, match="NoCall has no __call__"):
        loaded(NoCall).signature(Declaration())
