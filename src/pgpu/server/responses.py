"""Request bodies and HTTP answers, encoded by `pgpu.services.wire`: FastAPI routes and describes, it does not convert."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import field, make_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from msgspec import NODEFAULT
from pydantic import TypeAdapter
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Scope

from pgpu.errors import (
    AccessError,
    CapacityError,
    FunctionNotFoundError,
    JobNotFoundError,
    NodeError,
    PgpuBug,
    PgpuError,
    RequestError,
    UnauthenticatedError,
)
from pgpu.services import wire
from pgpu.structs import FieldInfo, Struct, asdict, fields

T = TypeVar("T")

# Several times the largest environment and command that the kernel accepts.
MOST_BODY_BYTES = 16 << 20

_LARGE_BODY_BYTES = 1 << 18

# Decoded concurrently; others wait, so that threads of the pool stay free for small requests.
LARGE_BODIES_AT_ONCE = 2

_BODY_SECONDS = 60.0

_STATUSES: tuple[tuple[type[PgpuError], int], ...] = (
    (UnauthenticatedError, 401),
    (AccessError, 403),
    (JobNotFoundError, 404),
    (FunctionNotFoundError, 404),
    (RequestError, 400),
    (CapacityError, 409),
    (NodeError, 503),
)


class JsonResponse(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return wire.encode(content)


def error_response(error: PgpuError) -> JsonResponse:
    """Return the answer for an error."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return JsonResponse(wire.encode_error(error), status)


def bug_response(scope: Scope) -> JsonResponse:
    """Return the answer for an error that has no answer of its own."""
    hint = "please report what the server logged"
    return error_response(PgpuBug(f"{scope['method']} {scope['path']} failed", hint=hint))


def raw_error_response(status: int, error: PgpuError) -> bytes:
    """Return a whole HTTP answer, for a connection that is closed before a request was read."""
    body = wire.encode(wire.encode_error(error))
    head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


def parse_body(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """Return a FastAPI dependency that decodes a request's body, in the thread pool."""

    async def read(request: Request) -> T:
        data = bytearray()
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                # What came is counted: Content-Length may be missing or wrong.
                async for chunk in request.stream():
                    data += chunk
                    if len(data) > MOST_BODY_BYTES:
                        raise RequestError(f"the request is longer than {MOST_BODY_BYTES >> 20} MiB")
        except TimeoutError:
            raise RequestError(f"the request did not come within {_BODY_SECONDS:.0f} seconds") from None
        # Without the limit, large bodies could occupy every thread of the pool.
        async with request.app.state.large_bodies if len(data) > _LARGE_BODY_BYTES else contextlib.nullcontext():
            return await run_in_threadpool(lambda: wire.decode(kind, wire.parse(bytes(data))))

    return read


def body_schema(kind: type[Any]) -> dict[str, Any]:
    """Return the OpenAPI part of a route with a body for `parse_body`."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@cache
def described(kind: Any) -> Any:
    """Return the type that FastAPI describes in place of an answer's: pydantic knows dataclasses and no structs.

    Args:
        kind: A struct, or a type that contains some.

    Returns:
        The same type with a dataclass of the same name, fields and docstring for each struct.
    """
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind)
        members = [(each.name, described(hints[each.name]), *_default_of(each)) for each in fields(kind)]
        return make_dataclass(kind.__name__, members, namespace={"__doc__": kind.__doc__}, frozen=True)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return Union[tuple(described(each) for each in arguments)]  # noqa: UP007 - its members are computed
    if origin in {tuple, list, dict}:
        return origin[tuple(described(each) for each in arguments)]
    return kind


def _default_of(each: FieldInfo) -> tuple[Any, ...]:
    if each.default_factory is not NODEFAULT:
        return (field(default_factory=each.default_factory),)
    if isinstance(each.default, Struct):
        return (described(type(each.default))(**asdict(each.default)),)
    return () if each.required else (each.default,)


def add_body_schemas(app: FastAPI, bodies: Iterable[type[Any]]) -> None:
    """Add the schemas that `body_schema` refers to to an application's OpenAPI document."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            components = schema.setdefault("components", {}).setdefault("schemas", {})
            for kind in bodies:
                schema_of_kind = TypeAdapter(described(cast("Hashable", kind))).json_schema(
                    ref_template="#/components/schemas/{model}"
                )
                components.update(schema_of_kind.pop("$defs", {}))
                components[kind.__name__] = schema_of_kind
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # as in fastapi.tiangolo.com/how-to/extending-openapi
