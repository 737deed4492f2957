"""JSON schemas of parameters and results, from their annotations.

It refuses to fail: what has no schema is described as anything.
"""

from typing import Any

import msgspec

from pgpu.functions.handler import REQUIRED, Parameter, Signature
from pgpu.functions.protocols.library_types import is_array

_REFERENCE = "#/components/schemas/{name}"
_ARRAY = {"$ref": "#/components/schemas/pgpu.Array"}
_ARRAY_SCHEMA = {
    "type": "array",
    "items": {"anyOf": [{"type": "number"}, {"type": "boolean"}, _ARRAY]},
    "description": "A rectangular array of numbers, nested lists.",
}


class JsonSchemas:
    """Schemas that refer to one another; `components` has those with names."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """The schema of a type."""
        try:
            found, components = msgspec.json.schema_components(
                [kind], schema_hook=self._foreign, ref_template=_REFERENCE
            )
        except TypeError:
            return {}
        self.components.update(components)
        schema: dict[str, Any] = found[0]
        return schema

    def call(self, signature: Signature) -> dict[str, Any]:
        """The schema of a call's body: an object with a key for each parameter, or the only one itself."""
        keyed = self.keyed(signature)
        if len(signature.parameters) != 1 or signature.takes_others:
            return keyed
        return {"anyOf": [keyed, self.of(signature.parameters[0].annotation)]}

    def keyed(self, signature: Signature) -> dict[str, Any]:
        """The schema of an object with a key for each parameter."""
        return {
            "type": "object",
            "properties": {each.name: self.parameter(each) for each in signature.parameters},
            "required": [each.name for each in signature.parameters if each.default is REQUIRED],
            "additionalProperties": self.of(signature.others) if signature.takes_others else False,
        }

    def parameter(self, parameter: Parameter) -> dict[str, Any]:
        """The schema of one parameter, with its default where JSON can say it."""
        schema = self.of(parameter.annotation)
        if parameter.default is REQUIRED:
            return schema
        try:
            return {**schema, "default": msgspec.to_builtins(parameter.default)}
        except (TypeError, ValueError, RecursionError):
            return schema

    def _foreign(self, kind: Any) -> dict[str, Any]:
        if is_array(kind):
            self.components["pgpu.Array"] = _ARRAY_SCHEMA
            return _ARRAY
        if hasattr(kind, "model_json_schema"):
            return self._model(kind)
        return {}

    def _model(self, kind: Any) -> dict[str, Any]:
        schema: dict[str, Any] = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        self.components.update(schema.pop("$defs", {}))
        return schema
