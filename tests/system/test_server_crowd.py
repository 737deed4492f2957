"""Who opens connections to a server without end keeps nobody else out, nor themselves from what they have open already."""

import contextlib
import json
import subprocess
from collections.abc import Iterator

import pytest
from tests.system.user_world import User, UserWorld, opened_world
from tests.waiting import until

MOST = 12

_CROWD = """
import json, socket, sys
path, most, request = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
held, said = [], []
for number in range(2 * most):
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(30)
    connection.connect(path)
    held.append(connection)
    try:
        connection.sendall(request)
    except BrokenPipeError:
        pass
    if number >= most or request.endswith(b"\\r\\n\\r\\n"):
        said.append(connection.recv(65536).decode())
print(json.dumps(said), flush=True)
sys.stdin.read()
"""
"""Opens twice as many connections as one user may, and holds them."""


_ATTACH = (
    "GET /v1/jobs/{job}/attach HTTP/1.1\r\nHost: pgpu\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture(scope="module")
def world() -> Iterator[UserWorld]:
    with opened_world(PGPU_CONNECTIONS=str(MOST)) as made:
        yield made


@contextlib.contextmanager
def a_crowd(user: User, request: str) -> Iterator[list[str]]:
    """Hold connections of one user; yields what the server said on those past the bound, and on any that asked."""
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", _CROWD, str(user.socket), str(MOST), request],
        user=user.uid,
        group=user.uid,
        extra_groups=user.groups,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.stdin.close()


@pytest.mark.parametrize(
    "request_text",
    ["", "GET /healthz HTTP/1.1\r\nHost: pgpu\r\nSlow: ", "GET /v1/events HTTP/1.1\r\nHost: pgpu\r\n\r\n", _ATTACH],
    ids=["silent", "never-ending-head", "listening", "attached"],
)
def test_a_user_past_the_bound_is_told_so_and_others_go_on(world: UserWorld, request_text: str) -> None:
    many, other = world.user(), world.user()
    job_id = many.started("sleep", "600")
    many.until(job_id, "running")
    with a_crowd(many, request_text.replace("{job}", job_id)) as said:
        refusals = [text for text in said if text.startswith("HTTP/1.1 503 ")]
        assert len(refusals) == MOST
        for text in refusals:
            complaint = json.loads(text.partition("\r\n\r\n")[2])["error"]
            assert str(MOST) in complaint["message"]
            assert complaint["hint"]
        assert many.ask("GET", "/v1/gpus").status == 503
        assert other.ask("GET", "/v1/gpus").status == 200
        assert world.root.ask("GET", "/v1/gpus").status == 200
    until(lambda: many.ask("GET", "/v1/gpus").status == 200)
    many.ask("POST", f"/v1/jobs/{job_id}/stop", {"grace_seconds": 0})
