"""One call's body into arguments, by its Content-Type.

Everything that can be decided from the signature is decided once, before the first request. It refuses a body whose
type the handler cannot take: 415, with what it can.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from pgpu.functions.handler import REQUIRED, Parameter, Signature, Values
from pgpu.functions.protocols.call_refusal import RefusedError, refusal_error
from pgpu.functions.protocols.library_types import bare_type, check_readable
from pgpu.functions.protocols.media_types import BYTES, FORM, JSON, MSGPACK, TEXT, MediaType, media_type
from pgpu.functions.protocols.request_body.keyed_reader import Buffer, KeyedReader, json_decoder, msgpack_decoder
from pgpu.functions.protocols.request_body.query_reader import QueryReader

_NOT_SPECIAL = MediaType(BYTES, "utf-8")
_UTF8 = {"utf-8", "utf8", "us-ascii", "ascii"}


class BodyReader:
    """Reads bodies for one signature."""

    def __init__(self, signature: Signature) -> None:
        """Decide how bodies are read.

        Raises:
            RequestError: A parameter is of a type that no request can hold.
        """
        for each in signature.parameters:
            check_readable(each)
        self._parameters = signature.parameters
        self._is_nothing_required = all(each.default is not REQUIRED for each in signature.parameters)
        self._is_raw_alone = len(signature.parameters) == 1 and _is_bytes(signature.parameters[0])
        self._raw = _whole_body_index(signature, _is_bytes)
        self._as_asked = bare_type(signature.parameters[self._raw].annotation) if self._raw is not None else bytes
        self._text = 0 if _whole_body_index(signature, _is_text) == 0 else None
        self._json = KeyedReader(signature, json_decoder)
        self._msgpack = KeyedReader(signature, msgpack_decoder)
        self._queries = {
            index: QueryReader(_without(signature.parameters, index))
            for index in {self._raw, self._text}
            if index is not None
        }

    @property
    def taken_types(self) -> tuple[str, ...]:
        """The media types that the handler takes, its favourite first; `*/*` for one that takes any bytes."""
        keyed = () if self._is_raw_alone else (JSON, MSGPACK)
        text = (TEXT,) if self._text is not None else ()
        return ("*/*", *keyed) if self._raw is not None else (*keyed, *text)

    @property
    def whole_index(self) -> int | None:
        """Which parameter a body of bytes, or of text, becomes as a whole; the query says the others then."""
        return self._raw if self._raw is not None else self._text

    def read(self, body: Buffer, content_type: str | None, query: str) -> Values:
        """Read the arguments of one call.

        Args:
            body: The whole body.
            content_type: The header as it came; None: raw bytes for a handler that takes them, else JSON.
            query: What stands after the URL's `?`, still encoded; read only beside a raw or text body.

        Raises:
            RefusedError: The body is no call of this handler: 400, 415 or 422.
        """
        try:
            return self._reader(content_type)(body, query)
        except msgspec.ValidationError as error:
            raise refusal_error(422, "bad_input", self._explained(str(error))) from error
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise refusal_error(400, *_malformed(content_type)) from error

    def read_json(self, body: Buffer) -> Values:
        """Read the arguments out of JSON that came inside something else.

        Raises:
            RefusedError: It is no call of this handler: 400 or 422.
        """
        return self.read(body, JSON, "")

    def _reader(self, content_type: str | None) -> Callable[[Buffer, str], Values]:
        if self._is_raw_alone:
            return self._read_raw
        media = media_type(content_type) if content_type else self._unsaid()
        if media.essence == FORM:
            media = self._unsaid()
        if media.essence in {JSON, TEXT} and media.charset not in _UTF8:
            raise refusal_error(415, "bad_charset", "text is read as UTF-8 only")
        if media.essence == JSON:
            return self._read_json
        if media.essence == MSGPACK:
            return self._read_msgpack
        if self._raw is not None:
            return self._read_raw
        if media.essence == TEXT and self._text is not None:
            return self._read_text
        raise self._not_taken()

    def _unsaid(self) -> MediaType:
        return _NOT_SPECIAL if self._raw is not None else MediaType(JSON, "utf-8")

    def _not_taken(self) -> RefusedError:
        taken = ", ".join(self.taken_types)
        error = f"the body's Content-Type is none that this function takes: {taken}"
        return refusal_error(415, "bad_content_type", error, accept=taken)

    def _read_json(self, body: Buffer, _query: str) -> Values:
        return self._json.read(body if len(body) or not self._is_nothing_required else b"{}")

    def _read_msgpack(self, body: Buffer, _query: str) -> Values:
        return self._msgpack.read(body if len(body) or not self._is_nothing_required else b"\x80")

    def _read_raw(self, body: Buffer, query: str) -> Values:
        assert self._raw is not None  # noqa: S101 - for the type checker
        return self._around(self._raw, self._as_asked(body), query)

    def _read_text(self, body: Buffer, query: str) -> Values:
        assert self._text is not None  # noqa: S101 - for the type checker
        return self._around(self._text, str(body, "utf-8"), query)

    def _around(self, index: int, whole: Any, query: str) -> Values:
        if len(self._parameters) == 1 and not query:
            return (whole,)
        others = self._queries[index].read(query)
        return (*others[:index], whole, *others[index:])

    def _explained(self, error: str) -> str:
        if error.startswith("Expected `object`") and " at `" not in error and self._parameters:
            names = ", ".join(each.name for each in self._parameters)
            return f"{error}; the body is an object with these keys: {names}"
        return error


def _malformed(content_type: str | None) -> tuple[str, str]:
    essence = media_type(content_type).essence if content_type else JSON
    words = {MSGPACK: ("bad_msgpack", "the body is not msgpack"), TEXT: ("bad_text", "the body is not UTF-8 text")}
    return words.get(essence, ("bad_json", "the body is not JSON"))


def _is_bytes(parameter: Parameter) -> bool:
    """Bytes of any kind; of a `memoryview`, nothing is copied."""
    return bare_type(parameter.annotation) in {bytes, bytearray, memoryview}


def _is_text(parameter: Parameter) -> bool:
    return bare_type(parameter.annotation) is str


def _whole_body_index(signature: Signature, fits: Callable[[Parameter], bool]) -> int | None:
    """Which parameter a body that is no object becomes: the only one of its type, if nothing takes other keys."""
    found = [index for index, each in enumerate(signature.parameters) if fits(each)]
    return found[0] if len(found) == 1 and not signature.takes_others else None


def _without(parameters: tuple[Parameter, ...], index: int) -> tuple[Parameter, ...]:
    return parameters[:index] + parameters[index + 1 :]
