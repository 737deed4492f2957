"""The gateway's own OpenAPI document: the paths that all functions share."""

from functools import cache
from typing import Any

import msgspec

from pgpu.distribution import installed_version

_ERROR = {
    "type": "object",
    "required": ["error", "code", "request_id"],
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}, "request_id": {"type": "string"}},
}
_NAME = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_VERSION = {"name": "version", "in": "path", "required": True, "schema": {"type": "string"}}
_CALL = {"name": "call", "in": "path", "required": True, "schema": {"type": "string"}}
_TIMEOUT = {"name": "Request-Timeout", "in": "header", "schema": {"type": "number", "exclusiveMinimum": 0}}
_PREFER = {"name": "Prefer", "in": "header", "schema": {"type": "string", "enum": ["respond-async"]}}
_BODY: dict[str, Any] = {"content": {"application/json": {"schema": {}}, "application/octet-stream": {"schema": {}}}}
_ANY = {"description": "The function's answer, in the type that it has.", "content": {"*/*": {"schema": {}}}}


@cache
def openapi_document() -> bytes:
    """Return the document as JSON."""
    calls = {
        "/functions/{name}": {"post": _call("Call a function.", [_NAME, _TIMEOUT, _PREFER])},
        "/v2/models/{name}/infer": {"post": _call("Infer, as the Open Inference Protocol says.", [_NAME, _TIMEOUT])},
        "/v2/models/{name}/versions/{version}/infer": {
            "post": _call("Infer with one version.", [_NAME, _VERSION, _TIMEOUT])
        },
        "/functions/{name}/calls/{call}": {
            "put": _call("Call a function asynchronously under an id of yours; again does nothing.", [_NAME, _CALL]),
            **_stored([_NAME, _CALL]),
        },
        "/calls/{call}": _stored([_CALL]),
        "/functions/{name}/openapi.json": {"get": _page("The function's own description.", [_NAME])},
        "/v2/models/{name}": {"get": _page("A function's tensors.", [_NAME])},
        "/v2/models/{name}/ready": {"get": _page("Whether a function can be called.", [_NAME])},
    }
    pages = {path: {"get": _page(said, [])} for path, said in _PAGES.items()}
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "pgpu functions", "version": installed_version()},
            "paths": {**calls, **pages},
            "components": {
                "schemas": {"Error": _ERROR},
                "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            },
            "security": [{"token": []}, {}],
        }
    )


_PAGES = {
    "/healthz": "Whether the gateway lives.",
    "/readyz": "Whether it takes calls.",
    "/v2": "The server's metadata.",
    "/v2/health/live": "Whether the gateway lives.",
    "/v2/health/ready": "Whether it takes calls.",
    "/metrics": "Prometheus metrics, for who administers the server.",
    "/openapi.json": "This document.",
}


def _refused(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": "Refused; `code` says why.", "content": content} for status in statuses}


def _call(summary: str, parameters: list[Any]) -> dict[str, Any]:
    answers = {"200": _ANY, "202": {"description": "Kept; `Location` says where its answer will be."}}
    return {
        "summary": summary,
        "parameters": parameters,
        "requestBody": _BODY,
        "responses": {**answers, **_refused("4XX", "5XX")},
    }


def _page(summary: str, parameters: list[Any]) -> dict[str, Any]:
    return {"summary": summary, "parameters": parameters, "responses": {"200": _ANY, **_refused("4XX", "503")}}


def _stored(parameters: list[Any]) -> dict[str, Any]:
    waits = {"202": {"description": "It has no answer yet.", "content": {"application/json": {"schema": {}}}}}
    return {
        "get": {
            "summary": "The answer of an asynchronous call, as the function gave it.",
            "parameters": parameters,
            "responses": {"200": _ANY, **waits, **_refused("4XX", "5XX")},
        },
        "delete": {
            "summary": "Cancel an asynchronous call and forget its answer.",
            "parameters": parameters,
            "responses": {"204": {"description": "It is forgotten."}, **_refused("4XX", "5XX")},
        },
    }
