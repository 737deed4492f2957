"""Translation of one function's calls and results, over all protocols; used by the worker.

Whatever bytes arrive, the outcome is arguments or a refusal, never an exception. A CloudEvent is unpacked first: its data is
read like any body, its attributes become headers. Batches of events are rejected, since one response cannot answer several.

Source: CloudEvents 1.0.2, HTTP protocol binding, 3.1 (binary), 3.2 (structured).
"""

import traceback
from collections.abc import Mapping
from typing import Any

import msgspec

from pgpu.functions.handler import Signature
from pgpu.functions.ipc.call_messages import Call
from pgpu.functions.protocols.body_reader import BodyReader, Buffer
from pgpu.functions.protocols.call_refusal import Refusal, RefusedError, handler_error, refusal_error
from pgpu.functions.protocols.inference_request import TensorReader, read_request
from pgpu.functions.protocols.inference_result import InferenceWriter
from pgpu.functions.protocols.media_types import EVENT, JSON, TEXT, media_type
from pgpu.functions.protocols.results import ResultWriter, plain_writer

_MODELS = "/v2/models/"
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


# Accept headers that are cached: browsers and clients send few, an attacker any number.
_MOST_WRITERS = 256


class ParsedCall(msgspec.Struct, frozen=True):
    """The arguments of a call. Does not keep the body, so that a large one is released once its arguments are read."""

    values: tuple[Any, ...]
    """In the order of the signature's parameters; if it takes `**others`, a dict of them follows."""

    form: ResultWriter
    """How the result is written."""

    headers: Mapping[str, str]
    """For the context: the request's headers, and for a structured event its attributes as `ce-…`."""


class Interpreter:
    """Reads the calls of one function and chooses the writers of their results."""

    def __init__(self, signature: Signature, name: str, version: str = "1") -> None:
        """Prepare the readers from the signature.

        Raises:
            RequestError: A parameter's type cannot be decoded.
        """
        self._signature = signature
        self._name, self._version = name, version
        self._bodies = BodyReader(signature)
        self._tensors = TensorReader(signature)
        self._writers: dict[str | None, ResultWriter] = {}

    def read(self, call: Call, body: Buffer) -> ParsedCall | Refusal:
        """Read a call's arguments and choose the form of its result.

        Args:
            call: Its head; its own body is ignored.
            body: The whole body, which may lie in a memory file. Arrays may share its memory.
        """
        try:
            return self._read_inference(call, body) if call.path.startswith(_MODELS) else self._read_plain(call, body)
        except RefusedError as error:
            return error.refusal
        except BaseException as error:  # noqa: BLE001 - the user's own types may raise anything while they are made
            return handler_error(error, "".join(traceback.format_exception(error)))

    def _read_inference(self, call: Call, body: Buffer) -> ParsedCall:
        _check_encoding(call.headers)
        request = read_request(body, call.headers)
        # The path is /v2/models/NAME/infer or /v2/models/NAME/versions/VERSION/infer.
        version = call.path.partition("/versions/")[2].partition("/")[0] or self._version
        return ParsedCall(self._tensors.read(request), InferenceWriter(self._name, version, request), call.headers)

    def _read_plain(self, call: Call, body: Buffer) -> ParsedCall:
        headers = call.headers
        form = self._writer_for(headers.get("accept"))
        _check_encoding(headers)
        event = find_event(body, headers)
        if event is None:
            return ParsedCall(self._bodies.read(body, headers.get("content-type"), call.query), form, headers)
        values = self._bodies.read(event.body, event.content_type, "")
        return ParsedCall(values, form, {**headers, **event.attributes} if event.attributes else headers)

    def _writer_for(self, accept: str | None) -> ResultWriter:
        writer = self._writers.get(accept)
        if writer is None:
            writer = plain_writer(self._signature, accept)
            if writer is None:
                raise refusal_error(406, "not_acceptable", "the Accept header allows nothing that this function gives")
            # Cleared rather than evicted one by one: real clients refill it with their few headers at once.
            if len(self._writers) >= _MOST_WRITERS:
                self._writers.clear()
            self._writers[accept] = writer
        return writer


def _check_encoding(headers: Mapping[str, str]) -> None:
    if "content-encoding" in headers and headers["content-encoding"].lower() != "identity":
        raise refusal_error(415, "bad_encoding", "bodies are taken uncompressed", accept_encoding="identity")
