"""An example of a request, made of its schema: what `pgpu dev` shows to paste.

It refuses to promise that the handler likes it: its types alone are right, and where a schema cannot say more, not even those.
"""

from typing import Any

from pgpu.functions.handler import Signature
from pgpu.functions.protocols.description.json_schemas import JsonSchemas

_PLAIN: dict[Any, Any] = {"integer": 1, "number": 1.0, "string": "text", "boolean": True}
_NULL = {"type": "null"}


def example_body(signature: Signature) -> Any:
    """Make a body with what a request must say and nothing else, of JSON's own values."""
    schemas = JsonSchemas()
    return _value(schemas.keyed(signature), schemas.components)


def _value(schema: dict[str, Any], components: dict[str, Any]) -> Any:
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    if "$ref" in schema:
        return _value(components.get(schema["$ref"].rpartition("/")[2], {}), components)
    if options := schema.get("anyOf"):
        return None if _NULL in options else _value(options[0], components)
    return _of_type(schema, components)


def _of_type(schema: dict[str, Any], components: dict[str, Any]) -> Any:
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _value(properties[name], components) for name in schema.get("required", ())}
    if kind == "array":
        return [_value(each, components) for each in _parts(schema)]
    if "contentEncoding" in schema:
        return ""
    return schema.get("minimum", _PLAIN.get(kind))


def _parts(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """The elements of a tuple, or one of a list; of records none, which may hold others of their kind."""
    parts = schema.get("prefixItems") or [schema.get("items") or {}]
    return [] if any("$ref" in each for each in parts) else parts
