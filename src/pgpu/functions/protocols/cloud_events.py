"""CloudEvents 1.0 over HTTP: an event's attributes, and its data, which is read like any body.

Batches are rejected, since one response cannot answer several events.

Source: CloudEvents 1.0.2, HTTP protocol binding, 3.1 (binary), 3.2 (structured).
"""

from collections.abc import Mapping

import msgspec

from pgpu.functions.protocols.body_reader import Buffer
from pgpu.functions.protocols.call_refusal import RefusedError, refusal_error
from pgpu.functions.protocols.media_types import EVENT, JSON, TEXT, media_type

_ANY = "application/cloudevents"
_DATA = {"data", "data_base64"}
_REQUIRED = ("id", "source", "specversion", "type")


class CloudEvent(msgspec.Struct, frozen=True):
    """The content of an event."""

    body: Buffer
    content_type: str | None
    """Of the data; None if the event has none."""

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
    """Return the event in a request; None for a plain request.

    Raises:
        RefusedError: It is an invalid event, or a batch.
    """
    content_type = headers.get("content-type", "")
    if content_type and content_type[:23].lower() == _ANY:
        return _parse_structured(body, content_type)
    if "ce-specversion" not in headers and "ce-id" not in headers:
        return None
    missing = [f"ce-{name}" for name in _REQUIRED if not headers.get(f"ce-{name}")]
    if missing:
        raise _bad_event(f"the event lacks {', '.join(missing)}")
    _check_version(headers["ce-specversion"])
    return CloudEvent(body, headers.get("content-type"), {})


def _parse_structured(body: Buffer, content_type: str) -> CloudEvent:
    essence, charset = media_type(content_type)
    if essence != EVENT or charset not in {"utf-8", "utf8"}:
        raise refusal_error(415, "bad_content_type", f"an event is sent alone, as {EVENT}", accept=EVENT)
    try:
        envelope = _decode_envelope(body)
        parts = _decode_parts(body)
        attributes = {name: msgspec.json.decode(raw) for name, raw in parts.items() if name not in _DATA}
    except msgspec.ValidationError as error:
        raise _bad_event(f"this is no CloudEvent: {error}") from error
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise refusal_error(400, "bad_json", "the event is not JSON") from error
    _check_version(envelope.specversion)
    if not (envelope.id and envelope.source and envelope.type):
        raise _bad_event("the event's id, source or type is empty")
    plain = {f"ce-{name}": str(value) for name, value in attributes.items() if isinstance(value, (str, int, bool))}
    if envelope.data_base64 is not None:
        if envelope.data is not msgspec.UNSET:
            raise _bad_event("the event has both data and data_base64")
        return CloudEvent(envelope.data_base64, envelope.datacontenttype, plain)
    data_type = envelope.datacontenttype or JSON
    if isinstance(envelope.data, msgspec.UnsetType):
        return CloudEvent(b"", data_type, plain)
    return CloudEvent(*_decode_data(envelope.data, data_type), plain)


def _decode_data(raw: msgspec.Raw, content_type: str) -> tuple[Buffer, str]:
    """Return the data and its type; data of another type than JSON is a JSON string (CloudEvents JSON format, 3.1)."""
    if media_type(content_type).essence == JSON:
        return bytes(raw), JSON
    try:
        return _decode_text(bytes(raw)).encode(), content_type
    except msgspec.ValidationError:
        return bytes(raw), JSON
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _bad_event(f"the event's data is no text, as {TEXT} would be") from error


def _check_version(version: str) -> None:
    if version != "1.0":
        raise _bad_event("the event is not of CloudEvents 1.0")


def _bad_event(error: str) -> RefusedError:
    return refusal_error(400, "bad_event", error)
