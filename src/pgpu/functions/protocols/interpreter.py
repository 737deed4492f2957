"""Calls into arguments and results into replies, for one function: everything that a worker says over HTTP.

It refuses to fail: whatever bytes come in, it gives arguments or a refusal.
"""

import traceback
from collections.abc import Mapping

from pgpu.functions.handler import Signature
from pgpu.functions.ipc.messages import Call
from pgpu.functions.protocols.call_refusal import Refusal, RefusedError, handler_error, refusal_error
from pgpu.functions.protocols.inference import InferenceWriter, TensorReader, read_request
from pgpu.functions.protocols.parsed_call import ParsedCall, ResultWriter
from pgpu.functions.protocols.request_body import BodyReader, Buffer, find_event
from pgpu.functions.protocols.results import plain_writer

_MODELS = "/v2/models/"

_MOST_FORMS = 256
"""Accept headers that are remembered: browsers and clients have few, an attacker as many as it likes."""


class Interpreter:
    """Reads the calls of one function and writes its answers."""

    def __init__(self, signature: Signature, name: str, version: str = "1") -> None:
        """Decide from the signature how bodies are read and answers written.

        Raises:
            RequestError: A parameter is of a type that no request can hold.
        """
        self._signature = signature
        self._name, self._version = name, version
        self._bodies = BodyReader(signature)
        self._tensors = TensorReader(signature)
        self._forms: dict[str | None, ResultWriter | None] = {}

    def read(self, call: Call, body: Buffer) -> ParsedCall | Refusal:
        """Read a call's arguments, and how it wants its answer.

        Args:
            call: Its head; its own body is not looked at.
            body: The whole body, which may lie in a memory file. Arrays may share its memory.
        """
        try:
            return self._inference(call, body) if call.path.startswith(_MODELS) else self._plain(call, body)
        except RefusedError as error:
            return error.refusal
        except BaseException as error:  # noqa: BLE001 - values are made by the user's own types, which may raise anything
            return handler_error(error, "".join(traceback.format_exception(error)))

    def _inference(self, call: Call, body: Buffer) -> ParsedCall:
        _check_encoding(call.headers)
        request = read_request(body, call.headers)
        form = InferenceWriter(self._name, _version_in(call.path) or self._version, request)
        return ParsedCall(self._tensors.read(request), form, call.headers)

    def _plain(self, call: Call, body: Buffer) -> ParsedCall:
        headers = call.headers
        form = self._form(headers.get("accept"))
        _check_encoding(headers)
        event = find_event(body, headers)
        if event is None:
            return ParsedCall(self._bodies.read(body, headers.get("content-type"), call.query), form, headers)
        values = self._bodies.read(event.body, event.content_type, "")
        return ParsedCall(values, form, _with_attributes(headers, event.attributes))

    def _form(self, accept: str | None) -> ResultWriter:
        form = self._forms.get(accept)
        if form is None:
            form = plain_writer(self._signature, accept)
            if form is None:
                raise refusal_error(406, "not_acceptable", "the Accept header allows nothing that this function gives")
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            self._forms[accept] = form
        return form


def _check_encoding(headers: Mapping[str, str]) -> None:
    if "content-encoding" in headers and headers["content-encoding"].lower() != "identity":
        raise refusal_error(415, "bad_encoding", "bodies are taken uncompressed", accept_encoding="identity")


def _version_in(path: str) -> str:
    """The version in `/v2/models/NAME/versions/VERSION/infer`; empty where there is none."""
    return path.partition("/versions/")[2].partition("/")[0]


def _with_attributes(headers: Mapping[str, str], attributes: dict[str, str]) -> Mapping[str, str]:
    return {**headers, **attributes} if attributes else headers
