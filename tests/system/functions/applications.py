"""ASGI applications that the tests serve; this file is the source directory's module, imported by zygotes."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


@contextlib.asynccontextmanager
async def _lifespan(_app: Starlette) -> AsyncIterator[dict[str, Any]]:
    _say("started")
    yield {"weights": 7, "arrived": [], "all_in": asyncio.Event()}
    _say("stopped")


async def _tell(request: Request) -> Response:
    said = {
        "method": request.method,
        "path": request.path_params["path"],
        "url": str(request.url),
        "body": (await request.body()).decode(),
        "header": request.headers.get("x-mine"),
        "id": request.headers["x-request-id"],
        "weights": request.state.weights,
    }
    return JSONResponse(said, status_code=201)


async def _cookies(_request: Request) -> Response:
    response = Response(b"x" * 2_000_000, media_type="image/png")
    response.set_cookie("a", "1")
    response.set_cookie("b", "2")
    return response


async def _stream(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(int(request.query_params["count"])):
            if str(number) == request.query_params.get("fail_at"):
                raise ValueError("somebody's secret")
            yield b"%d\n" % number

    return StreamingResponse(pieces(), media_type="text/plain")


async def _raise(_request: Request) -> Response:
    raise KeyError("somebody's secret")


async def _until_left(request: Request) -> Response:
    _say("they came")
    while (await request.receive())["type"] != "http.disconnect":
        pass
    _say("they left")
    return Response()


async def _meet(request: Request) -> Response:
    """Answer once three calls are inside."""
    request.state.arrived.append(1)
    if len(request.state.arrived) == 3:
        request.state.all_in.set()
    await request.state.all_in.wait()
    return Response(b"met")


async def _behind(_request: Request) -> Response:
    return Response(b"at once", background=BackgroundTask(_say, "done behind it"))


app = Starlette(
    routes=[
        Route("/tell/{path:path}", _tell, methods=["GET", "POST", "PUT"]),
        Route("/", _behind, methods=["GET", "POST"]),
        Route("/cookies", _cookies),
        Route("/stream", _stream),
        Route("/raise", _raise),
        Route("/until_left", _until_left),
        Route("/meet", _meet),
    ],
    lifespan=_lifespan,
)


ODD_HEADS: dict[str, dict[str, Any]] = {
    "/name": {"headers": [(b"no name", b"x")]},
    "/value": {"headers": [(b"x-name", b"x\r\nx-other: y")]},
    "/status": {"status": 99},
    "/word": {"status": "fine"},
    "/large": {"headers": [(b"x-name", b"x" * 5_000_000)]},
    "/many": {"headers": [(b"set-cookie", b"a=1")] * 513},
}

ODD_BODIES: dict[str, Any] = {"/text": "text", "/none": None}


def _head(status: int = 200, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


async def _odd(path: str, send: Any) -> None:
    """Answer what few applications do, and most of it none should."""
    if path == "/half":
        await send(_head())
    elif path == "/exit":
        raise SystemExit(3)
    elif path == "/cookies":
        await send(_head(200, *((b"set-cookie", b"%d=1" % number) for number in range(40))))
        await send({"type": "http.response.body"})
    elif path in ODD_HEADS:
        await send({**_head(), **ODD_HEADS[path]})
    elif path in ODD_BODIES:
        await send(_head())
        await send({"type": "http.response.body", "body": ODD_BODIES[path]})
    elif path in {"/204", "/304"}:
        await send(_head(int(path[1:])))
        await send({"type": "http.response.body", "body": b"HTTP/1.1 200 OK", "more_body": True})
        await send({"type": "http.response.body", "body": b"\r\n\r\n"})


class Bare:
    """An application of one's own, constructed as every class is; it knows of no lifespan."""

    def __init__(self, word: str = "bare") -> None:
        self.word = word

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        if scope["path"] != "/":
            await _odd(scope["path"], send)
            return
        await receive()
        await send(_head(200, (b"connection", b"close")))
        await send({"type": "http.response.body", "body": self.word.encode()})
        assert (await receive())["type"] == "http.disconnect"


@contextlib.asynccontextmanager
async def _fails(_app: Starlette) -> AsyncIterator[None]:
    raise RuntimeError("no weights")
    yield


without_weights = Starlette(lifespan=_fails)
