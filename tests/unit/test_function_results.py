"""What a result becomes: by its type and the caller's Accept header."""

import datetime as dt
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.function_calls import JSON, asked, reply, told

from pgpu.functions.handler import signature_of
from pgpu.functions.protocols import ParsedCall, Refusal, RefusedError, StreamWriter, handler_error, handler_refusal
from pgpu.functions.protocols.media_types import media_type, negotiate
from pgpu.functions.protocols.results import plain_writer


@dataclass
class Box:
    left: int
    seen: dt.date = dt.date(2024, 5, 1)


class Model(pydantic.BaseModel):
    boxes: list[Box]


def gives(result: Any) -> Callable[[], Any]:
    def handler():  # type: ignore[no-untyped-def] # noqa: ANN202
        return result

    return handler


def accepting(accept: str) -> dict[str, str]:
    return {**JSON, "accept": accept}


@pytest.mark.parametrize(
    ("result", "accept", "content_type", "body"),
    [
        ({"a": [1, None]}, "*/*", "application/json", b'{"a":[1,null]}'),
        (None, "", "application/json", b"null"),
        ([Box(1)], "*/*", "application/json", b'[{"left":1,"seen":"2024-05-01"}]'),
        (Model(boxes=[Box(1)]), "*/*", "application/json", b'{"boxes":[{"left":1,"seen":"2024-05-01"}]}'),
        (np.arange(4).reshape(2, 2), "*/*", "application/json", b"[[0,1],[2,3]]"),
        ({"score": np.float32(0.5)}, "*/*", "application/json", b'{"score":0.5}'),
        ({"a": 1}, "application/json;q=0.1, application/msgpack", "application/msgpack", b"\x81\xa1a\x01"),
        ("grüß", "*/*", "text/plain; charset=utf-8", "grüß".encode()),
        ("grüß", "application/json", "application/json", '"grüß"'.encode()),
        (b"\xff", "*/*", "application/octet-stream", b"\xff"),
        (bytearray(b"\xff"), "application/*, text/html", "application/octet-stream", b"\xff"),
        (b"\xff", "application/json", "application/json", b'"/w=="'),
    ],
)
def test_a_result_is_written_as_its_type_and_the_caller_have_it(
    result: Any, accept: str, content_type: str, body: bytes
) -> None:
    answer = reply(gives(result), b"", accepting(accept))
    assert (answer.status, answer.headers["content-type"], bytes(answer.body)) == (200, content_type, body)


def test_bytes_may_say_what_they_are() -> None:
    def draw() -> Annotated[bytes, "image/png"]:
        return b"\x89PNG"

    assert reply(draw).headers == {"content-type": "image/png"}
    assert reply(draw, b"", accepting("image/*")).headers == {"content-type": "image/png"}
    assert reply(draw, b"", accepting("image/jpeg")).status == 406


def test_what_the_caller_does_not_accept_is_refused_before_the_handler_runs_where_the_annotation_tells() -> None:
    def number() -> int:
        raise AssertionError

    assert reply(number, b"", accepting("text/plain")).status == 406
    assert reply(gives(7), b"", accepting("text/plain")).status == 406


@pytest.mark.parametrize("result", [object(), {1j}, {"a": object()}, "\ud800", [[]] * 3 + [lambda: 0]])
def test_a_result_that_cannot_be_written_is_the_handlers_error_and_only_the_log_says_why(result: Any) -> None:
    found = asked(gives(result), b"")
    assert isinstance(found, ParsedCall)
    refusal = found.form.write(result)
    assert isinstance(refusal, Refusal)
    assert (refusal.status, refusal.code, refusal.error) == (500, "handler_error", "UnwritableResult")
    assert type(result).__name__ in refusal.detail


def test_the_caller_of_a_handler_that_raised_learns_the_type_and_an_id() -> None:
    answer = handler_error(KeyError("somebody's secret")).reply("id-9")
    assert answer.status == 500
    assert told(answer) == {"error": "KeyError", "code": "handler_error", "request_id": "id-9"}


class NoFaceError(ValueError):
    pgpu_status: Any = 422


@pytest.mark.parametrize(("text", "told_text"), [("no face", "no face"), ("", "NoFaceError"), ("a\nb", r"a\nb")])
def test_a_handler_refuses_a_request_with_an_exception_that_has_a_status(text: str, told_text: str) -> None:
    assert handler_refusal(NoFaceError(text)) == Refusal(422, "refused", told_text)


class UnspeakableError(Exception):
    pgpu_status = 422

    def __str__(self) -> str:
        raise KeyError


@pytest.mark.parametrize("status", [200, 399, 499, 500, True, "422", None, 422.0])
def test_nothing_else_that_a_handler_raises_is_told(status: Any) -> None:
    error = NoFaceError("secret")
    error.pgpu_status = status
    assert handler_refusal(error) is None
    assert handler_refusal(ValueError("secret")) is None
    assert handler_refusal(UnspeakableError()) is None


def counts(x: int = 2) -> Iterator[Any]:
    yield from range(x)


def chunks() -> Iterator[bytes]:
    yield b"\xff"


async def tells() -> AsyncIterator[str]:
    yield "a"


def streaming(handler: Callable[..., Any], accept: str) -> StreamWriter | None:
    form = plain_writer(signature_of(handler), accept)
    assert form is not None
    return form.stream_writer


@pytest.mark.parametrize(
    ("handler", "accept", "content_type", "item", "written", "end"),
    [
        (counts, "*/*", "text/event-stream", {"a": "x\ny"}, b'data: {"a":"x\\ny"}\n\n', b"event: end\ndata: \n\n"),
        (
            tells,
            "text/event-stream",
            "text/event-stream",
            "x\r\n y",
            b"data: x\ndata:  y\n\n",
            b"event: end\ndata: \n\n",
        ),
        (counts, "application/x-ndjson", "application/x-ndjson", {"a": "x\ny"}, b'{"a":"x\\ny"}\n', b""),
        (tells, "application/jsonl", "application/x-ndjson", "x", b'"x"\n', b""),
        (chunks, "*/*", "application/octet-stream", b"\xff", b"\xff", b""),
        (chunks, "text/event-stream", "text/event-stream", b"\xff", b'data: "/w=="\n\n', b"event: end\ndata: \n\n"),
    ],
)
def test_pieces_are_written_as_the_caller_accepts_them(
    handler: Callable[..., Any], accept: str, content_type: str, item: Any, written: bytes, end: bytes
) -> None:
    stream = streaming(handler, accept)
    assert stream is not None
    assert stream.headers["content-type"] == content_type
    assert (stream.piece(item), stream.end) == (written, end)


def test_a_caller_that_accepts_only_json_gets_all_pieces_in_one_list() -> None:
    found = asked(counts, b"", accepting("application/json"))
    assert isinstance(found, ParsedCall)
    assert found.form.stream_writer is None
    answer = found.form.write(list(counts()))
    assert isinstance(answer, msgspec.Struct)
    assert bytes(answer.body) == b"[0,1]"  # type: ignore[union-attr]


def test_a_stream_that_broke_says_so_and_never_ends_like_a_whole_one() -> None:
    refusal = handler_error(ValueError())
    events, lines, raw = (
        streaming(counts, each) for each in ("*/*", "application/x-ndjson", "application/octet-stream")
    )
    assert events is not None
    assert lines is not None
    assert raw is not None
    error = b'{"error":"ValueError","code":"handler_error","request_id":"id-1"}'
    assert events.broken(refusal, "id-1") == b"event: error\ndata: " + error + b"\n\n"
    assert lines.broken(refusal, "id-1") == error + b"\n"
    assert raw.broken(refusal, "id-1") == b""
    with pytest.raises(RefusedError) as caught:
        lines.piece(object())
    assert caught.value.refusal.status == 500


def test_among_types_the_most_specific_range_decides() -> None:
    offers = ("application/json", "application/msgpack", "text/plain")
    assert negotiate("text/*, application/json;q=0.5", offers) == "text/plain"
    assert negotiate("*/*;q=0.1, application/json;q=0", offers) == "application/msgpack"
    assert negotiate("application/x-msgpack", offers) == "application/msgpack"
    assert negotiate("image/png", offers) is None
    assert negotiate(None, offers) == "application/json"


@given(st.text())
def test_no_header_is_too_odd_to_be_read(header: str) -> None:
    assert negotiate(header, ("a/b",)) in {"a/b", None}
    assert media_type(header).essence == media_type(header).essence.strip()


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.binary(max_size=5) | st.just(np.int8(3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(values, st.sampled_from(["*/*", "application/json", "application/msgpack"]))
def test_what_is_written_is_read_back(value: Any, accept: str) -> None:
    answer = reply(gives({"it": value}), b"", accepting(accept))
    decode = msgspec.msgpack.decode if "msgpack" in answer.headers["content-type"] else msgspec.json.decode
    assert msgspec.json.encode(decode(answer.body)) == msgspec.json.encode({"it": plain(value)})


def plain(value: Any) -> Any:
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return int(value) if isinstance(value, np.int8) else value
