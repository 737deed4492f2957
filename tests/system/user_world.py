"""A server of root and users of the machine beside it, as processes with real UIDs that only speak HTTP.

The users are numbers that nobody has, and who may submit is in a group that the machine has anyhow. A user's program is the machine's own
Python, since another UID may not be able to read this test's.
"""

import contextlib
import grp
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.forked_commands import PGPU
from tests.system.conftest import Place, opened_place
from tests.waiting import DEADLINE_SECONDS, until

_FIRST_UID = 61100 + 100 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
"""Worlds of other test processes have other users: a test finds and kills processes by their owner."""

SUBMITTERS = next(each for each in grp.getgrall() if each.gr_name in {"users", "nogroup", "nobody"})
"""Some group that every machine has."""

_PYTHON = "/usr/bin/python3"

_ASK = """
import http.client, json, socket, sys
path, method, route, body, seconds, headers = sys.argv[1:7]
class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(float(seconds))
        self.sock.connect(path)
connection = Connection("localhost")
connection.request(method, route, body or None, json.loads(headers))
answer = connection.getresponse()
text = b""
try:
    while chunk := answer.read1(65536):
        text += chunk
except TimeoutError:
    pass
print(json.dumps([answer.status, text.decode("utf-8", "replace")]))
"""


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    status: int
    text: str

    @property
    def value(self) -> Any:
        """The body as JSON."""
        return json.loads(self.text)


@dataclass
class User:
    """One user of the machine."""

    uid: int
    socket: Path
    groups: tuple[int, ...] = (SUBMITTERS.gr_gid,)
    secret: str = ""

    def ask(
        self, method: str, route: str, body: object = None, *, seconds: float = DEADLINE_SECONDS, **headers: str
    ) -> Answer:
        """Send one request as this user; an answer that goes on is cut after `seconds`."""
        text = "" if body is None else json.dumps(body)
        said = json.dumps({"Content-Type": "application/json", **headers})
        done = self.run(_PYTHON, "-c", _ASK, str(self.socket), method, route, text, str(seconds), said)
        assert done.returncode == 0, done.stderr
        return Answer(*json.loads(done.stdout))

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the machine as this user."""
        return subprocess.run(
            words,
            user=self.uid,
            group=self.uid,
            extra_groups=self.groups,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_SECONDS,
            check=False,
        )

    def submit(
        self, *command: str, memory: int = 1 << 30, gpus: int = 1, after: Sequence[str] = (), **said: Any
    ) -> Answer:
        """Ask for a process.

        Args:
            command: To run.
            memory: In bytes, of each GPU.
            gpus: How many, 0 for none.
            after: Jobs that must end first.
            said: More of the job's specification; `environment` and `inherited` are what the client says of itself.
        """
        environment = said.pop("environment", [["PATH", "/usr/bin:/bin"], ["SECRET", self.secret]])
        inherited = said.pop("inherited", None)
        spec = {"command": command, "runtime": "process", "working_directory": "/", **said}
        submission = {
            "spec": spec,
            "request": {"memory_bytes": memory if gpus else 0, "gpu_count": gpus},
            "after": list(after),
        }
        ask = {"submissions": [submission], "environment": environment, "inherited": inherited}
        return self.ask("POST", "/v1/jobs", ask)

    def started(self, *command: str, **said: Any) -> str:
        """Ask for a process and return its id."""
        answer = self.submit(*command, **said)
        assert answer.status == 201, answer.text
        return str(answer.value[0]["id"])

    def job(self, job_id: str) -> Any:
        """Look at a job of one's own."""
        answer = self.ask("GET", f"/v1/jobs/{job_id}")
        assert answer.status == 200, answer.text
        return answer.value["job"]

    def until(self, job_id: str, *states: str) -> Any:
        """Wait until a job is in one of these states."""
        until(lambda: self.job(job_id)["state"] in states, lambda: self.job(job_id))
        return self.job(job_id)

    def logs(self, job_id: str) -> Answer:
        """Read a job's output."""
        return self.ask("GET", f"/v1/jobs/{job_id}/logs")


@dataclass
class UserWorld:
    """A machine with a server."""

    place: Place
    socket: Path
    server: subprocess.Popen[str]
    _next_uid: int = _FIRST_UID

    def user(self, *, groups: tuple[int, ...] = (SUBMITTERS.gr_gid,)) -> User:
        """A user whom nobody met before."""
        self._next_uid += 1
        return User(self._next_uid, self.socket, groups, secret=f"secret-of-{self._next_uid}")

    @property
    def root(self) -> User:
        """The administrator."""
        return User(0, self.socket, ())

    def admin(self, *words: str) -> str:
        """Run `pgpu admin` as root, and return what it printed."""
        done = self.place.run("admin", *words, PGPU_HOST=f"unix://{self.socket}")
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextlib.contextmanager
def opened_world(*options: str, **variables: str) -> Iterator[UserWorld]:
    """Start a server as root; skips, with the reason, where that cannot be.

    Args:
        options: More words of `pgpu serve`.
        variables: More of its environment.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can serve several users")
    if not Path(_PYTHON).exists():
        pytest.skip(f"{_PYTHON}, which speaks for the users, is not there")
    open_to_all = Path(tempfile.mkdtemp(prefix="pgpu-users-", dir="/dev/shm"))
    open_to_all.chmod(0o755)
    try:
        with opened_place() as place, _running(place, open_to_all, options, variables) as server:
            yield UserWorld(place, open_to_all / "pgpu.sock", server)
    finally:
        shutil.rmtree(open_to_all)


@contextlib.contextmanager
def _running(
    place: Place, directory: Path, options: Sequence[str], variables: Mapping[str, str]
) -> Iterator[subprocess.Popen[str]]:
    server = _start(place, directory, options, variables)
    try:
        assert server.stderr is not None
        said = server.stderr.readline()
        assert "listening" in said, said + server.stderr.read()
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=DEADLINE_SECONDS)


def _start(
    place: Place, directory: Path, options: Sequence[str], variables: Mapping[str, str]
) -> subprocess.Popen[str]:
    gateway = () if "--gateway" in options else ("--gateway", "none")  # most tests call no function
    words = [str(PGPU), "serve", "--host", f"unix://{directory / 'pgpu.sock'}", *gateway, *options]
    return subprocess.Popen(
        words,
        env={**place.environment, "ROOTS_SECRET": "hidden", "PGPU_SUBMITTERS": SUBMITTERS.gr_name, **variables},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
