"""One front with its worker, as a child of this process.

It refuses to restart anything: the front does that for its worker, and a front that ends is for its owner to see.
"""

import http.client
import json
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ANSWER_SECONDS = 5.0
_GRACE_SECONDS = 20.0


def front_command(app: str, source: Path, directory: Path, declaration: Mapping[str, object]) -> tuple[str, ...]:
    """Return what starts a front.

    Args:
        app: As of `handler.load`.
        source: Where the code lies.
        directory: For its sockets.
        declaration: Its words, as of `api.dump_declaration`.
    """
    words = ("--app", app, "--source", str(source), "--directory", str(directory))
    return (
        sys.executable,
        "-P",
        "-m",
        "pgpu.functions.replica",
        *words,
        "--declaration",
        json.dumps(dict(declaration)),
    )


def socket_directory() -> Path:
    """Make a directory whose path is short enough for sockets in it."""
    return Path(tempfile.mkdtemp(prefix="pgpu-fn-"))


@dataclass(slots=True)
class DevReplica:
    """A front that was started."""

    process: subprocess.Popen[bytes]
    directory: Path
    """Of its sockets; removed at its end."""

    health: Mapping[str, Any] = field(default_factory=dict)
    """What it said last of itself: state, reason, restarts; empty before it says anything."""

    @property
    def http_socket(self) -> Path:
        """Where it serves HTTP."""
        return self.directory / "http.sock"

    def is_ready(self) -> bool:
        """Ask whether a request would be served now, and note `health`."""
        try:
            status, body = _answer(self.http_socket, "/v2/health/ready")
            self.health = json.loads(body)
        except (OSError, http.client.HTTPException, ValueError):
            return False  # it does not listen yet, or not any more
        return status == http.HTTPStatus.OK

    @property
    def is_failed(self) -> bool:
        """Whether its worker could not be started, at least once, as far as `health` tells, or it ended itself."""
        is_refused = self.health.get("state") in {"starting", "failed"} and bool(self.health.get("reason"))
        return is_refused or self.process.poll() is not None

    def end(self) -> int:
        """Have it finish what it has; kill it if that takes too long. Return its exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        return code


def _answer(path: Path, route: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("localhost")
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(_ANSWER_SECONDS)
        ours.connect(str(path))
        connection.sock = ours
        connection.request("GET", route)
        reply = connection.getresponse()
        return reply.status, reply.read()
