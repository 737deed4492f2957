"""OpenAPI 3.1 of one function: how to call it, what it answers, and which errors there are.

It refuses to describe what the gateway adds, but for the token: versions and asynchronous calls are the gateway's.
"""

from collections.abc import Iterable
from typing import Any

from pgpu.functions.api import Declaration
from pgpu.functions.handler import REQUIRED, Signature
from pgpu.functions.protocols.description.json_schemas import JsonSchemas
from pgpu.functions.protocols.inference import HEADER_LENGTH
from pgpu.functions.protocols.media_types import BYTES, EVENT, JSON, MSGPACK, TEXT
from pgpu.functions.protocols.request_body import BodyReader
from pgpu.functions.protocols.results import accepted_types

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
    "description": "At a gateway, unless the function is public; in a replica nobody asks for one.",
}
_TIMEOUT = {
    "name": "Request-Timeout",
    "in": "header",
    "schema": {"type": "number", "exclusiveMinimum": 0},
    "description": "Seconds that the caller waits, if less than the function's own timeout.",
}


def openapi(name: str, signature: Signature, declaration: Declaration, version: str = "1") -> dict[str, Any]:
    """Describe a function.

    Args:
        name: The function's name.
        signature: What it takes and gives.
        declaration: Its limits.
        version: Of the function.

    Returns:
        A document that is right in a replica and at a gateway alike.
    """
    schemas = JsonSchemas()
    paths = {
        f"/functions/{name}": {"post": _call(signature, schemas)},
        f"/v2/models/{name}/infer": {"post": _inference()},
        f"/v2/models/{name}": {
            "get": _page("describe", "Inputs and outputs, as the Open Inference Protocol has them.")
        },
        "/v2/health/live": {"get": _page("live", "Whether the front answers.")},
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
            "responses": _error_responses(),
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
    return {
        "operationId": "call",
        "summary": signature.description,
        "parameters": [_TIMEOUT, *_query(signature, reader, schemas)],
        "requestBody": {
            "required": any(each.default is REQUIRED for each in signature.parameters),
            "content": {
                **{media: {"schema": _body(media, signature, schemas)} for media in reader.taken_types},
                EVENT: {"schema": _EVENT_SCHEMA},
            },
        },
        "responses": {
            "200": {"description": "The result.", "content": _results(signature, schemas)},
            **_references(_ERRORS),
        },
    }


def _query(signature: Signature, reader: BodyReader, schemas: JsonSchemas) -> list[dict[str, Any]]:
    """What a URL may say where the body is one argument as a whole."""
    if reader.whole_index is None:
        return []
    others = [each for index, each in enumerate(signature.parameters) if index != reader.whole_index]
    return [
        {"name": each.name, "in": "query", "schema": schemas.parameter(each), "description": "Beside a body of bytes."}
        for each in others
    ]


def _body(media: str, signature: Signature, schemas: JsonSchemas) -> dict[str, Any]:
    if media in {JSON, MSGPACK}:
        return schemas.call(signature)
    return {"type": "string"} if media == TEXT else {}


def _results(signature: Signature, schemas: JsonSchemas) -> dict[str, Any]:
    schema = schemas.of(signature.result)
    whole = {"type": "array", "items": schema} if signature.is_stream else schema
    written = {JSON: whole, MSGPACK: whole, TEXT: {"type": "string"}}
    return {media: {"schema": written.get(media, {})} for media in accepted_types(signature)}


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


def _error_responses() -> dict[str, Any]:
    content = {JSON: {"schema": {"$ref": "#/components/schemas/pgpu.Error"}}}
    return {f"Error{status}": {"description": text, "content": content} for status, text in _ERRORS.items()}
