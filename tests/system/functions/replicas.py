"""One front as a process, asked over its Unix socket."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.waiting import until

_PATIENCE_SECONDS = 240.0
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def value(self) -> Any:
        return json.loads(self.body)


class Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_PATIENCE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self._path))

    def ask(self, path: str) -> Answer:
        self.request("GET", path)
        return answer_of(self)

    def close_now(self) -> None:
        """Leave without a goodbye, also while a response is being read."""
        assert self.sock is not None
        self.sock.shutdown(socket.SHUT_RDWR)
        self.close()


@dataclass
class Replica:
    process: subprocess.Popen[str]
    directory: Path
    log: Path
    asked: list[Connection] = field(default_factory=list)
    notes: Path = Path("/nowhere")
    """Where its handler writes down what it does, where it does."""

    @property
    def socket(self) -> Path:
        return self.directory / "http.sock"

    def begin(self, body: object = None, path: str = "/", method: str = "POST", **headers: str) -> Connection:
        """Send a request and do not wait for its answer."""
        connection = self._connection()
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = {} if isinstance(body, bytes) else JSON
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, raw, {**kind, **named})
        return connection

    def begin_head(self, **headers: str) -> Connection:
        """Send a request's head and nothing of its body."""
        connection = self._connection()
        connection.putrequest("POST", "/")
        for name, value in {"content-type": "application/octet-stream", **headers}.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        return connection

    def begin_chunked(self, pieces: Sequence[bytes], *, must_be_read: bool = True) -> Connection:
        """Send a body whose length nobody told."""
        connection = self.begin_head(transfer_encoding="chunked")
        try:
            for piece in pieces:
                connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            connection.send(b"0\r\n\r\n")
        except OSError:
            assert not must_be_read
        return connection

    def _connection(self) -> Connection:
        connection = Connection(self.socket)
        self.asked.append(connection)
        return connection

    def call(self, body: object = None, path: str = "/", **headers: str) -> Answer:
        return answer_of(self.begin(body, path, **headers))

    def get(self, path: str) -> Answer:
        return answer_of(self.begin(None, path, "GET"))

    def kept_connection(self) -> Connection:
        """Return a connection that asks several times."""
        return self._connection()

    @property
    def worker_pid(self) -> int:
        zygote = psutil.Process(self.process.pid).children()[0]
        return int(until(zygote.children)[-1].pid)

    @property
    def health(self) -> Any:
        return self.get("/healthz").value

    def metric(self, name: str) -> float:
        lines = self.get("/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))

    def is_ready(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the front ended:\n{self.log.read_text()}")
        return self.socket.exists() and self._answers(200)

    def _answers(self, status: int) -> bool:
        try:
            return self.get("/readyz").status == status
        except OSError:
            return False

    def until_listening(self) -> None:
        until(lambda: self.socket.exists() and (self._answers(503) or self._answers(200)), self.log.read_text)


def until_broken(reply: http.client.HTTPResponse) -> bytes:
    """Read a stream that ends without its proper end."""
    with pytest.raises(http.client.IncompleteRead) as broken:
        reply.read()
    return broken.value.partial


def answer_of(connection: Connection) -> Answer:
    reply = connection.getresponse()
    return Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())


@contextlib.contextmanager
def replica(
    attribute: str,
    *,
    source: Path = Path(__file__).parent,
    module: str = "handlers.py",
    is_ready: bool = True,
    options: Sequence[str] = (),
    program: str = "pgpu.functions.replica",
    **words: object,
) -> Iterator[Replica]:
    """Serve a handler of `handlers.py`; wait until it is ready."""
    directory = Path(tempfile.mkdtemp(prefix="pgpu-f-"))  # short: a socket's path has 107 bytes at most
    log = directory / "log"
    command = [
        sys.executable, "-m", program, "--app", f"{module}:{attribute}", "--source", str(source),
        "--directory", str(directory), "--declaration", json.dumps(words), "--name", "it", *options,
    ]  # fmt: skip
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
    started = Replica(process, directory, log)
    try:
        if is_ready:
            until(started.is_ready, log.read_text)
        else:
            started.until_listening()
        yield started
    finally:
        for connection in started.asked:
            connection.close()
        process.send_signal(signal.SIGKILL)
        process.wait()
        shutil.rmtree(directory)
