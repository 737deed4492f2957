"""One replica with its worker, as a child of this process.

The replica restarts its own worker; a replica that ends is left to the caller.
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
    """Return the command of a replica.

    Args:
        app: As for `handler.load`.
        source: Directory of the code.
        directory: For its sockets.
        declaration: As of `api.dump_declaration`.
    """
    words = ("--app", app, "--source", str(source), "--directory", str(directory))
    command = (sys.executable, "-P", "-m", "pgpu.functions.replica")
    return (*command, *words, "--declaration", json.dumps(dict(declaration)))


def socket_directory() -> Path:
    """Make a temporary directory with a path that is short enough for sockets."""
    return Path(tempfile.mkdtemp(prefix="pgpu-fn-"))


@dataclass(slots=True)
class DevReplica:
    """A replica that was started."""

    process: subprocess.Popen[bytes]
    directory: Path
    """Of its sockets; removed at its end."""

    health: Mapping[str, Any] = field(default_factory=dict)
    """Its last health report (state, reason, restarts); empty before the first one."""

    @property
    def http_socket(self) -> Path:
        """The socket on which it serves HTTP."""
        return self.directory / "http.sock"

    def is_ready(self) -> bool:
        """Request its health, store it in `health`, and return whether a call would be served now."""
        connection = http.client.HTTPConnection("localhost")
        try:
            with socket.socket(socket.AF_UNIX) as ours:
                ours.settimeout(_ANSWER_SECONDS)
                ours.connect(str(self.http_socket))
                connection.sock = ours
                connection.request("GET", "/v2/health/ready")
                reply = connection.getresponse()
                self.health = json.loads(reply.read())
        except (OSError, http.client.HTTPException, ValueError):
            return False  # it does not listen yet, or no longer
        return reply.status == http.HTTPStatus.OK

    @property
    def is_failed(self) -> bool:
        """Whether its worker could not be started at least once, by the last `health`, or the replica itself ended."""
        is_refused = self.health.get("state") in {"starting", "failed"} and bool(self.health.get("reason"))
        return is_refused or self.process.poll() is not None

    def end(self) -> int:
        """Let it finish its calls, kill it after 20 seconds, and return its exit code."""
        self.process.terminate()
        try:
            code = self.process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)
        return code
