"""CloudEvents 1.0 over HTTP: an event's attributes and its data, which binds like any body.

Source: CloudEvents 1.0.2, HTTP protocol binding, 3.1 (binary), 3.2 (structured). It refuses batches, since one reply
cannot answer several events, and events that lack what every event has.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from pgpu.functions.protocols.call_refusal import RefusedError, refusal_error
from pgpu.functions.protocols.media_types import EVENT, JSON, TEXT, media_type
from pgpu.functions.protocols.request_body.keyed_reader import Buffer

_ANY = "application/cloudevents"
_DATA = {"data", "data_base64"}
_REQUIRED = ("id", "source", "specversion", "type")


class CloudEvent(msgspec.Struct, frozen=True):
    """What an event brings."""

    body: Buffer
    content_type: str | None
    """Of the data; None where the event does not say."""

    attributes: dict[str, str]
    """With the prefix `ce-`."""


class _Envelope(msgspec.Struct, frozen=True):
    id: str
    source: str
    specversion: str
    type: str
    datacontenttype: str | None = None
    data: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    data_base64: bytes | None = None


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode


def find_event(body: Buffer, headers: Mapping[str, str]) -> CloudEvent | None:
    """Find the event in a request; None: it is none, but a plain request.

    Raises:
        RefusedError: It says that it is an event and is not one that a function takes.
    """
    content_type = headers.get("content-type", "")
    if content_type and content_type[:23].lower() == _ANY:
        return _structured(body, content_type)
    if "ce-specversion" in headers or "ce-id" in headers:
        return _binary(body, headers)
    return None


def _binary(body: Buffer, headers: Mapping[str, str]) -> CloudEvent:
    missing = [f"ce-{name}" for name in _REQUIRED if not headers.get(f"ce-{name}")]
    if missing:
        raise _bad(f"the event lacks {', '.join(missing)}")
    _check_version(headers["ce-specversion"])
    return CloudEvent(body, headers.get("content-type"), {})


def _structured(body: Buffer, content_type: str) -> CloudEvent:
    essence, charset = media_type(content_type)
    if essence != EVENT or charset not in {"utf-8", "utf8"}:
        raise refusal_error(415, "bad_content_type", f"events come one by one, as {EVENT}", accept=EVENT)
    try:
        envelope = _decode_envelope(body)
        parts = _decode_parts(body)
        attributes = {name: msgspec.json.decode(raw) for name, raw in parts.items() if name not in _DATA}
    except msgspec.ValidationError as error:
        raise _bad(f"the event is none of CloudEvents: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refusal_error(400, "bad_json", "the event is not JSON") from error
    _check_version(envelope.specversion)
    if not (envelope.id and envelope.source and envelope.type):
        raise _bad("the event's id, source or type is empty")
    return _event_of(envelope, attributes)


def _event_of(envelope: _Envelope, attributes: dict[str, Any]) -> CloudEvent:
    named = {f"ce-{name}": str(value) for name, value in attributes.items() if _is_plain(value)}
    content_type = envelope.datacontenttype or JSON
    if envelope.data_base64 is not None:
        if envelope.data is not msgspec.UNSET:
            raise _bad("the event has both data and data_base64")
        return CloudEvent(envelope.data_base64, envelope.datacontenttype, named)
    if isinstance(envelope.data, msgspec.UnsetType):
        return CloudEvent(b"", content_type, named)
    return CloudEvent(*_data(envelope.data, content_type), named)


def _data(raw: msgspec.Raw, content_type: str) -> tuple[Buffer, str]:
    """Data of another type than JSON is a JSON string of it (CloudEvents JSON format, 3.1)."""
    if media_type(content_type).essence == JSON:
        return bytes(raw), JSON
    try:
        return _decode_text(bytes(raw)).encode(), content_type
    except msgspec.ValidationError:
        return bytes(raw), JSON
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _bad(f"the event's data is no text, as {TEXT} would be") from error


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int, bool))


def _check_version(version: str) -> None:
    if version != "1.0":
        raise _bad("the event is not of CloudEvents 1.0")


def _bad(error: str) -> RefusedError:
    return refusal_error(400, "bad_event", error)
