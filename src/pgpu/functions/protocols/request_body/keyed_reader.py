"""Arguments out of an object with a key for each: JSON's or msgpack's, decoded and validated in one pass in C.

It refuses keys that no parameter has: a misspelt `top_k` must not become its default.
"""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from pgpu.functions.handler import REQUIRED, Parameter, Signature, Values
from pgpu.functions.protocols.library_types import decode_library_type

Buffer = bytes | bytearray | memoryview


class _Decoder(Protocol):
    def decode(self, buffer: Buffer, /) -> Any: ...


MakeDecoder = Callable[[Any], _Decoder]
"""Makes a decoder of one format for a type."""


def json_decoder(kind: Any) -> _Decoder:
    """Make a decoder of JSON."""
    return msgspec.json.Decoder(kind, dec_hook=decode_library_type)


def msgpack_decoder(kind: Any) -> _Decoder:
    """Make a decoder of msgpack."""
    return msgspec.msgpack.Decoder(kind, dec_hook=decode_library_type)


def record_of(parameters: tuple[Parameter, ...], *, forbids_others: bool) -> type[msgspec.Struct]:
    """Make a type with a field for each parameter, which validates a whole call at once."""
    fields = [(each.name, each.annotation, _default(each)) for each in parameters if each.default is not REQUIRED]
    required = [(each.name, each.annotation) for each in parameters if each.default is REQUIRED]
    return msgspec.defstruct("Arguments", [*required, *fields], kw_only=True, forbid_unknown_fields=forbids_others)


def _default(parameter: Parameter) -> Any:
    """A default is handed to the handler as it is, whatever it is, so msgspec must not copy or check it."""
    value = parameter.default
    return msgspec.field(default_factory=lambda: value)


def values_of(parameters: tuple[Parameter, ...]) -> Callable[[msgspec.Struct], Values]:
    """Make what takes a record's values in the order of the parameters, which is not always that of its fields."""
    names = tuple(each.name for each in parameters)
    has_order = names == tuple(each.name for each in sorted(parameters, key=lambda p: p.default is not REQUIRED))
    if has_order:
        return msgspec.structs.astuple
    return lambda record: tuple(getattr(record, name) for name in names)


class KeyedReader:
    """Reads the body of a call in one format."""

    def __init__(self, signature: Signature, make: MakeDecoder) -> None:
        parameters = signature.parameters
        self._decode = make(record_of(parameters, forbids_others=not signature.takes_others)).decode
        self._values = values_of(parameters)
        self._keys = make(dict[str, msgspec.Raw]).decode
        self._names = frozenset(each.name for each in parameters)
        is_alone = len(parameters) == 1 and not signature.takes_others
        self._decode_whole = make(parameters[0].annotation).decode if is_alone else None
        self._decode_other = make(signature.others).decode if signature.takes_others else None

    def read(self, body: Buffer) -> Values:
        """Read arguments from a body that is an object with their names, or the only argument itself.

        Raises:
            msgspec.DecodeError: The body is malformed; as `msgspec.ValidationError`, of other types than annotated.
        """
        try:
            values = self._values(self._decode(body))
        except msgspec.ValidationError:
            whole = self._whole(body)
            if whole is None:
                raise
            return whole
        return values if self._decode_other is None else (*values, self._others(body))

    def _whole(self, body: Buffer) -> Values | None:
        """Read the only argument; None: there is none such, and what is wrong with the object holds."""
        if self._decode_whole is None:
            return None
        try:
            return (self._decode_whole(body),)
        except msgspec.ValidationError:
            if self._has_key(body):
                return None
            raise

    def _has_key(self, body: Buffer) -> bool:
        try:
            return not self._names.isdisjoint(self._keys(body))
        except msgspec.DecodeError:
            return False

    def _others(self, body: Buffer) -> dict[str, Any]:
        assert self._decode_other is not None  # noqa: S101 - for the type checker
        raw = self._keys(body)
        return {key: self._decode_other(value) for key, value in raw.items() if key not in self._names}
