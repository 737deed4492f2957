"""Keeps the gateway of a server: a process of its own, started again whenever it ends.

It ends with the server, by a pipe that only the server holds open; replicas live on, and the next gateway finds them. It
refuses to serve: what the gateway does, `pgpu.functions.gateway` says.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.05, 10.0
_LIVED_SECONDS = 1.0
"""A gateway that lived so long ended by accident, and is started again at once."""

_GRACE_SECONDS = 10.0


class GatewayKeeper:
    """One gateway, as long as the server lives."""

    def __init__(self, server: Path, socket: Path, state: Path, address: str | None, build_seconds: float) -> None:
        """Get ready.

        Args:
            server: The server's Unix socket.
            socket: Where the gateway's goes.
            state: Directory of the calls that it keeps.
            address: HOST:PORT, or None for the socket alone.
            build_seconds: How long the packages of a version may take to be installed.
        """
        words = ["--server", f"unix://{server}", "--socket", str(socket), "--state", str(state)]
        words += ["--build-seconds", str(build_seconds)]
        self._words = [*words, *(() if address is None else ("--listen", address))]
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._keep, name="gateway", daemon=True)
        self._life, self._held = os.pipe()

    def start(self) -> None:
        """Start it, and again whenever it ends."""
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until it has answered what was under way."""
        self._ending.set()
        os.close(self._held)
        with self._lock:
            process = self._process
        if process is not None:
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join()
        os.close(self._life)

    def _keep(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while not self._ending.is_set():
            began = time.monotonic()
            self._run_once()
            pause = _FIRST_PAUSE_SECONDS if time.monotonic() - began > _LIVED_SECONDS else pause * 2
            self._ending.wait(min(pause, _LONGEST_PAUSE_SECONDS))

    def _run_once(self) -> None:
        command = [sys.executable, "-P", "-m", "pgpu.functions.gateway", *self._words, "--parent", str(self._life)]
        with self._lock:
            if self._ending.is_set():
                return
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[self._life])
        self._process.wait()


@contextlib.contextmanager
def keeping_gateway(keeper: GatewayKeeper | None) -> Iterator[None]:
    """Keep a gateway meanwhile; None: there is none to keep."""
    if keeper is None:
        yield
        return
    keeper.start()
    try:
        yield
    finally:
        keeper.stop()
