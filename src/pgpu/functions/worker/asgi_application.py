"""ASGI applications: what a call is in their words, and their lifespan, which is a handler's `warmup` and `close`.

It refuses to run one for a request: its lane does.

Source: ASGI 3.0, HTTP connection scope 2.3 and lifespan 2.0; uvicorn's own code speaks the latter.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import replace
from typing import Any

import uvicorn
from uvicorn.lifespan.on import LifespanOn

from pgpu.errors import PgpuError
from pgpu.functions.handler import Handler
from pgpu.functions.ipc.messages import Call, Reply
from pgpu.units import KIB

Message = MutableMapping[str, Any]
"""With a `type`."""

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_OF_THE_CONNECTION = frozenset(
    {"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
"""The front says its own: an application has no connection here."""

_STATUSES = range(200, 600)
_MOST_HEAD_BYTES = 64 * KIB
"""Of an answer's headers: no client reads more, and no frame holds any number."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_VALUE = re.compile(r"[^\r\n\0]*")


class StartupFailedError(PgpuError):
    """The application said that it cannot start; why it said to the log."""


def mount_application(handler: Handler, name: str) -> Handler:
    """Give an application's handler its lifespan, and a target that takes a call instead of a scope.

    Args:
        handler: Of the application.
        name: Of the function: a gateway has the application below `/functions/NAME`.
    """
    config = uvicorn.Config(
        handler.target, interface="asgi3", http=asyncio.Protocol, ws="none", log_config=None, proxy_headers=False
    )
    lifespan = LifespanOn(config)

    async def start() -> None:
        await lifespan.startup()
        if lifespan.should_exit:
            raise StartupFailedError("the application cannot start")

    def run(call: Call, receive: Receive, send: Send) -> Awaitable[None]:
        scope = {**build_scope(call, f"/functions/{name}"), "state": lifespan.state.copy()}
        running: Awaitable[None] = handler.target(scope, receive, send)
        return running

    return replace(handler, target=run, warmup=start, close=lifespan.shutdown)


def build_scope(call: Call, root: str) -> Message:
    """Say what a call is.

    Args:
        call: Its head.
        root: The path below which the application is mounted where the call's path begins with it.
    """
    is_below = call.path == root or call.path.startswith(f"{root}/")
    headers = {**call.headers, "x-request-id": call.id}
    return {
        "type": "http",
        "asgi": _ASGI,
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": f"{root}/" if call.path == root else call.path,
        "query_string": call.query.encode("latin-1"),
        "root_path": root if is_below else "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        "client": None,
        "server": None,
    }


def read_response_start(start: Message) -> Reply:
    """Read what begins an answer.

    Raises:
        ValueError: HTTP cannot say it.
    """
    status = start["status"]
    if status not in _STATUSES:
        raise ValueError(f"an answer's status is not {status!r}")
    return Reply(int(status), _joined(start.get("headers", ())))


def _joined(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Join headers of one name. Two Set-Cookie cannot be, so the second is spelt in other cases, which are one to HTTP."""
    headers: dict[str, str] = {}
    cookies = size_bytes = 0
    for raw, value in pairs:
        name, text = raw.decode("latin-1").lower(), value.decode("latin-1")
        size_bytes += len(name) + len(text)
        if size_bytes > _MOST_HEAD_BYTES:
            raise ValueError(f"an answer's headers take more than {_MOST_HEAD_BYTES // KIB} KiB")
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(text)):
            raise ValueError(f"no header of HTTP is {name!r}: {text!r}")
        if name == "set-cookie":
            headers[_spelt(name, cookies)] = text
            cookies += 1
        elif name not in _OF_THE_CONNECTION:
            headers[name] = f"{headers[name]}, {text}" if name in headers else text
    return headers


def _spelt(name: str, number: int) -> str:
    """Write a name with the letters in capitals that a number's bits choose.

    Raises:
        ValueError: It has fewer spellings.
    """
    spelt, rest = "", number
    for letter in name:
        spelt += letter.upper() if rest & 1 else letter
        rest >>= letter.isalpha()
    if rest:
        raise ValueError(f"an answer has no more than {number} times {name}")
    return spelt
