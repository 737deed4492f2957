"""Calls of a function without processes and sockets: bytes in, arguments or a refusal out, and the reply."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pgpu.functions.api import Context, Declaration
from pgpu.functions.handler import Loaded, signature_of
from pgpu.functions.ipc.call_messages import Call, Reply
from pgpu.functions.protocols import Interpreter, ParsedCall, Refusal

JSON = {"content-type": "application/json"}


def asked(
    handler: Callable[..., Any],
    body: bytes | bytearray | memoryview,
    headers: Mapping[str, str] = JSON,
    *,
    query: str = "",
    path: str = "/",
) -> ParsedCall | Refusal:
    """Read one call."""
    call = Call("id-1", "POST", path, query, dict(headers), 1.0)
    return Interpreter(signature_of(handler), "it").read(call, body)


def values(handler: Callable[..., Any], body: bytes, headers: Mapping[str, str] = JSON, *, query: str = "") -> Any:
    """Read one call's arguments; of a refusal, its status, code and error."""
    found = asked(handler, body, headers, query=query)
    return found.values if isinstance(found, ParsedCall) else (found.status, found.code, found.error)


def reply(
    handler: Callable[..., Any],
    body: bytes | bytearray | memoryview = b"",
    headers: Mapping[str, str] = JSON,
    *,
    path: str = "/",
) -> Reply:
    """Read one call, call the handler and write its result, or a refusal."""
    found = asked(handler, body, headers, path=path)
    written = found if isinstance(found, Refusal) else found.form.write(called(handler, found))
    return written.reply("id-1") if isinstance(written, Refusal) else written


def called(handler: Callable[..., Any], found: ParsedCall) -> Any:
    """Call a handler with what was read."""
    constructed = Loaded(handler, "it", Declaration()).construct(Declaration())
    return constructed.call(found.values, Context("id-1", found.headers))


def told(answer: Reply) -> Any:
    """Decode a reply's JSON."""
    return msgspec.json.decode(answer.body)
