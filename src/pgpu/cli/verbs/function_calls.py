"""`pgpu function invoke` calls a function through the gateway; `pgpu function dev` serves one in place, without a server.

`invoke` prints the answer as it arrives. `dev` runs the function's code in processes of its own.
"""

import importlib.util
import json
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote

import typer

from pgpu.cli import exits, options
from pgpu.cli.invocation import Invocation, invocation_of
from pgpu.cli.output import console
from pgpu.distribution import extra_hint
from pgpu.errors import AccessError, CapacityError, FunctionNotFoundError, NodeError, PgpuError, RequestError
from pgpu.units import MIB

if TYPE_CHECKING:
    from pgpu.client.http_transport import GatewayResponse, HttpTransport
    from pgpu.functions.api import Declaration
    from pgpu.functions.dev.dev_session import DevSession
    from pgpu.functions.dev.function_source import FunctionDescription, FunctionSource

_JSON = "application/json"
_MOST_PIECES = 16
"""How much of an error's body is read: it is one line."""

_BAD_REQUEST_STATUSES = {400, 406, 413, 415, 422}
"""The request itself is wrong, as found by gateway or replica; a handler reports the same with the code `refused`."""

_LIBRARIES = ("msgspec", "uvicorn", "httptools", "prometheus_client")
_START_FAILURES = {"crash_loop", "starting_timeout"}

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
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the function.")],
    *,
    body: Annotated[str | None, typer.Option("--json", metavar="TEXT", help="The request, as JSON.")] = None,
    file: Annotated[
        str | None, typer.Option("--file", metavar="PATH", help="The request, as a file; - is standard input.")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Media type of the file [by its name, else bytes].")
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Request a stream of events; print each at once.")] = False,
    is_async: Annotated[bool, typer.Option("--async", help="Print the call's id and do not wait for it.")] = False,
    result: Annotated[
        str | None, typer.Option("--result", metavar="ID", help="Print the result of an --async call.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Longest time, waiting included, such as 5s.")
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="The gateway [the socket of this machine's server].")
    ] = None,
    token: Annotated[
        str | None, typer.Option("--token", metavar="TOKEN", help="Token of the function (PGPU_TOKEN).")
    ] = None,
) -> None:
    """Call a function and print its answer.

    Exits with 1 if the function failed, and with 2 if it refused the request.
    """
    from pgpu.app.client_factory import open_gateway
    from pgpu.units import parse_duration_seconds

    if result is not None and (body is not None or file is not None or is_async):
        raise RequestError("--result takes no request", hint="use --result alone")
    gateway = open_gateway(invocation_of(context).settings(token=token), url)
    headers = {"Accept": "text/event-stream"} if stream else {}
    if is_async:
        headers["Prefer"] = "respond-async"
    if timeout is not None:
        headers["Request-Timeout"] = str(parse_duration_seconds(timeout))
    if result is not None:
        _call(gateway, name, ("GET", f"/calls/{quote(result, safe='')}"), None, headers)
        return
    data, media_type = _read_body(body, file, content_type)
    path = f"/functions/{quote(name, safe='')}"
    _call(gateway, name, ("POST", path), data, {**headers, "Content-Type": media_type})


def _read_body(body: str | None, file: str | None, content_type: str | None) -> tuple[bytes, str]:
    if body is not None and file is not None:
        raise RequestError("--json and --file contradict each other", hint="leave one of them out")
    if file is None:
        # Bytes of the command line that are not UTF-8 are surrogates in Python; this restores the bytes.
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
    from pgpu.client.http_transport import call_gateway

    with call_gateway(gateway, *target, body, headers) as answer:
        if answer.status >= HTTPStatus.BAD_REQUEST:
            _fail(answer, name)
        # 202 with a location: the call was stored, and the last part of the path is its id.
        if answer.status == HTTPStatus.ACCEPTED and "location" in answer.headers:
            print(answer.headers["location"].rpartition("/")[2])
            return
        for piece in answer.pieces():
            # Each piece at once: an event of a stream must not wait in a buffer for the next one.
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
    if sys.stdout.isatty():
        print()


def _fail(answer: "GatewayResponse", name: str) -> NoReturn:
    """Turn an error of the gateway or the function into an exit code or an error of pgpu."""
    text = b"".join(islice(answer.pieces(), _MOST_PIECES)).decode("utf-8", "replace")
    try:
        document = json.loads(text)
        message, code = str(document["error"]), str(document.get("code", ""))
    except (ValueError, TypeError, KeyError, AttributeError):
        message, code = text.strip()[:200] or "no reason was given", ""
    is_refused = answer.status < HTTPStatus.INTERNAL_SERVER_ERROR
    hint = _hint(answer, name, code)
    if code == "handler_error":
        console.print_note(f"the function failed: {message}")
        console.print_note(f"hint: {hint}")
        raise typer.Exit(exits.CALL_FAILED)
    if answer.status in _BAD_REQUEST_STATUSES or code == "refused":
        console.print_note(f"the request was refused: {answer.status} {code or 'refused'}: {message}")
        raise typer.Exit(exits.CALL_REFUSED)
    kind = _ERRORS.get(answer.status, RequestError if is_refused else NodeError)
    raise kind(f"{answer.status} {code or 'refused'}: {message}", hint=hint)


def _hint(answer: "GatewayResponse", name: str, code: str) -> str | None:
    request_id, retry = answer.headers.get("x-request-id"), answer.headers.get("retry-after")
    if code in _START_FAILURES:
        return f"the reason is in its log: pgpu logs {name}"
    if answer.status == HTTPStatus.UNAUTHORIZED:
        return f"its owner creates a token: pgpu function token {name} create; then --token or PGPU_TOKEN"
    if code == "not_found":
        return "`pgpu function ls` lists yours"
    if retry:
        return f"again in {retry} s"
    if answer.status < HTTPStatus.INTERNAL_SERVER_ERROR or request_id is None:
        return None
    return f"the log names the request {request_id}: pgpu logs {name}"


def dev(
    context: typer.Context,
    app: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION", help="path/app.py:Detector, package.module:Detector, or its name in pgpu.toml."
        ),
    ],
    *,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=options.MOST_PORT, help="Port; 0 takes a free one.")
    ] = 8000,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name of the function [from the callable's name].")
    ] = None,
    is_reloading: Annotated[
        bool, typer.Option("--reload/--no-reload", help="Restart when a .py or .toml file beside it changes.")
    ] = True,
) -> None:
    """Serve a function on this machine; reload it on change.

    The old code goes on serving until the new one is ready, and if the new one does not start. A function that needs
    GPU memory runs in a slice, as a job.
    """
    require_libraries()
    from pgpu.functions.dev.connection_relay import ConnectionRelay
    from pgpu.functions.dev.dev_session import DevSession
    from pgpu.functions.dev.function_source import find_function

    source = find_function(app, Path.cwd())
    # The port first: if it is in use, nothing was imported or started yet.
    relay = ConnectionRelay(host, port)
    relay.start()
    try:
        session = DevSession(
            source,
            relay,
            console.print_note,
            _slice_command(invocation_of(context)),
            name=name,
            is_reloading=is_reloading,
        )
        # The handlers set an event only: `run` then ends the replicas, which must not outlive their terminal.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: session.stopped.set())
        session.run(lambda described: _announce(described, session, host, relay.port))
    finally:
        relay.stop()


def require_libraries() -> None:
    """Check that the extra `functions` is installed.

    Raises:
        NodeError: A library is missing.
    """
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise NodeError(f"the libraries of functions are not installed: {missing[0]}", hint=extra_hint("functions"))


def read_declaration(app: str, name: str | None, flags: Mapping[str, Any]) -> "tuple[FunctionSource, str, Declaration]":
    """Find a function, import its code in another process, and put flags over what it declares.

    Where the code cannot be imported on this machine, the declaration in pgpu.toml is used alone.
    """
    import warnings

    from pgpu.functions.api import FormerKeyWarning, check_name, parse_declaration, read_project
    from pgpu.functions.dev.function_source import describe_function, find_function

    with warnings.catch_warnings(record=True, action="always", category=FormerKeyWarning) as noted:
        source = find_function(app, Path.cwd())
        try:
            described = describe_function(source, environment=flags.get("env"))
            found, declaration, notes = described.name, described.declaration, described.notes
        except PgpuError as exc:
            if source.name is None:
                raise
            console.print_note(f"{source.app} cannot be imported here ({exc}): only pgpu.toml is used")
            notes, found = (), source.name
            declaration = parse_declaration(read_project(source.source)[found].words)
        declaration = parse_declaration(flags, declaration)
    for note in dict.fromkeys((*notes, *(str(each.message) for each in noted))):
        console.print_note(note)
    return source, check_name(name or found), declaration


def _announce(described: "FunctionDescription", session: "DevSession", host: str, port: int) -> None:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    how = "reloads on change, " if session.is_reloading else ""
    if described.declaration.is_asgi:
        example = f"curl {url}"
    elif described.body is None:
        example = f"curl --data-binary @FILE -H 'Content-Type: application/octet-stream' {url}"
    else:
        example = f"curl --json {shlex.quote(described.body)} {url}"
    print(f"{described.name} is served on {url} ({how}^C ends)\n  {example}", flush=True)


def _slice_command(invocation: Invocation) -> "Callable[[Declaration, bool], Sequence[str]]":
    """Return what makes the words of `pgpu run` for a function, with the global options of this command line."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in invocation.flags.items() if value is not None]
    # This interpreter and this package, whatever `pgpu` is first on PATH.
    pgpu = (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())", *flags)

    def words(declaration: "Declaration", may_wait: bool) -> Sequence[str]:
        if not declaration.gpus:
            return ()
        arguments = ["run", "--gpus", str(declaration.gpus)]
        if declaration.memory_bytes is not None:
            # Rounded up to a whole MiB: -(-a // b) is the ceiling of a / b.
            arguments += ["--memory", f"{-(-declaration.memory_bytes // MIB)}MiB"]
        if declaration.compute_share is not None:
            arguments += ["--compute", f"{declaration.compute_share:.0%}"]
        return (*pgpu, *arguments, *(() if may_wait else ("--no-wait",)), "--")

    return words
