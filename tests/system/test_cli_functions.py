"""The verbs of functions against a real server, and `invoke` against a gateway that says what it is told to."""

import hashlib
import io
import json
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from tests.clearing import clear
from tests.served import ServerProcess, serving
from tests.unit.test_cli import validate
from tests.waiting import until

from pgpu.app.client_factory import open_client, open_functions
from pgpu.app.settings import Settings
from pgpu.cli.main import main
from pgpu.cli.verbs.jobs import LogLine, function_logs, previous_logs
from pgpu.client.address import UnixAddress
from pgpu.client.http_transport import HttpTransport
from pgpu.services.messages import ReplicaAsk

APP = """
import pgpu

@pgpu.function(timeout="5s", concurrency=2, queue_limit=7)
class Doubler:
    def __init__(self) -> None:
        print("constructed", flush=True)

    def __call__(self, x: int) -> int:
        return 2 * x
"""
TABLE = '[function.doubler]\napp = "app.py:Doubler"\nconcurrency = 3\nqueue_limit = 8\n'


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    path = Path(tempfile.mkdtemp(prefix="pgpu-test-", dir="/dev/shm"))
    with serving(path, "--gateway", "none") as made:
        yield made
    clear(path)


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: ServerProcess) -> Path:
    (tmp_path / "app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGPU_HOST", server.host)
    return tmp_path


@pytest.fixture
def said(source: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    assert (source / "app.py").exists()

    def run(*words: str, code: int = 0) -> str:
        assert main(words) == code, capsys.readouterr()
        captured = capsys.readouterr()
        return captured.out if code == 0 else captured.err

    return run


def test_a_function_from_deploy_to_undeploy(said: Callable[..., str], server: ServerProcess) -> None:
    assert said("deploy", "app.py:Doubler") == "doubler@1\n"
    printed = said("deploy", "app.py:Doubler", "--max", "4", "--json")
    validate("deploy", printed)
    assert json.loads(printed)["version"]["number"] == 2
    listed = said("functions")
    assert listed.startswith("simulated GPUs (")
    assert "@2 100 %" in listed
    assert said("rollout", "doubler@1", "--canary", "10%") == "@2 90 %, @1 10 %\n"
    assert "doubler@1" in said("functions", "doubler")
    assert "max_replicas 4" in said("functions", "doubler")
    validate("functions", said("rollback", "doubler", "--json"))
    validate("functions", said("functions", "--json"))

    token = said("token", "doubler", "create", "--label", "phone", "--expires", "1h").strip()
    assert "EXPIRES" in said("token", "doubler", "list")
    listed = said("token", "doubler", "list", "--json")
    validate("function-tokens", listed)
    (found,) = json.loads(listed)["tokens"]
    assert found["label"] == "phone"
    assert found["expires_at_seconds"] - found["created_at_seconds"] == pytest.approx(3600, abs=60)
    said("token", "doubler", "create", "--expires", "1ms")
    until(lambda: len(json.loads(said("token", "doubler", "list", "--json"))["tokens"]) == 1)
    assert found["id"] in token
    assert token not in listed
    said("token", "doubler", "revoke", found["id"])
    # Of their own, so that a user who makes many pushes no administrator's entry out.
    logs = [path.read_text() for path in Path(server.environment["PGPU_STATE_DIR"]).glob("audit*")]
    actions = [json.loads(line)["action"].partition(".")[2] for line in "".join(logs).splitlines()]
    assert (len(logs), actions[-3:], token in logs[0]) == (1, ["create", "create", "revoke"], False)
    assert said("token", "doubler", "list") == ""
    assert "create, list or revoke" in said("token", "doubler", "burn", code=125)

    validate("cold-starts", said("functions", "doubler", "--cold-starts", "--json"))
    said("undeploy", "doubler")
    assert "no function 'doubler'" in said("rollback", "doubler", code=125)


def test_a_canary_that_does_not_fit_is_said_to_serve_by_turns(
    said: Callable[..., str], source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert source
    for memory, is_said in (("16GiB", True), ("4GiB", False)):
        for _ in range(2):
            said("deploy", "app.py:Doubler", "--name", "large", "--memory", memory)
        assert main(("rollout", "large@1", "--canary", "10%")) == 0
        assert ("does not fit beside the other version now" in capsys.readouterr().err) == is_said
        said("undeploy", "large")


def test_a_name_of_before_is_accepted_with_one_line(said: Callable[..., str], source: Path) -> None:
    (source / "pgpu.toml").write_text('[function.doubler]\napp = "app.py:Doubler"\nidle = "9s"\n')
    printed = said("deploy", "doubler", "--min", "1", "--keep-warm", "auto", "--json")
    declared = json.loads(printed)["version"]["declaration"]
    assert (declared["scale_to_zero_after"], declared["min_replicas"], "keep_warm" in declared) == (9.0, 1, False)
    said("undeploy", "doubler")


def test_flags_go_over_the_project_file_and_that_over_the_decorator(said: Callable[..., str], source: Path) -> None:
    (source / "pgpu.toml").write_text(TABLE)
    printed = said("deploy", "doubler", "--name", "tripler", "--min", "1", "--json", "--gpus", "0")
    expected = {"timeout": 5.0, "concurrency": 3, "queue_limit": 8, "min_replicas": 1}
    assert json.loads(printed)["version"]["declaration"] == expected
    said("undeploy", "tripler")


def test_variables_come_from_the_file_the_caller_and_the_project_file(
    said: Callable[..., str], source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module is imported with them, too."""
    (source / "app.py").write_text(f"import os\nassert os.environ['A'] == '1'\n{APP}")
    (source / "pgpu.toml").write_text(f'{TABLE}env = {{ A = "0", B = "2" }}\n')
    (source / "of.env").write_text("# mine\nA=1\n")
    monkeypatch.setenv("MINE", "m")
    words = ("--env", "MINE", "-e", "C=x=y", "--env", "UNSET_HERE", "--env-file", "of.env")
    declared = json.loads(said("deploy", "doubler", *words, "--json"))["version"]["declaration"]
    assert declared["env"] == {"A": "1", "B": "2", "MINE": "m", "C": "x=y"}
    said("undeploy", "doubler")


def test_what_cannot_be_imported_here_is_deployed_by_the_project_file_alone(
    said: Callable[..., str], source: Path
) -> None:
    (source / "app.py").write_text(f"import not_installed_here\n{APP}")
    assert "not_installed_here" in said("deploy", "app.py:Doubler", code=125)
    (source / "pgpu.toml").write_text(TABLE)
    declared = json.loads(said("deploy", "doubler", "--json"))["version"]["declaration"]
    assert declared == {"concurrency": 3, "queue_limit": 8}
    said("undeploy", "doubler")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("deploy", "no.py:X"), "no file"),
        (("deploy", "app.py:Doubler", "--runtime", "docker"), "needs an image"),
        (("deploy", "app.py:Doubler", "--runtime", "process", "--image", "x"), "takes no image"),
        (("deploy", "app.py:Dubler"), "did you mean Doubler?"),
        (("deploy", "app.py:Doubler", "--runtime", "vm"), "runtime"),
        (("deploy", "app.py:Doubler", "--memory", "900GiB"), "900"),
        (("deploy", "app.py:Doubler", "--requirements", "no.txt"), "cannot be read"),
        (("deploy", "app.py:Doubler", "--env", "LD_PRELOAD=x"), "would change what pgpu itself loads"),
        (("rollout", "doubler"), "names no version"),
        (("rollout", "no-such@1"), "no function"),
        (("functions", "--cold-starts"), "needs a function"),
        (("logs", "no-such"), "no job"),
    ],
)
def test_what_cannot_be_is_one_line(said: Callable[..., str], words: tuple[str, ...], complaint: str) -> None:
    assert complaint in said(*words, code=125)


def test_the_logs_of_a_function_are_those_of_its_replicas_line_by_line(
    said: Callable[..., str], server: ServerProcess
) -> None:
    said("deploy", "app.py:Doubler")
    settings = Settings(host=server.host)
    client, functions = open_client(settings), open_functions(settings)
    first, second = (functions.start_replica(ReplicaAsk("doubler", 1)).job_id for _ in range(2))
    heard: set[str] = set()
    for piece in function_logs(client, "doubler", follow=True, tail_lines=None):
        heard |= {piece.job_id} if piece.data == b"constructed\n" else set()
        if heard == {first, second}:
            break
    until(lambda: f"{first} constructed\n" in (text := said("logs", "doubler")) and f"{second} constructed\n" in text)
    validate("log", said("logs", "doubler", "--json").splitlines()[0])
    said("undeploy", "doubler")
    until(lambda: all(client.job(each).job.state.is_final for each in (first, second)))
    assert f"{second} constructed\n" in said("logs", "doubler"), "why it ended stands there"


def test_the_previous_log_shows_why_a_start_failed_and_goes_on_with_the_next(
    said: Callable[..., str], server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret with a zero byte cannot be a variable: each replica ends before it loads the function."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\0b")))
    said("secret", "set", "odd")
    said("deploy", "app.py:Doubler", "--name", "broken", "--secret", "odd:env=ODD")
    client, functions = open_client(Settings(host=server.host)), open_functions(Settings(host=server.host))
    assert said("function", "logs", "broken", "--previous") == ""
    ended: list[str] = []
    lines: Iterator[LogLine] = iter(())
    for _ in range(2):
        ended.append(functions.start_replica(ReplicaAsk("broken", 1)).job_id)
        until(lambda: client.job(ended[-1]).job.state.is_final)
        # The first is there when it is asked for; the second ends while it is followed.
        lines = lines if len(ended) > 1 else previous_logs(client, "broken", follow=True, tail_lines=None)
        why, how = next(lines), next(lines)
        assert (why.job_id, how.job_id) == (ended[-1], ended[-1])
        assert b"the secret odd cannot be a variable" in why.data
        assert how.data == b"pgpu: it ended with exit code 1\n"
    validate("log", said("function", "logs", "broken", "-p", "--json").splitlines()[0])
    said("undeploy", "broken")
    said("secret", "rm", "odd")


CANARY = "canary-4f1c0a9e"
USES_SECRETS = """
import hashlib, os, pathlib
found = pathlib.Path(os.environ["PGPU_SECRETS"], "token").read_text()
print("given", hashlib.sha256((found + os.environ["TOKEN"]).encode()).hexdigest(), flush=True)

def answer() -> int:
    return 1
"""


def test_the_value_of_a_secret_is_in_the_function_and_nowhere_else(
    said: Callable[..., str], source: Path, server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger, logs, the bundle, processes, lists, metrics and events are searched for it."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{CANARY}\n".encode())))
    (source / "uses.py").write_text(USES_SECRETS)
    (source / "pgpu.toml").write_text('[function.uses]\napp = "uses.py:answer"\nsecrets = ["token:env=TOKEN"]\n')
    assert "you have no secret 'token'" in said("deploy", "uses", code=125)
    said("secret", "set", "token")
    said("deploy", "uses")
    functions = open_functions(Settings(host=server.host))
    job_id = functions.start_replica(ReplicaAsk("uses", 1)).job_id
    expected = hashlib.sha256(f"{CANARY}\n{CANARY}".encode()).hexdigest()
    until(lambda: f"{job_id} given {expected}" in said("logs", "uses"))
    listed = said("secret", "ls", "--json")
    validate("secrets", listed)
    assert json.loads(listed)["secrets"][0]["used_by"] == ["uses@1"]
    assert "uses@1 gets the secret token" in said("secret", "rm", "token", code=125)

    texts = [listed, said("secret", "ls"), said("functions", "uses", "--json"), said("ps", "--json"), server.said()]
    texts += [said("logs", "uses"), said("queue", "--json"), *map(read_text, Path("/proc").glob("[0-9]*/cmdline"))]
    texts += map(read_text, Path("/proc").glob("[0-9]*/environ"))
    with HttpTransport(UnixAddress(server.socket)).open_stream("/metrics") as answer:
        texts += [line.decode() for line in answer.lines()]
    state = Path(server.environment["PGPU_STATE_DIR"])
    kept = [each for each in state.rglob("*") if each.is_file() and each.parent.parent != state / "functions/secrets"]
    assert {"token", "uses.py"} <= {each.name for each in state.rglob("*")}
    texts += map(read_text, kept)
    assert not [text[:200] for text in texts if CANARY in text]

    said("undeploy", "uses")
    said("secret", "rm", "token")
    assert said("secret", "ls") == ""
    root = Path(server.environment["PGPU_RUNTIME_DIR"])
    until(lambda: not list(root.glob("*/replicas/*.secrets")))


def read_text(path: Path) -> str:
    """Return what can be read of a file; processes end meanwhile."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


class _Gateway(BaseHTTPRequestHandler):
    """Answers as its server's table says, and notes what came."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.server.came.append((self.command, self.path, dict(self.headers), self.rfile.read(length)))  # type: ignore[attr-defined]
        status, headers, body = self.server.replies[self.path]  # type: ignore[attr-defined] # as above
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET = _answer  # noqa: N815 - http.server's own names

    def log_message(self, *_words: object) -> None:
        """Say nothing."""

    def address_string(self) -> str:
        return "a Unix socket"


@contextmanager
def gateway(path: Path, replies: dict[str, tuple[int, dict[str, str], bytes]]) -> Iterator[list[Any]]:
    with socketserver.UnixStreamServer(str(path), _Gateway) as made:
        made.replies, made.came = replies, []  # type: ignore[attr-defined] # for the handler
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield made.came  # type: ignore[attr-defined] # as above
        made.shutdown()
        thread.join()
    path.unlink()


def test_a_call_goes_to_the_socket_beside_the_server_s_and_its_answer_is_printed(
    server: ServerProcess, source: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    replies = {
        "/functions/f": (200, {}, b"\x00answer"),
        "/functions/later": (202, {"Location": "/calls/c-1"}, b"{}"),
        "/calls/c-1": (200, {}, b"42"),
        "/functions/fails": (500, {"X-Request-Id": "r-1"}, b'{"error": "ValueError", "code": "handler_error"}'),
        "/functions/full": (429, {"Retry-After": "3"}, b'{"error": "full", "code": "queue_full"}'),
        "/functions/picky": (422, {}, b'{"error": "$.x: an int", "code": "bad_input"}'),
        "/functions/own": (409, {}, b'{"error": "no such cat", "code": "refused"}'),
        "/functions/no": (404, {}, b"<html>"),
        "/functions/broken": (503, {"Retry-After": "30"}, b'{"error": "it does not start", "code": "crash_loop"}'),
        "/functions/closed": (401, {}, b'{"error": "no token", "code": "no_token"}'),
    }
    (source / "cat.png").write_bytes(b"\x89PNG")
    with gateway(server.socket.with_name("functions.sock"), replies) as came:
        assert main(["invoke", "f", "--file", "cat.png", "--timeout", "2s", "--token", "t"]) == 0
        assert capfdbinary.readouterr().out == b"\x00answer"
        ((_, _, headers, body),) = came
        assert (body, headers["Content-Type"], headers["Request-Timeout"]) == (b"\x89PNG", "image/png", "2.0")
        assert main(["invoke", "later", "--async"]) == 0
        assert capfdbinary.readouterr().out == b"c-1\n"
        assert (came[-1][2]["Prefer"], came[-1][3]) == ("respond-async", b"{}")
        assert main(["invoke", "later", "--result", "c-1"]) == 0
        refused = (("picky", 2, b"422 bad_input: $.x: an int"), ("own", 2, b"no such cat"))
        for name, code, words in (
            *(("broken", 125, b"pgpu logs broken"), ("closed", 125, b"pgpu function token closed create")),
            *(("fails", 1, b"r-1: pgpu logs fails"), ("full", 125, b"again in 3 s"), ("no", 125, b"404")),
            *refused,
        ):
            assert main(["invoke", name, "--json", "{}", "--stream"]) == code
            assert words in capfdbinary.readouterr().err
    assert main(["invoke", "f"]) == 125
    assert b"does not answer" in capfdbinary.readouterr().err
