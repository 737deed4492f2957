"""Serves a function by pgpu's front and worker and asks it again and again, or starts a process for each request.

What is timed is what a caller waits for: from the first byte of the request to the last of the reply, over the function's
Unix socket and one connection that stays. It refuses to know what is asked.
"""

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pgpu.errors import NodeError
from pgpu.functions.dev import DevReplica, front_command, socket_directory
from pgpu.lab.job_outcome import last_line

_DEADLINE_SECONDS = 120.0
_LOOK_AGAIN_SECONDS = 0.02


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

    def start(self, log: BinaryIO) -> DevReplica:
        """Start its front, which writes to a log."""
        directory = socket_directory()
        front = front_command(self.app, directory, directory, {"arguments": dict(self.arguments)})
        process = subprocess.Popen(
            (*self.prefix, *front), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        return DevReplica(process, directory)


class Caller:
    """One connection to a function."""

    def __init__(self, path: Path) -> None:
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.settimeout(_DEADLINE_SECONDS)
        self._connection.sock.connect(str(path))

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
def asked(served: Served) -> Iterator[Caller]:
    """Start a front with its worker, wait until it is ready, and end both with the block.

    Raises:
        NodeError: It did not become ready.
    """
    with tempfile.TemporaryFile() as log:
        replica = served.start(log)
        try:
            _wait_until_ready(replica, log)
            with closing(Caller(replica.http_socket)) as caller:
                yield caller
        finally:
            replica.end()


def _wait_until_ready(replica: DevReplica, log: BinaryIO) -> None:
    deadline_seconds = time.monotonic() + _DEADLINE_SECONDS
    while not replica.is_ready():
        if replica.is_failed or time.monotonic() > deadline_seconds:
            log.seek(0)
            said = last_line(log.read().decode(errors="replace"))
            raise NodeError(f"a function did not become ready: {said or 'it said nothing'}")
        time.sleep(_LOOK_AGAIN_SECONDS)  # noqa: TID251 - a front tells nobody that its worker is ready


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
