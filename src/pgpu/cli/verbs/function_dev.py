"""The verbs of functions: `dev` serves one in place.

They refuse to import the user's code: processes of their own do.
"""

import importlib.util
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pgpu.cli.invocation import Invocation, invocation_of
from pgpu.cli.output import console
from pgpu.distribution import extra_hint
from pgpu.errors import NodeError
from pgpu.units import MIB

if TYPE_CHECKING:
    from pgpu.functions.api import Declaration
    from pgpu.functions.dev import DevSession, FunctionDescription

_LIBRARIES = ("msgspec", "uvicorn", "httptools", "prometheus_client")
_MOST_PORT = 65_535


def dev(
    context: typer.Context,
    app: Annotated[
        str,
        typer.Argument(
            metavar="FUNCTION", help="path/app.py:Detector, package.module:Detector, or its name in pgpu.toml."
        ),
    ],
    *,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=_MOST_PORT, help="Where to listen; 0 takes a free one.")
    ] = 8000,
    name: Annotated[str | None, typer.Option("--name", help="What to call it [made of the callable's name].")] = None,
    is_reloading: Annotated[
        bool, typer.Option("--reload/--no-reload", help="Start anew when a .py or .toml file beside it changes.")
    ] = True,
) -> None:
    """Serve a function here, for nobody but this machine, and start it anew when its code changes.

    The old code goes on serving until the new one is ready, and if the new one does not start. A function that asks for GPU
    memory runs in a slice, as a job.
    """
    require_libraries()
    from pgpu.functions import dev as room

    place = room.find_function(app, Path.cwd())
    relay = room.ConnectionRelay(host, port)
    relay.start()
    try:
        session = room.DevSession(
            place, relay, console.print_note, _slicing(invocation_of(context)), name=name, is_reloading=is_reloading
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: session.stopped.set())
        session.run(lambda described: _announce(described, session, host, relay.port))
    finally:
        relay.stop()


def require_libraries() -> None:
    """Raise where functions cannot be served.

    Raises:
        NodeError: A library is missing.
    """
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise NodeError(f"the libraries of functions are not installed: {missing[0]}", hint=extra_hint("functions"))


def _announce(described: "FunctionDescription", session: "DevSession", host: str, port: int) -> None:
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
    how = "reloads on change, " if session.is_reloading else ""
    print(f"{described.name} is served on {url} ({how}^C ends)", flush=True)
    print(f"  {_curl(described, url)}", flush=True)


def _curl(described: "FunctionDescription", url: str) -> str:
    if described.declaration.is_asgi:
        return f"curl {url}"
    if described.body is None:
        return f"curl --data-binary @FILE -H 'Content-Type: application/octet-stream' {url}"
    return f"curl --json {shlex.quote(described.body)} {url}"


def _slicing(invocation: Invocation) -> "Callable[[Declaration, bool], Sequence[str]]":
    """Return how a command is run in a slice: by `pgpu run`, with this command line's own global options."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in invocation.flags.items() if value is not None]
    pgpu = (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())", *flags)

    def words(declaration: "Declaration", may_wait: bool) -> Sequence[str]:
        if not declaration.gpus:
            return ()
        asked = ["run", "--gpus", str(declaration.gpus)]
        if declaration.memory_bytes is not None:
            asked += ["--memory", f"{-(-declaration.memory_bytes // MIB)}MiB"]
        if declaration.compute_share is not None:
            asked += ["--compute", f"{declaration.compute_share:.0%}"]
        return (*pgpu, *asked, *(() if may_wait else ("--no-wait",)), "--")

    return words
