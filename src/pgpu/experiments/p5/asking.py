"""Serves a function by pgpu's front and worker and asks it again and again, or starts a process for each request.

What is timed is what a caller waits for: from the first byte of the request to the last of the reply, over the function's
Unix socket and one connection that stays. It refuses to know what is asked.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgpu.errors import NodeError
from pgpu.experiments.outcome import last_line

_DEADLINE_SECONDS = 120.0
_LOOK_AGAIN_SECONDS = 0.02
_GRACE_SECONDS = 20.0
_SOCKET = "http.sock"


@dataclass(frozen=True, slots=True)
class Served:
    """A function behind a front."""

    app: str
    """`MODULE:ATTRIBUTE`."""

    arguments: Mapping[str, str]
    """Of its constructor."""

    prefix: tuple[str, ...] = ()
    """Words before the front's own command, such as `pgpu run`."""

    environment: Mapping[str, str] | None = None
    """None for this process's own."""

    def command(self, directory: Path) -> tuple[str, ...]:
        """Return what starts the front."""
        declaration = json.dumps({"arguments": dict(self.arguments)})
        front = (sys.executable, "-m", "pgpu.functions.front", "--app", self.app, "--source", str(directory))
        return (*self.prefix, *front, "--directory", str(directory), "--declaration", declaration)


class Caller:
    """One connection to a function."""

    def __init__(self, path: Path) -> None:
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.settimeout(_DEADLINE_SECONDS)
        self._connection.sock.connect(str(path))

    def is_ready(self) -> bool:
        """Ask whether it would be answered now."""
        self._connection.request("GET", "/v2/health/ready")
        reply = self._connection.getresponse()
        reply.read()
        return reply.status == http.HTTPStatus.OK

    def seconds_of(self, body: bytes) -> float:
        """Send a request and return how long its reply took.

        Raises:
            NodeError: The reply says that something failed.
        """
        headers = {"Content-Type": "application/octet-stream"}
        began_seconds = time.perf_counter()
        self._connection.request("POST", "/", body, headers)
        reply = self._connection.getresponse()
        answer = reply.read()
        seconds = time.perf_counter() - began_seconds
        if reply.status != http.HTTPStatus.OK:
            raise NodeError(f"a function answered {reply.status}: {answer[:200].decode(errors='replace')}")
        return seconds

    def close(self) -> None:
        """Leave."""
        self._connection.close()


@contextmanager
def asked(served: Served, directory: Path) -> Iterator[Caller]:
    """Start a front with its worker, wait until it is ready, and end both with the block.

    Args:
        served: What is served.
        directory: For its sockets and its log; made.

    Raises:
        NodeError: It did not become ready.
    """
    directory.mkdir()
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            served.command(directory), env=served.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        caller = _when_ready(process, directory)
        try:
            yield caller
        finally:
            caller.close()
    finally:
        _end(process)


def _when_ready(process: subprocess.Popen[bytes], directory: Path) -> Caller:
    deadline_seconds = time.monotonic() + _DEADLINE_SECONDS
    while process.poll() is None and time.monotonic() < deadline_seconds:
        try:
            caller = Caller(directory / _SOCKET)
        except OSError:
            pass
        else:
            if caller.is_ready():
                return caller
            caller.close()
        time.sleep(_LOOK_AGAIN_SECONDS)  # noqa: TID251 - a front tells nobody that its worker is ready
    said = last_line((directory / "log").read_text(encoding="utf-8", errors="replace"))
    raise NodeError(f"a function did not become ready: {said or 'it said nothing'}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def seconds_of_process(
    module: str, words: Sequence[str], body: bytes, environment: Mapping[str, str] | None = None
) -> float:
    """Answer one request by a process of its own and return how long that took.

    Raises:
        NodeError: It failed.
    """
    began_seconds = time.perf_counter()
    done = subprocess.run(
        (sys.executable, "-m", module, *words),
        env=environment or os.environ,
        input=body,
        capture_output=True,
        check=False,
    )
    seconds = time.perf_counter() - began_seconds
    if done.returncode != 0:
        raise NodeError(f"a process for one request failed: {last_line(done.stderr.decode(errors='replace'))}")
    return seconds
