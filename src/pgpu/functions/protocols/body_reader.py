"""Arguments from a request: JSON, msgpack, text or raw bytes, and the URL's query beside a raw body.

Everything that depends only on the signature is decided once, before the first request. A call is decoded and validated in one
pass by msgspec. Unknown keys are rejected: a misspelt `top_k` must not become its default.
"""

import typing
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import parse_qsl

import msgspec

from pgpu.functions.handler import REQUIRED, Parameter, Signature, Values
from pgpu.functions.protocols.call_refusal import refusal_error
from pgpu.functions.protocols.library_types import bare_type, check_readable, decode_library_type
from pgpu.functions.protocols.media_types import BYTES, FORM, JSON, MSGPACK, TEXT, MediaType, media_type

Buffer = bytes | bytearray | memoryview

_RAW = MediaType(BYTES, "utf-8")
_UTF8 = {"utf-8", "utf8", "us-ascii", "ascii"}
_MOST_QUERY_FIELDS = 1000


class _Decoder(Protocol):
    def decode(self, buffer: Buffer, /) -> Any: ...


_MakeDecoder = Callable[[Any], _Decoder]


class BodyReader:
    """Reads the bodies of one signature."""

    def __init__(self, signature: Signature) -> None:
        """Decide how bodies are read.

        Raises:
            RequestError: A parameter's type cannot be decoded.
        """
        for each in signature.parameters:
            check_readable(each)
        parameters = self._parameters = signature.parameters
        self._is_nothing_required = all(each.default is not REQUIRED for each in parameters)
        # `memoryview` is among the types of bytes: its body is not copied.
        byte_types: set[Any] = {bytes, bytearray, memoryview}
        self._is_raw_alone = len(parameters) == 1 and bare_type(parameters[0].annotation) in byte_types
        self._raw = _whole_body_index(signature, byte_types)
        self._raw_type = bare_type(parameters[self._raw].annotation) if self._raw is not None else bytes
        self._text = 0 if _whole_body_index(signature, {str}) == 0 else None
        self._json = _KeyedReader(signature, lambda kind: msgspec.json.Decoder(kind, dec_hook=decode_library_type))
        self._msgpack = _KeyedReader(
            signature, lambda kind: msgspec.msgpack.Decoder(kind, dec_hook=decode_library_type)
        )
        self._queries = {
            index: _QueryReader(parameters[:index] + parameters[index + 1 :])
            for index in {self._raw, self._text}
            if index is not None
        }

    @property
    def content_types(self) -> tuple[str, ...]:
        """Accepted media types, the preferred one first; `*/*` for a handler that takes any bytes."""
        keyed = () if self._is_raw_alone else (JSON, MSGPACK)
        text = (TEXT,) if self._text is not None else ()
        return ("*/*", *keyed) if self._raw is not None else (*keyed, *text)

    @property
    def whole_index(self) -> int | None:
        """The parameter that gets a body of bytes or text as a whole; the query then has the other arguments."""
        return self._raw if self._raw is not None else self._text

    def read(self, body: Buffer, content_type: str | None, query: str) -> Values:
        """Read the arguments of one call.

        Args:
            body: The whole body.
            content_type: The header; None: raw bytes for a handler that takes them, else JSON.
            query: The part of the URL after `?`, still encoded; used only beside a raw or text body.

        Raises:
            RefusedError: The request does not fit the signature: 400, 415 or 422.
        """
        try:
            return self._reader(content_type)(body, query)
        except msgspec.ValidationError as error:
            text = str(error)
            if text.startswith("Expected `object`") and " at `" not in text and self._parameters:
                names = ", ".join(each.name for each in self._parameters)
                text = f"{text}; the body is an object with these keys: {names}"
            raise refusal_error(422, "bad_input", text) from error
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            essence = media_type(content_type).essence if content_type else JSON
            if essence == MSGPACK:
                raise refusal_error(400, "bad_msgpack", "the body is not msgpack") from error
            if essence == TEXT:
                raise refusal_error(400, "bad_text", "the body is not UTF-8 text") from error
            raise refusal_error(400, "bad_json", "the body is not JSON") from error

    def _reader(self, content_type: str | None) -> Callable[[Buffer, str], Values]:
        if self._is_raw_alone:
            return self._read_raw
        default = _RAW if self._raw is not None else MediaType(JSON, "utf-8")
        media = media_type(content_type) if content_type else default
        if media.essence == FORM:
            media = default
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
        taken = ", ".join(self.content_types)
        error = f"this function does not take the body's Content-Type; it takes {taken}"
        raise refusal_error(415, "bad_content_type", error, accept=taken)

    def _read_json(self, body: Buffer, _query: str) -> Values:
        return self._json.read(body if len(body) or not self._is_nothing_required else b"{}")

    def _read_msgpack(self, body: Buffer, _query: str) -> Values:
        return self._msgpack.read(body if len(body) or not self._is_nothing_required else b"\x80")

    def _read_raw(self, body: Buffer, query: str) -> Values:
        assert self._raw is not None  # noqa: S101 - for the type checker
        return self._with_query(self._raw, self._raw_type(body), query)

    def _read_text(self, body: Buffer, query: str) -> Values:
        assert self._text is not None  # noqa: S101 - for the type checker
        return self._with_query(self._text, str(body, "utf-8"), query)

    def _with_query(self, index: int, whole: Any, query: str) -> Values:
        if len(self._parameters) == 1 and not query:
            return (whole,)
        others = self._queries[index].read(query)
        return (*others[:index], whole, *others[index:])


def _whole_body_index(signature: Signature, kinds: set[Any]) -> int | None:
    """Return the parameter that gets a body that is no object: the only one of these types, unless there are `**others`."""
    found = [index for index, each in enumerate(signature.parameters) if bare_type(each.annotation) in kinds]
    return found[0] if len(found) == 1 and not signature.takes_others else None


def _record_of(parameters: tuple[Parameter, ...], *, forbids_others: bool) -> type[msgspec.Struct]:
    """Make a struct with a field for each parameter, which validates a whole call at once."""

    def default(value: Any) -> Any:
        # A factory, since msgspec must neither copy nor check a default: the handler gets the same object.
        return msgspec.field(default_factory=lambda: value)

    required = [(each.name, each.annotation) for each in parameters if each.default is REQUIRED]
    others = [
        (each.name, each.annotation, default(each.default)) for each in parameters if each.default is not REQUIRED
    ]
    return msgspec.defstruct("Arguments", [*required, *others], kw_only=True, forbid_unknown_fields=forbids_others)


def _values_of(parameters: tuple[Parameter, ...]) -> Callable[[msgspec.Struct], Values]:
    """Return a function that takes a record's values in the order of the parameters."""
    names = tuple(each.name for each in parameters)
    # The record's fields are in another order if an optional parameter precedes a required one.
    if names == tuple(each.name for each in sorted(parameters, key=lambda p: p.default is not REQUIRED)):
        return msgspec.structs.astuple
    return lambda record: tuple(getattr(record, name) for name in names)


class _KeyedReader:
    """Reads bodies in one format: an object with a key for each parameter, or the only argument itself."""

    def __init__(self, signature: Signature, make: _MakeDecoder) -> None:
        parameters = signature.parameters
        self._decode = make(_record_of(parameters, forbids_others=not signature.takes_others)).decode
        self._values = _values_of(parameters)
        self._keys = make(dict[str, msgspec.Raw]).decode
        self._names = frozenset(each.name for each in parameters)
        is_alone = len(parameters) == 1 and not signature.takes_others
        self._decode_whole = make(parameters[0].annotation).decode if is_alone else None
        self._decode_other = make(signature.others).decode if signature.takes_others else None

    def read(self, body: Buffer) -> Values:
        """Read the arguments.

        Raises:
            msgspec.DecodeError: The body is malformed; as `msgspec.ValidationError`, of other types than annotated.
        """
        try:
            values = self._values(self._decode(body))
        except msgspec.ValidationError:
            # The body may be the only argument itself instead of an object with its key.
            whole = self._read_whole(body)
            if whole is None:
                raise
            return whole
        if self._decode_other is None:
            return values
        others = {key: self._decode_other(raw) for key, raw in self._keys(body).items() if key not in self._names}
        return (*values, others)

    def _read_whole(self, body: Buffer) -> Values | None:
        """Read the body as the only argument; None if it must be an object, whose error then applies."""
        if self._decode_whole is None:
            return None
        try:
            return (self._decode_whole(body),)
        except msgspec.ValidationError:
            try:
                if not self._names.isdisjoint(self._keys(body)):
                    return None
            except msgspec.DecodeError:
                pass
            raise


class _QueryReader:
    """Reads the arguments beside a body that is one argument as a whole: an image, with `?top_k=5`."""

    def __init__(self, parameters: tuple[Parameter, ...]) -> None:
        self._record = _record_of(parameters, forbids_others=True)
        self._values = _values_of(parameters)
        kinds = {each.name: bare_type(each.annotation) for each in parameters}
        sequences = {list, tuple, set, frozenset}
        self._lists = {name for name, kind in kinds.items() if (typing.get_origin(kind) or kind) in sequences}

    def read(self, query: str) -> Values:
        """Read arguments from a query.

        Raises:
            RefusedError: The query is malformed.
            msgspec.ValidationError: An argument is missing, unknown, or of another type.
        """
        try:
            pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_QUERY_FIELDS)
        except ValueError as error:
            raise refusal_error(400, "bad_query", "the query is malformed") from error
        arguments: dict[str, str | list[str]] = {}
        for name, value in pairs:
            if name in self._lists:
                arguments[name] = [*arguments.get(name, ()), value]
            elif name in arguments:
                raise refusal_error(400, "bad_query", "the query has one argument twice")
            else:
                arguments[name] = value
        return self._values(msgspec.convert(arguments, self._record, strict=False, dec_hook=decode_library_type))
