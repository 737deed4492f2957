"""`pgpu invoke`: calls a function through the gateway and prints what it answers, as it comes."""

import json
import sys
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn
from urllib.parse import quote

import typer

from pgpu.cli import exits
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console
from pgpu.errors import AccessError, CapacityError, FunctionNotFoundError, NodeError, PgpuError, RequestError

if TYPE_CHECKING:
    from pgpu.client.connection import HttpTransport
    from pgpu.client.gateway_call import GatewayResponse

_JSON = "application/json"
_MOST_PIECES = 16
"""Of a refusal: it is one line, whoever wrote it."""

_NOT_TAKEN = {400, 406, 413, 415, 422}
"""What is wrong with a request itself, whoever finds it; so is what a handler says with the code `refused`."""

_NOT_STARTED = {"crash_loop", "starting_timeout"}

_ERRORS: dict[int, type[PgpuError]] = {
    401: AccessError,
    403: AccessError,
    404: FunctionNotFoundError,
    429: CapacityError,
    503: CapacityError,
    504: CapacityError,
}


def invoke(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A function.")],
    *,
    body: Annotated[str | None, typer.Option("--json", metavar="TEXT", help="The request: JSON.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="PATH", help="The request: a file as it is; - is standard input.")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="What the file is [by its name, else plain bytes].")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Ask for a stream of events, each as it comes.")] = False,
    is_async: Annotated[bool, typer.Option("--async", help="Leave the call to the server, and print its id.")] = False,
    result: Annotated[
        str | None, typer.Option("--result", metavar="ID", help="Print what became of a call of --async.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="How long it may take, waiting included: 5s.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The gateway [the socket of this machine's server].")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help="Leave to call it (PGPU_TOKEN).")
    ] = None,
) -> None:
    """Call a function and print its answer; exit code 1 where the function itself failed, 2 where it does not take the request."""
    from pgpu.app.clients import open_gateway

    if result is not None and (body is not None or file is not None or is_async):
        raise RequestError("a call that was made has its request already", hint="name --result alone")
    gateway = open_gateway(invocation_of(context).settings(token=token), url)
    headers = _headers(timeout, stream=stream, is_async=is_async)
    if result is not None:
        _call(gateway, name, ("GET", f"/calls/{quote(result, safe='')}"), None, headers)
        return
    data, kind = _request(body, file, content_type)
    path = f"/functions/{quote(name, safe='')}"
    _call(gateway, name, ("POST", path), data, {**headers, "Content-Type": kind})


def _headers(timeout: str | None, *, stream: bool, is_async: bool) -> dict[str, str]:
    from pgpu.units import parse_duration_seconds

    headers = {"Accept": "text/event-stream"} if stream else {}
    if is_async:
        headers["Prefer"] = "respond-async"
    if timeout is not None:
        headers["Request-Timeout"] = str(parse_duration_seconds(timeout))
    return headers


def _request(body: str | None, file: str | None, content_type: str | None) -> tuple[bytes, str]:
    if body is not None and file is not None:
        raise RequestError("a call has one request", hint="leave --json or --file out")
    if file is None:
        return (body if body is not None else "{}").encode("utf-8", "surrogateescape"), content_type or _JSON
    import mimetypes

    guessed = mimetypes.guess_type(file)[0] or "application/octet-stream"
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as exc:
        raise RequestError(f"{file} cannot be read: {exc.strerror}") from exc
    return data, content_type or guessed


def _call(
    gateway: "HttpTransport", name: str, target: tuple[str, str], body: bytes | None, headers: dict[str, str]
) -> None:
    from pgpu.client.gateway_call import call_gateway

    with call_gateway(gateway, *target, body, headers) as answer:
        if answer.status >= HTTPStatus.BAD_REQUEST:
            _fail(answer, name)
        if answer.status == HTTPStatus.ACCEPTED and "location" in answer.headers:
            print(answer.headers["location"].rpartition("/")[2])
            return
        for piece in answer.pieces():
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    if sys.stdout.isatty():
        print()


def _fail(answer: "GatewayResponse", name: str) -> NoReturn:
    """Say what the gateway said: which class of error, and the request's id for whoever looks into the log."""
    message, code = _said(b"".join(islice(answer.pieces(), _MOST_PIECES)).decode("utf-8", "replace"))
    is_refused = answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
    hint = _hint(answer, name, code)
    if code == "handler_error":
        console.print_note(f"the function failed: {message}")
        console.print_note(f"hint: {hint}")
        raise typer.Exit(exits.CALL_FAILED)
    if answer.status in _NOT_TAKEN or code == "refused":
        console.print_note(f"the request was refused: {answer.status} {code or 'refused'}: {message}")
        raise typer.Exit(exits.CALL_REFUSED)
    kind = _ERRORS.get(answer.status, RequestError if is_refused else NodeError)
    raise kind(f"{answer.status} {code or 'refused'}: {message}", hint=hint)


def _hint(answer: "GatewayResponse", name: str, code: str) -> str | None:
    """Say what to do about an answer that is none."""
    request_id, retry = answer.headers.get("x-request-id"), answer.headers.get("retry-after")
    if code in _NOT_STARTED:
        return f"why stands in its log: pgpu logs {name}"
    if answer.status == HTTPStatus.UNAUTHORIZED:
        return f"its owner makes one: pgpu token {name} create; then --token or PGPU_TOKEN"
    if code == "not_found":
        return "`pgpu functions` lists yours"
    if retry:
        return f"again in {retry} s"
    if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR or request_id is None:
        return None
    return f"the log names the request {request_id}: pgpu logs {name}"


def _said(text: str) -> tuple[str, str]:
    try:
        said = json.loads(text)
        return str(said["error"]), str(said.get("code", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        return text.strip()[:200] or "no reason was given", ""
