"""CloudEvents: their data binds like any body, their attributes reach the context."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tests.function_calls import asked, values

from pgpu.functions.protocols import ParsedCall, Refusal

EVENT = {"content-type": "application/cloudevents+json; charset=utf-8"}
BINARY = {"ce-id": "7", "ce-source": "/camera", "ce-specversion": "1.0", "ce-type": "seen"}
ENVELOPE = {"id": "7", "source": "/camera", "specversion": "1.0", "type": "seen"}


def detect(image: bytes, top_k: int = 10) -> None: ...
def prompt(text: str) -> None: ...
def number(x: int) -> None: ...


def event(**more: Any) -> bytes:
    return json.dumps({key: value for key, value in {**ENVELOPE, **more}.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("handler", "body", "headers", "expected"),
    [
        (number, b'{"x": 3}', {**BINARY, "content-type": "application/json"}, (3,)),
        (detect, b"\xff\xd8", {**BINARY, "content-type": "image/jpeg"}, (b"\xff\xd8", 10)),
        (number, event(data={"x": 3}), EVENT, (3,)),
        (number, event(data=3, datacontenttype="application/json"), EVENT, (3,)),
        (prompt, event(data="hello", datacontenttype="text/plain"), EVENT, ("hello",)),
        (detect, event(data_base64="/9g=", datacontenttype="image/jpeg"), EVENT, (b"\xff\xd8", 10)),
        (number, event(data='{"x": 3}', datacontenttype="application/json"), EVENT, 422),
        (number, event(data={"x": "3"}), EVENT, 422),
        (number, event(), EVENT, 400),
        (number, event(data={"x": 3}, id=None), EVENT, 400),
        (number, event(data={"x": 3}, source=""), EVENT, 400),
        (number, event(data={"x": 3}, specversion="0.3"), EVENT, 400),
        (number, event(data=3, data_base64="Mw=="), EVENT, 400),
        (number, event(data_base64="%"), EVENT, 400),
        (number, b"[", EVENT, 400),
        (number, b'{"x": 3}', {"ce-id": "7", "ce-specversion": "1.0", "ce-type": "seen"}, 400),
        (number, b'{"x": 3}', {**BINARY, "ce-specversion": "2.0"}, 400),
        (number, b"[]", {"content-type": "application/cloudevents-batch+json"}, 415),
        (number, b"<e/>", {"content-type": "application/cloudevents+xml"}, 415),
    ],
)
def test_an_events_data_binds_like_a_body(handler: Any, body: bytes, headers: Mapping[str, str], expected: Any) -> None:
    found = values(handler, body, headers)
    assert (found[0] if isinstance(expected, int) else found) == expected


def test_an_events_attributes_reach_the_context_in_either_mode() -> None:
    whole = asked(number, event(data=3, subject="frame 9"), EVENT)
    parts = asked(number, b"3", {**BINARY, "ce-subject": "frame 9"})
    for found in (whole, parts):
        assert isinstance(found, ParsedCall)
        assert (found.headers["ce-id"], found.headers["ce-subject"]) == ("7", "frame 9")


def test_what_an_event_lacks_is_named() -> None:
    found = asked(number, b"3", {"ce-specversion": "1.0", "ce-type": "seen"})
    assert isinstance(found, Refusal)
    assert (found.code, found.error) == ("bad_event", "the event lacks ce-id, ce-source")
