"""Arguments out of a URL's query, where the body is one argument as a whole: an image, with `?top_k=5`.

It refuses keys that no parameter has, as everywhere.
"""

import typing
from urllib.parse import parse_qsl

import msgspec

from pgpu.functions.handler import Parameter, Values
from pgpu.functions.protocols.call_refusal import refusal_error
from pgpu.functions.protocols.library_types import bare_type, decode_library_type
from pgpu.functions.protocols.request_body.keyed_reader import record_of, values_of

_MOST_FIELDS = 1000


class QueryReader:
    """Reads what the body leaves to say."""

    def __init__(self, parameters: tuple[Parameter, ...]) -> None:
        self._record = record_of(parameters, forbids_others=True)
        self._values = values_of(parameters)
        self._lists = frozenset(each.name for each in parameters if _is_list(each))

    def read(self, query: str) -> Values:
        """Read arguments from a query.

        Raises:
            RefusedError: The query is malformed.
            msgspec.ValidationError: An argument is missing, of another type, or none of the handler's.
        """
        return self._values(
            msgspec.convert(self._said(query), self._record, strict=False, dec_hook=decode_library_type)
        )

    def _said(self, query: str) -> dict[str, str | list[str]]:
        said: dict[str, str | list[str]] = {}
        for name, value in _pairs(query):
            if name in self._lists:
                said[name] = [*said.get(name, ()), value]
            elif name in said:
                raise refusal_error(400, "bad_query", "the query says one argument twice")
            else:
                said[name] = value
        return said


def _pairs(query: str) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS)
    except ValueError as error:
        raise refusal_error(400, "bad_query", "the query is malformed") from error


def _is_list(parameter: Parameter) -> bool:
    kind = bare_type(parameter.annotation)
    return (typing.get_origin(kind) or kind) in {list, tuple, set, frozenset}
