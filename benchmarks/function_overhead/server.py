"""One server of functions, started as its documentation shows, and its use of CPU time and memory."""

import http.client
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import psutil

_PATIENCE_SECONDS = 120.0
_LOOK_AGAIN_SECONDS = 0.01


@dataclass(frozen=True)
class Server:
    """How to start one; `{port}` and `{directory}` are filled in."""

    name: str
    command: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    """Written into a directory of its own first."""

    path: str = "/"
    body: str = '{"x": 1}'
    packages: tuple[str, ...] = ()
    """From PyPI, into an environment of its own; nothing where it runs in ours."""

    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Running:
    """One that answers."""

    server: Server
    process: psutil.Process
    url: str
    cold_seconds: float
    """From its command to its first answer."""

    def cpu_seconds(self) -> float:
        """Return what it and all that it started have used."""
        return sum(_cpu_seconds(each) for each in self.family())

    def memory_bytes(self) -> int:
        """Return its memory, shared pages by their part."""
        found = 0
        for each in self.family():
            with suppress(psutil.Error):
                found += each.memory_full_info().pss
        return found

    def family(self) -> list[psutil.Process]:
        """Return it and all that it started and that lives."""
        return [self.process, *self.process.children(recursive=True)]


def _cpu_seconds(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


@contextmanager
def running(server: Server, python: Path, port: int) -> Iterator[Running]:
    """Start one, wait for its first answer, and end all that it started with the block.

    Raises:
        RuntimeError: It does not answer.
    """
    directory = Path(tempfile.mkdtemp(prefix="pgpu-overhead-"))
    for name, text in server.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(text, directory, port), encoding="utf-8")
    words = [_filled(word, directory, port) for word in server.command]
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", **server.environment}
    log = directory / "log"
    with log.open("wb") as out:
        began_seconds = time.monotonic()
        child = subprocess.Popen(
            (str(python), *words), cwd=directory, env=environment, stdout=out, stderr=out, process_group=0
        )
    url = f"http://127.0.0.1:{port}{server.path}"
    found = Running(server, psutil.Process(child.pid), url, 0.0)
    try:
        _wait_for_an_answer(server, url, child, log)
        found.cold_seconds = time.monotonic() - began_seconds
        yield found
    finally:
        _end(found, child)
        shutil.rmtree(directory, ignore_errors=True)


def _filled(text: str, directory: Path, port: int) -> str:
    return text.replace("{port}", str(port)).replace("{directory}", str(directory))


def _wait_for_an_answer(server: Server, url: str, child: "subprocess.Popen[bytes]", log: Path) -> None:
    until_seconds = time.monotonic() + _PATIENCE_SECONDS
    while not _answers(url, server.body):
        if child.poll() is not None or time.monotonic() > until_seconds:
            raise RuntimeError(f"{server.name} does not answer: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(_LOOK_AGAIN_SECONDS)  # noqa: TID251 - a foreign server does not report its readiness


def _answers(url: str, body: str) -> bool:
    place = urlsplit(url)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=10)
    try:
        connection.request("POST", place.path, body, {"Content-Type": "application/json"})
        return connection.getresponse().status < http.HTTPStatus.MULTIPLE_CHOICES
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _end(found: Running, child: "subprocess.Popen[bytes]") -> None:
    family = found.family() if child.poll() is None else []
    child.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(10)
    for each in family:
        with suppress(psutil.Error):
            each.kill()
    child.wait()
