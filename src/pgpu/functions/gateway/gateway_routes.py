"""The routes of a gateway's paths. Pure; whether a named function exists is not checked here."""

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

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


class Route(NamedTuple):
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


PAGES = frozenset(
    {"/healthz", "/readyz", "/v2", "/v2/health/live", "/v2/health/ready", "/metrics", "/openapi.json"},
)
"""Paths without a name in them."""

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
def parse_route(path: str) -> Route:
    """Parse a path."""
    if path in PAGES:
        return Route(RouteKind.PAGE)
    for kind, methods, pattern in _PATTERNS:
        if (match := pattern.fullmatch(path)) is not None:
            found = match.groupdict()
            version = int(found.get("version") or 0)
            return Route(kind, found.get("name") or "", version, found.get("call") or "", methods)
    return Route(RouteKind.NOTHING)
