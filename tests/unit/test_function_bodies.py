"""Which arguments a body becomes: by its Content-Type and the handler's annotations."""

import gc
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import numpy as np
import numpy.typing as npt
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.function_calls import JSON, asked, values

from pgpu.errors import RequestError
from pgpu.functions.handler import signature_of
from pgpu.functions.ipc.call_messages import Call
from pgpu.functions.protocols import Interpreter, ParsedCall, Refusal

PACKED = {"content-type": "application/x-msgpack"}
JPEG = {"content-type": "image/jpeg"}
FROM_CURL = {"content-type": "application/x-www-form-urlencoded"}
PLAIN = {"content-type": "text/plain; charset=UTF-8"}


@dataclass
class Box:
    left: int
    right: int = 1

    def __post_init__(self) -> None:
        if self.left > 1000:
            raise ValueError("left is too far right")


class Point(msgspec.Struct):
    x: float


class Named(TypedDict):
    name: str


class Model(pydantic.BaseModel):
    count: int = pydantic.Field(gt=0)
    boxes: list[Box] = []


NO_NAMES: list[str] = []


def nothing() -> None: ...
def untyped(x, y=2) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001
def one_untyped(x) -> None: ...  # type: ignore[no-untyped-def] # noqa: ANN001
def number(x: int) -> None: ...
def box(it: Box) -> None: ...
def raw(body: bytes) -> None: ...
def image(image: bytes, top_k: int = 10, *, labels: list[str] = NO_NAMES) -> None: ...
def masked(image: bytes, mask: bytes) -> None: ...
def prompt(text: str, mood: Literal["calm", "wild"] = "calm") -> None: ...
def models(model: Model, point: Point, named: Named) -> None: ...
def array(it: npt.NDArray[np.float32]) -> None: ...
def small(it: npt.NDArray[np.uint8]) -> None: ...
def late(x: int = 1, *, y: str) -> None: ...
def others(x: int, **rest: float) -> None: ...
def bounded(x: Annotated[int, msgspec.Meta(ge=1)]) -> None: ...
def mapping(data: dict[str, int]) -> None: ...


HANDLERS = [
    nothing,
    untyped,
    one_untyped,
    number,
    box,
    raw,
    image,
    masked,
    prompt,
    models,
    array,
    small,
    others,
    mapping,
]


@pytest.mark.parametrize(
    ("handler", "body", "headers", "query", "expected"),
    [
        (nothing, b"", JSON, "", ()),
        (nothing, b"{}", JSON, "", ()),
        (untyped, b'{"x": [1]}', JSON, "", ([1], 2)),
        (one_untyped, b'{"x": 1}', JSON, "", (1,)),
        (one_untyped, b'{"z": 1}', JSON, "", ({"z": 1},)),
        (one_untyped, b"[1]", {}, "", ([1],)),
        (number, b"7", {"content-type": "application/vnd.api+json; charset=utf-8"}, "", (7,)),
        (box, b'{"left": 3}', JSON, "", (Box(3),)),
        (box, b'{"it": {"left": 3}}', JSON, "", (Box(3),)),
        (mapping, b'{"data": 1, "more": 2}', JSON, "", ({"data": 1, "more": 2},)),
        (raw, b'{"not": json', JSON, "", (b'{"not": json',)),
        (raw, b"a=1", {"content-type": "application/x-www-form-urlencoded"}, "", (b"a=1",)),
        (image, b"\xff\xd8", JPEG, "top_k=5&labels=cat&labels=dog", (b"\xff\xd8", 5, ["cat", "dog"])),
        (image, b"\xff\xd8", {}, "", (b"\xff\xd8", 10, [])),
        (image, b"\xff\xd8", FROM_CURL, "", (b"\xff\xd8", 10, [])),
        (number, b'{"x": 1}', FROM_CURL, "", (1,)),
        (image, b'{"image": "aGk=", "top_k": 3}', JSON, "", (b"hi", 3, [])),
        (masked, msgspec.msgpack.encode({"image": b"\0", "mask": b"\1"}), PACKED, "", (b"\0", b"\1")),
        (prompt, "grüß".encode(), PLAIN, "mood=wild", ("grüß", "wild")),
        (prompt, b'{"text": "a"}', JSON, "", ("a", "calm")),
        (others, b'{"x": 1, "y": 0.5}', JSON, "", (1, {"y": 0.5})),
        (late, b'{"y": "b"}', JSON, "", (1, "b")),
    ],
)
def test_a_body_becomes_the_arguments_that_annotations_say(
    handler: Callable[..., Any], body: bytes, headers: Mapping[str, str], query: str, expected: Any
) -> None:
    assert values(handler, body, headers, query=query) == expected


@pytest.mark.parametrize(
    ("handler", "body", "headers", "query", "status", "code", "error"),
    [
        (number, b"{", JSON, "", 400, "bad_json", "the body is not JSON"),
        (number, b"", JSON, "", 400, "bad_json", "the body is not JSON"),
        (one_untyped, b"[" * 10_000, JSON, "", 400, "bad_json", "the body is not JSON"),
        (one_untyped, b'"\xff"', JSON, "", 400, "bad_json", "the body is not JSON"),
        (number, b"\xc1", PACKED, "", 400, "bad_msgpack", "the body is not msgpack"),
        (prompt, b"\xff", PLAIN, "", 400, "bad_text", "the body is not UTF-8 text"),
        (image, b"", JPEG, "top_k=1&top_k=2", 400, "bad_query", "the query has one argument twice"),
        (image, b"", JPEG, "top_k=%ff", 400, "bad_query", "the query is malformed"),
        (untyped, b'{"y": 1}', JSON, "", 422, "bad_input", "missing required field `x`"),
        (untyped, b"[1]", JSON, "", 422, "bad_input", "an object with these keys: x, y"),
        (image, b'{"image": "", "topk": 3}', JSON, "", 422, "bad_input", "unknown field `topk`"),
        (image, b'{"image": "", "top_k": "3"}', JSON, "", 422, "bad_input", "`$.top_k`"),
        (image, b"", JPEG, "topk=5", 422, "bad_input", "unknown field `topk`"),
        (box, b'{"it": {"left": "x"}}', JSON, "", 422, "bad_input", "`$.it.left`"),
        (box, b'{"left": "x"}', JSON, "", 422, "bad_input", "`$.left`"),
        (box, b'{"left": 1001}', JSON, "", 422, "bad_input", "left is too far right"),
        (bounded, b'{"x": 0}', JSON, "", 422, "bad_input", "Expected `int` >= 1"),
        (prompt, b'{"text": "a", "mood": "mad"}', JSON, "", 422, "bad_input", "`$.mood`"),
        (others, b'{"x": 1, "y": "z"}', JSON, "", 422, "bad_input", "Expected `float`, got `str`"),
        (array, b"[[1], [1, 2]]", JSON, "", 422, "bad_input", "rectangular"),
        (array, b"[1e39]", JSON, "", 422, "bad_input", "float32 can hold"),
        (small, b"[300]", JSON, "", 422, "bad_input", "uint8 can hold"),
        (small, b"[-1]", JSON, "", 422, "bad_input", "uint8 can hold"),
        (small, b"[1.5]", JSON, "", 422, "bad_input", "numbers of type uint8"),
        (array, b'["1"]', JSON, "", 422, "bad_input", "rectangular"),
        (number, b"1", JPEG, "", 415, "bad_content_type", "application/json, application/msgpack"),
        (number, b"1", {"content-type": "application/json; charset=latin-1"}, "", 415, "bad_charset", "UTF-8"),
        (number, b"1", {**JSON, "content-encoding": "gzip"}, "", 415, "bad_encoding", "uncompressed"),
        (number, b"1", {**JSON, "accept": "image/png"}, "", 406, "not_acceptable", "Accept"),
    ],
)
def test_what_is_no_call_is_refused_with_the_reason(
    handler: Callable[..., Any],
    body: bytes,
    headers: Mapping[str, str],
    query: str,
    status: int,
    code: str,
    error: str,
) -> None:
    found = values(handler, body, headers, query=query)
    assert found[:2] == (status, code)
    assert error in found[2]


def test_a_refusal_is_one_short_line_whatever_the_callers_keys_are() -> None:
    _, _, error = values(number, msgspec.json.encode({"x": 1, "\n\x1b" + "k" * 5000: 1, "y": 2}))
    assert len(error) < 450
    assert error.isprintable()


def test_models_of_every_kind_are_validated() -> None:
    body = b'{"model": {"count": 2, "boxes": [{"left": 1}]}, "point": {"x": 1}, "named": {"name": "a"}}'
    assert values(models, body) == (Model(count=2, boxes=[Box(1)]), Point(1.0), {"name": "a"})
    _, _, error = values(models, body.replace(b'"count": 2', b'"count": 0'))
    assert error == "Input should be greater than 0 (at count) - at `$.model`"


def test_nested_lists_become_an_array_of_the_annotated_type() -> None:
    for body, headers in (
        (b"[[1, 2], [3, 4]]", JSON),
        (b'{"it": [[1, 2], [3, 4]]}', JSON),
        (msgspec.msgpack.encode([[1, 2], [3, 4]]), PACKED),
    ):
        (found,) = values(array, body, headers)
        assert found.dtype == np.float32
        assert found.tolist() == [[1, 2], [3, 4]]


def test_a_type_that_no_request_can_hold_is_refused_before_the_first_one() -> None:
    class Socket: ...

    def direct(x: Socket) -> None: ...
    def inside(x: list[dict[str, Socket]]) -> None: ...

    for handler in (direct, inside):
        with pytest.raises(RequestError, match="parameter x: no request can hold a Socket"):
            Interpreter(signature_of(handler), "it")


def test_what_the_users_own_type_raises_is_the_handlers_error_and_its_text_is_the_logs() -> None:
    @dataclass
    class Odd:
        x: int

        def __post_init__(self) -> None:
            raise KeyError("somebody's secret")

    def handler(odd: Odd) -> None: ...

    found = asked(handler, b'{"x": 1}')
    assert isinstance(found, Refusal)
    assert (found.status, found.code, found.error) == (500, "handler_error", "KeyError")
    assert "somebody's secret" in found.detail


def test_a_large_body_need_not_be_copied() -> None:
    def handler(body: memoryview) -> None: ...

    received = bytearray(b"\xff")
    found = asked(handler, received, JPEG)
    assert isinstance(found, ParsedCall)
    received[0] = 1
    assert found.values[0][0] == 1
    assert values(handler, b"\1", JPEG) == (memoryview(b"\1"),)


@pytest.mark.parametrize("handler", [number, box, masked])
@pytest.mark.parametrize("body", [b'{"x":"no number"}', b'"text"', b"{", b'{"z":1}', b"\xff"])
def test_a_body_that_is_refused_is_let_go_at_once(handler: Callable[..., object], body: bytes) -> None:
    interpreter, held = Interpreter(signature_of(handler), "it"), memoryview(body)
    last_seen = weakref.ref(held)
    gc.disable()
    try:
        assert isinstance(interpreter.read(Call("id", "POST", "/", "", JSON, 5.0), held), Refusal)
        del held
        assert last_seen() is None
    finally:
        gc.enable()


def test_a_default_reaches_the_handler_as_it_is() -> None:
    given_default = {"never": "copied"}

    def handler(x: int = 1, y: dict[str, str] = given_default) -> None: ...

    assert values(handler, b"{}")[1] is given_default


bodies = st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["x", "it", "image", "z"]), inner),
    max_leaves=8,
).map(msgspec.json.encode)
content_types = st.sampled_from(
    [
        "application/json",
        "application/msgpack",
        "image/png",
        "text/plain",
        "application/cloudevents+json",
        ";",
        "a/b;c=d",
    ]
) | st.text(st.characters(codec="latin-1"), max_size=30)
header_values = st.text(st.characters(codec="latin-1"), max_size=20)


@dataclass
class Ask:
    handler: Callable[..., Any]
    body: bytes
    query: str
    headers: dict[str, str] = field(default_factory=dict)


asks = st.builds(
    Ask,
    st.sampled_from(HANDLERS),
    bodies,
    st.text(st.characters(codec="ascii"), max_size=20) | st.sampled_from(["top_k=1", "mood=wild"]),
    st.fixed_dictionaries(
        {"content-type": content_types},
        optional={
            "accept": header_values,
            "content-encoding": header_values,
            "ce-id": header_values,
            "ce-specversion": header_values | st.just("1.0"),
        },
    ),
)


@given(asks)
def test_no_bytes_make_anything_but_arguments_or_a_refusal_of_the_caller(ask: Ask) -> None:
    found = asked(ask.handler, ask.body, ask.headers, query=ask.query)
    if isinstance(found, Refusal):
        assert 400 <= found.status < 500
        assert "\n" not in found.error
    else:
        assert isinstance(found, ParsedCall)
        assert len(found.values) == len(signature_of(ask.handler).parameters) + (ask.handler is others)
