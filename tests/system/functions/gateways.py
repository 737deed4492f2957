"""One gateway as a process, over a fake desk whose replicas are real."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.control_plane import FakeControlPlane
from tests.system.functions.replicas import JSON, Answer, Connection, answer_of
from tests.waiting import until

from pgpu.functions.api import dump_declaration, parse_declaration
from pgpu.model import Function, Share, Version, VersionState

PHASES = ["grant", "runtime", "interpreter", "imports", "constructor", "first_call"]
"""Of a cold start."""

_HANDLERS = Path(__file__).parent / "handlers.py"
_SCRIPT = Path(__file__).parents[2] / "fakes" / "gateway.py"


def version(name: str, attribute: str, number: int, words: Mapping[str, object]) -> Version:
    """Describe one version of a handler of `handlers.py`."""
    declaration = json.dumps(dump_declaration(parse_declaration(words)))
    app = f"{_HANDLERS}:{attribute}"
    return Version(
        name, number, os.getuid(), app, "0" * 64, declaration, "process", None, None, VersionState.READY, None, 0.0
    )


def function(name: str, attribute: str, **words: object) -> Function:
    """Describe a function of one version."""
    return Function(name, os.getuid(), 0.0, (version(name, attribute, 1, words),), (Share(1, 100),))


@dataclass
class Gateway:
    root: Path
    desk: FakeControlPlane
    process: subprocess.Popen[bytes] | None = None
    asked: list[Connection] = field(default_factory=list)

    def start(self, *words: str) -> None:
        with (self.root / "log").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), str(self.root), *words], stdout=output, stderr=output
            )
        until(self._is_ready, self.said)

    def end(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()

    def said(self) -> str:
        logs = [path.read_text() for path in [self.root / "log", *self.root.glob("*.log")] if path.exists()]
        return "\n".join(logs)

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.said()
        try:
            return self.get("/readyz").status == 200
        except OSError:
            return False

    def connection(self) -> Connection:
        made = Connection(self.root / "functions.sock")
        self.asked.append(made)
        return made

    def begin(self, name: str, body: object = None, path: str = "", method: str = "POST", **headers: str) -> Connection:
        connection = self.connection()
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = {} if isinstance(body, bytes) else JSON
        named = {key.replace("_", "-"): value for key, value in headers.items()}
        connection.request(method, path or f"/functions/{name}", raw, {**kind, **named})
        return connection

    def call(self, name: str, body: object = None, path: str = "", method: str = "POST", **headers: str) -> Answer:
        return answer_of(self.begin(name, body, path, method, **headers))

    def metric(self, name: str, function: str, what: str) -> float:
        lines = self.get("/metrics").body.decode().splitlines()
        wanted = f'{name}{{function="{function}",what="{what}"}}'
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))

    def get(self, path: str) -> Answer:
        return answer_of(self.begin("", None, path, "GET"))


def free_port() -> int:
    """Find a TCP port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def gateway(*functions: Function, room: int = 1000, words: tuple[str, ...] = ()) -> Iterator[Gateway]:
    root = Path(tempfile.mkdtemp(prefix="pgpu-g-"))
    made = Gateway(root, FakeControlPlane(root))
    made.desk.put(*functions)
    made.desk.make_room(room)
    try:
        made.start(*words)
        yield made
    finally:
        for connection in made.asked:
            connection.close()
        if made.process is not None and made.process.poll() is None:
            made.end()
        made.desk.end()
        shutil.rmtree(root)
