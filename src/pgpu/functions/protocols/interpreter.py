"""Translation of one function's calls and results, over all protocols; used by the worker.

Whatever bytes arrive, the outcome is arguments or a refusal, never an exception.
"""

import traceback
from collections.abc import Mapping
from typing import Any

import msgspec

from pgpu.functions.handler import Signature
from pgpu.functions.ipc.call_messages import Call
from pgpu.functions.protocols.body_reader import BodyReader, Buffer
from pgpu.functions.protocols.call_refusal import Refusal, RefusedError, handler_error, refusal_error
from pgpu.functions.protocols.cloud_events import find_event
from pgpu.functions.protocols.inference_request import TensorReader, read_request
from pgpu.functions.protocols.inference_result import InferenceWriter
from pgpu.functions.protocols.results import ResultWriter, plain_writer

_MODELS = "/v2/models/"

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
