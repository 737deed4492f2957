"""The routes of a gateway's paths, and the OpenAPI document of the paths that all functions share. Pure.

Whether a function of the name in a path exists is not checked here.
"""

import re
from enum import StrEnum
from functools import cache, lru_cache
from typing import Any, NamedTuple

import msgspec

from pgpu.distribution import installed_version

_NAME = r"(?P<name>[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?)"
_VERSION = r"(?:/versions/(?P<version>[1-9][0-9]{0,5}))?"
_CALL = r"(?P<call>[A-Za-z0-9._:-]{1,128})"


class RouteKind(StrEnum):
    """Kind of a path."""

    CALL = "call"
    NAMED_CALL = "named_call"
    """An asynchronous call under an id that its caller chose."""

    STORED = "stored"
    """An asynchronous call under an id that the gateway chose."""

    PART = "part"
    """A path below a function's, which only an ASGI application has."""

    MODEL = "model"
    MODEL_READY = "model_ready"
    OPENAPI = "openapi"
    PAGE = "page"
    NOTHING = "nothing"


class GatewayRoute(NamedTuple):
    """A parsed path."""

    kind: RouteKind
    name: str = ""
    """Name of a function, which may not exist."""

    version: int = 0
    """Chosen by the caller; 0: none."""

    call: str = ""
    """Id of an asynchronous call."""

    methods: str = "GET, HEAD"
    """Methods that the path takes."""


_PAGE_SUMMARIES = {
    "/healthz": "Whether the gateway lives.",
    "/readyz": "Whether it takes calls.",
    "/v2": "The server's metadata.",
    "/v2/health/live": "Whether the gateway lives.",
    "/v2/health/ready": "Whether it takes calls.",
    "/metrics": "Prometheus metrics, for administrators of the server.",
    "/openapi.json": "This document.",
}
"""Paths without a name in them."""

# In order: `PART` matches whatever the patterns above it do not.
_PATTERNS = [
    (RouteKind.CALL, "POST", re.compile(rf"/functions/{_NAME}")),
    (RouteKind.CALL, "POST", re.compile(rf"/v2/models/{_NAME}{_VERSION}/infer")),
    (RouteKind.NAMED_CALL, "GET, HEAD, PUT, DELETE", re.compile(rf"/functions/{_NAME}/calls/{_CALL}")),
    (RouteKind.STORED, "GET, HEAD, DELETE", re.compile(rf"/calls/{_CALL}")),
    (RouteKind.OPENAPI, "GET, HEAD", re.compile(rf"/functions/{_NAME}/openapi\.json")),
    (RouteKind.PART, "", re.compile(rf"/functions/{_NAME}/.*", re.DOTALL)),
    (RouteKind.MODEL, "GET, HEAD", re.compile(rf"/v2/models/{_NAME}{_VERSION}")),
    (RouteKind.MODEL_READY, "GET, HEAD", re.compile(rf"/v2/models/{_NAME}{_VERSION}/ready")),
]


@lru_cache(4096)
def parse_route(path: str) -> GatewayRoute:
    if path in _PAGE_SUMMARIES:
        return GatewayRoute(RouteKind.PAGE)
    for kind, methods, pattern in _PATTERNS:
        if (match := pattern.fullmatch(path)) is not None:
            found = match.groupdict()
            version = int(found.get("version") or 0)
            return GatewayRoute(kind, found.get("name") or "", version, found.get("call") or "", methods)
    return GatewayRoute(RouteKind.NOTHING)


_ERROR = {
    "type": "object",
    "required": ["error", "code", "request_id"],
    "properties": {"error": {"type": "string"}, "code": {"type": "string"}, "request_id": {"type": "string"}},
}
_NAME_PARAMETER = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_VERSION_PARAMETER = {"name": "version", "in": "path", "required": True, "schema": {"type": "string"}}
_CALL_PARAMETER = {"name": "call", "in": "path", "required": True, "schema": {"type": "string"}}
_TIMEOUT_HEADER = {"name": "Request-Timeout", "in": "header", "schema": {"type": "number", "exclusiveMinimum": 0}}
_PREFER_HEADER = {"name": "Prefer", "in": "header", "schema": {"type": "string", "enum": ["respond-async"]}}
_BODY: dict[str, Any] = {"content": {"application/json": {"schema": {}}, "application/octet-stream": {"schema": {}}}}
_ANY = {"description": "The function's answer, in the type that it has.", "content": {"*/*": {"schema": {}}}}


@cache
def openapi_document() -> bytes:
    calls = {
        "/functions/{name}": {"post": _call("Call a function.", [_NAME_PARAMETER, _TIMEOUT_HEADER, _PREFER_HEADER])},
        "/v2/models/{name}/infer": {
            "post": _call("Infer by the Open Inference Protocol.", [_NAME_PARAMETER, _TIMEOUT_HEADER])
        },
        "/v2/models/{name}/versions/{version}/infer": {
            "post": _call("Infer with one version.", [_NAME_PARAMETER, _VERSION_PARAMETER, _TIMEOUT_HEADER])
        },
        "/functions/{name}/calls/{call}": {
            "put": _call(
                "Call a function asynchronously under an id of yours; again does nothing.",
                [_NAME_PARAMETER, _CALL_PARAMETER],
            ),
            **_stored_call([_NAME_PARAMETER, _CALL_PARAMETER]),
        },
        "/calls/{call}": _stored_call([_CALL_PARAMETER]),
        "/functions/{name}/openapi.json": {"get": _page("The function's own description.", [_NAME_PARAMETER])},
        "/v2/models/{name}": {"get": _page("A function's tensors.", [_NAME_PARAMETER])},
        "/v2/models/{name}/ready": {"get": _page("Whether a function can be called.", [_NAME_PARAMETER])},
    }
    pages = {path: {"get": _page(summary, [])} for path, summary in _PAGE_SUMMARIES.items()}
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


def _refusal_responses(*statuses: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {status: {"description": "Refused; `code` is the reason.", "content": content} for status in statuses}


def _call(summary: str, parameters: list[Any]) -> dict[str, Any]:
    answers = {"200": _ANY, "202": {"description": "Stored; `Location` is the path of its answer."}}
    return {
        "summary": summary,
        "parameters": parameters,
        "requestBody": _BODY,
        "responses": {**answers, **_refusal_responses("4XX", "5XX")},
    }


def _page(summary: str, parameters: list[Any]) -> dict[str, Any]:
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {"200": _ANY, **_refusal_responses("4XX", "503")},
    }


def _stored_call(parameters: list[Any]) -> dict[str, Any]:
    waits = {"202": {"description": "It has no answer yet.", "content": {"application/json": {"schema": {}}}}}
    return {
        "get": {
            "summary": "The answer of an asynchronous call, unchanged.",
            "parameters": parameters,
            "responses": {"200": _ANY, **waits, **_refusal_responses("4XX", "5XX")},
        },
        "delete": {
            "summary": "Cancel an asynchronous call and forget its answer.",
            "parameters": parameters,
            "responses": {"204": {"description": "It is forgotten."}, **_refusal_responses("4XX", "5XX")},
        },
    }
