"""A function's descriptions for programs: OpenAPI 3.1, JSON schemas, V2 metadata, and an example request.

They depend only on the code, so the worker writes them once, and the replica serves them without running the user's code.
They promise no more than the annotations say; a type without a schema is described as anything. Versions and asynchronous
calls are the gateway's and are left out.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from pgpu.functions.api import Declaration
from pgpu.functions.handler import REQUIRED, Parameter, Signature
from pgpu.functions.protocols.body_reader import BodyReader
from pgpu.functions.protocols.inference_request import HEADER_LENGTH
from pgpu.functions.protocols.inference_result import model_metadata
from pgpu.functions.protocols.library_types import is_array
from pgpu.functions.protocols.media_types import BYTES, EVENT, JSON, MSGPACK, TEXT
from pgpu.functions.protocols.results import accepted_types

_EXTENSIONS = ["binary_tensor_data"]
_ERRORS = {
    400: "The body is malformed.",
    406: "The Accept header allows nothing that this function gives.",
    413: "The body is too large.",
    415: "The function does not take this Content-Type.",
    422: "The body's values are not of the function's types.",
    429: "Too many requests wait; see Retry-After.",
    500: "The function raised an exception; `error` is its type.",
    502: "The worker died while it served the request.",
    503: "The function cannot serve now; see Retry-After.",
    504: "The deadline passed.",
}
_ERROR_SCHEMA = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}, "request_id": {"type": "string"}},
    "required": ["error", "code", "request_id"],
}
_EVENT_SCHEMA = {
    "type": "object",
    "properties": {
        **{name: {"type": "string", "minLength": 1} for name in ("id", "source", "type")},
        "specversion": {"const": "1.0"},
        "datacontenttype": {"type": "string"},
        "data": {},
        "data_base64": {"type": "string", "contentEncoding": "base64"},
    },
    "required": ["id", "source", "type", "specversion"],
}
_TOKEN = {
    "type": "http",
    "scheme": "bearer",
    "description": "At a gateway, unless the function is public; a replica asks for none.",
}
_TIMEOUT = {
    "name": "Request-Timeout",
    "in": "header",
    "schema": {"type": "number", "exclusiveMinimum": 0},
    "description": "Seconds that the caller waits, if less than the function's own timeout.",
}


_ERROR_CONTENT = {JSON: {"schema": {"$ref": "#/components/schemas/pgpu.Error"}}}
_ARRAY = {"$ref": "#/components/schemas/pgpu.Array"}
_ARRAY_SCHEMA = {
    "type": "array",
    "items": {"anyOf": [{"type": "number"}, {"type": "boolean"}, _ARRAY]},
    "description": "A rectangular array of numbers, nested lists.",
}
_EXAMPLES: dict[Any, Any] = {"integer": 1, "number": 1.0, "string": "text", "boolean": True}


class JsonSchemas:
    """JSON schemas of parameters and results; named ones are collected in `components`."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def of(self, kind: Any) -> dict[str, Any]:
        """Return the schema of a type."""
        try:
            found, components = msgspec.json.schema_components(
                [kind], schema_hook=self._library_type, ref_template="#/components/schemas/{name}"
            )
        except TypeError:
            return {}
        self.components.update(components)
        schema: dict[str, Any] = found[0]
        return schema

    def object_schema(self, signature: Signature) -> dict[str, Any]:
        """Return the schema of an object with a key for each parameter."""
        return {
            "type": "object",
            "properties": {each.name: self.parameter(each) for each in signature.parameters},
            "required": [each.name for each in signature.parameters if each.default is REQUIRED],
            "additionalProperties": self.of(signature.others) if signature.takes_others else False,
        }

    def parameter(self, parameter: Parameter) -> dict[str, Any]:
        """Return the schema of one parameter, with its default if JSON can hold it."""
        schema = self.of(parameter.annotation)
        if parameter.default is REQUIRED:
            return schema
        try:
            return {**schema, "default": msgspec.to_builtins(parameter.default)}
        except (TypeError, ValueError, RecursionError):
            return schema

    def _library_type(self, kind: Any) -> dict[str, Any]:
        if is_array(kind):
            self.components["pgpu.Array"] = _ARRAY_SCHEMA
            return _ARRAY
        if not hasattr(kind, "model_json_schema"):
            return {}
        schema: dict[str, Any] = kind.model_json_schema(ref_template="#/components/schemas/{model}")
        self.components.update(schema.pop("$defs", {}))
        return schema


def pages(name: str, signature: Signature, declaration: Declaration, version: str = "1") -> dict[str, bytes]:
    """Write the pages of a function that depend only on its code.

    Returns:
        JSON by path: `/openapi.json`, `/v2`, `/v2/models/NAME` and `/v2/models/NAME/versions/VERSION`. Empty for an ASGI
        application, which has pages of its own.
    """
    if declaration.is_asgi:
        return {}
    model = msgspec.json.encode(model_metadata(name, version, signature))
    return {
        "/openapi.json": msgspec.json.encode(openapi(name, signature, declaration, version)),
        "/v2": msgspec.json.encode({"name": "pgpu", "version": version, "extensions": _EXTENSIONS}),
        f"/v2/models/{name}": model,
        f"/v2/models/{name}/versions/{version}": model,
    }


def example_body(signature: Signature) -> Any:
    """Return an example body of JSON values with only the required arguments; its types are right, its values arbitrary."""
    schemas = JsonSchemas()
    return _example_of(schemas.object_schema(signature), schemas.components)


def _example_of(schema: dict[str, Any], components: dict[str, Any]) -> Any:
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if "enum" in schema:
        return schema["enum"][0]
    if "$ref" in schema:
        return _example_of(components.get(schema["$ref"].rpartition("/")[2], {}), components)
    if options := schema.get("anyOf"):
        return None if {"type": "null"} in options else _example_of(options[0], components)
    return _example_of_type(schema, components)


def _example_of_type(schema: dict[str, Any], components: dict[str, Any]) -> Any:
    kind = schema.get("type")
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _example_of(properties[name], components) for name in schema.get("required", ())}
    if kind == "array":
        # No elements for lists of records: a record may contain a list of its own kind.
        parts = schema.get("prefixItems") or [schema.get("items") or {}]
        return [] if any("$ref" in each for each in parts) else [_example_of(each, components) for each in parts]
    if "contentEncoding" in schema:
        return ""
    return schema.get("minimum", _EXAMPLES.get(kind))


def openapi(name: str, signature: Signature, declaration: Declaration, version: str = "1") -> dict[str, Any]:
    """Return the OpenAPI document of a function; it is valid at a replica and at a gateway."""
    schemas = JsonSchemas()
    paths = {
        f"/functions/{name}": {"post": _call(signature, schemas)},
        f"/v2/models/{name}/infer": {"post": _inference()},
        f"/v2/models/{name}": {
            "get": _page("describe", "Inputs and outputs, as the Open Inference Protocol has them.")
        },
        "/v2/health/live": {"get": _page("live", "Whether the replica answers.")},
        "/v2/health/ready": {"get": _page("ready", "Whether a call would be served now.", 503)},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": version, "description": signature.description},
        "servers": [{"url": "/"}],
        "security": [{"token": []}, {}],
        "paths": paths,
        "components": {
            "schemas": {**schemas.components, "pgpu.Error": _ERROR_SCHEMA},
            "responses": {
                f"Error{status}": {"description": text, "content": _ERROR_CONTENT} for status, text in _ERRORS.items()
            },
            "securitySchemes": {"token": _TOKEN},
        },
        "x-pgpu": {
            "timeout_seconds": declaration.timeout_seconds,
            "max_body_bytes": declaration.max_body_bytes,
            "is_idempotent": declaration.is_idempotent,
        },
    }


def _call(signature: Signature, schemas: JsonSchemas) -> dict[str, Any]:
    reader = BodyReader(signature)
    beside = [
        {"name": each.name, "in": "query", "schema": schemas.parameter(each), "description": "Beside a body of bytes."}
        for index, each in enumerate(signature.parameters)
        if reader.whole_index is not None and index != reader.whole_index
    ]
    keyed = schemas.object_schema(signature)
    if len(signature.parameters) == 1 and not signature.takes_others:
        keyed = {"anyOf": [keyed, schemas.of(signature.parameters[0].annotation)]}
    bodies = {JSON: keyed, MSGPACK: keyed, TEXT: {"type": "string"}}
    content = {media: {"schema": bodies.get(media, {})} for media in reader.content_types}
    schema = schemas.of(signature.result)
    whole = {"type": "array", "items": schema} if signature.is_stream else schema
    results = {JSON: whole, MSGPACK: whole, TEXT: {"type": "string"}}
    answers = {media: {"schema": results.get(media, {})} for media in accepted_types(signature)}
    return {
        "operationId": "call",
        "summary": signature.description,
        "parameters": [_TIMEOUT, *beside],
        "requestBody": {
            "required": any(each.default is REQUIRED for each in signature.parameters),
            "content": {**content, EVENT: {"schema": _EVENT_SCHEMA}},
        },
        "responses": {"200": {"description": "The result.", "content": answers}, **_references(_ERRORS)},
    }


def _inference() -> dict[str, Any]:
    return {
        "operationId": "infer",
        "summary": "Call it with tensors (Open Inference Protocol V2).",
        "parameters": [{"name": HEADER_LENGTH, "in": "header", "schema": {"type": "integer", "minimum": 0}}],
        "requestBody": {"required": True, "content": {JSON: {"schema": _tensors("inputs")}, BYTES: {"schema": {}}}},
        "responses": {
            "200": {
                "description": "The outputs.",
                "content": {JSON: {"schema": _tensors("outputs")}, BYTES: {"schema": {}}},
            },
            **_references(_ERRORS),
        },
    }


def _tensors(key: str) -> dict[str, Any]:
    tensor = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
            "datatype": {"type": "string"},
            "parameters": {"type": "object"},
            "data": {"type": "array"},
        },
        "required": ["name", "shape", "datatype"],
    }
    return {
        "type": "object",
        "properties": {"id": {"type": "string"}, key: {"type": "array", "items": tensor}},
        "required": [key],
    }


def _page(operation: str, summary: str, *errors: int) -> dict[str, Any]:
    answer = {"description": summary, "content": {JSON: {"schema": {"type": "object"}}}}
    return {"operationId": operation, "summary": summary, "responses": {str(code): answer for code in (200, *errors)}}


def _references(statuses: Iterable[int]) -> dict[str, Any]:
    return {str(status): {"$ref": f"#/components/responses/Error{status}"} for status in statuses}
