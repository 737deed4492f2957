"""What `pgpu dev` is made of: finding a function, asking its code, watching its files, carrying its callers."""

import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import until

from pgpu.errors import RequestError
from pgpu.functions.api import Batch
from pgpu.functions.api.declaration import _PARSERS as READERS
from pgpu.functions.dev.connection_relay import ConnectionRelay
from pgpu.functions.dev.dev_session import session_directory
from pgpu.functions.dev.function_source import FunctionSource, describe_function, find_function
from pgpu.functions.dev.source_watch import SourceWatch

CODE = """
import pgpu
print("a module may print")

@pgpu.function(memory="1GiB", batch=4)
class Greeter:
    def __call__(self, name: list[str], times: list[int] = [1]) -> list[str]:
        return name
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "app.py").write_text(CODE, "utf-8")
    return directory


def test_what_a_module_is_called_and_says_at_its_end_confuses_nobody(source: Path) -> None:
    (source / "queue.py").write_text("raise RuntimeError('this is not the one of Python')", "utf-8")
    (source / "app.py").write_text(f"import atexit\natexit.register(print, 'goodbye')\n{CODE}", "utf-8")
    assert describe_function(FunctionSource(source, "app.py:Greeter")).name == "greeter"


def test_a_module_that_ends_its_process_is_refused(source: Path) -> None:
    (source / "app.py").write_text("import os\nos._exit(0)", "utf-8")
    with pytest.raises(RequestError, match="without a word"):
        describe_function(FunctionSource(source, "app.py:Greeter"))


def test_a_function_is_found_by_its_file_by_its_module_and_by_its_name(source: Path) -> None:
    assert find_function("source/app.py:Greeter", source.parent) == FunctionSource(source, "app.py:Greeter")
    assert find_function("package.app:Greeter", source) == FunctionSource(source, "package.app:Greeter")
    (source / "pgpu.toml").write_text('[function.hello]\napp = "app.py:Greeter"\nmemory = "2GiB"\n', "utf-8")
    assert (
        find_function("hello", source)
        == find_function("app.py:Greeter", source)
        == FunctionSource(source, "app.py:Greeter", "hello")
    )


@pytest.mark.parametrize("words", ["gone.py:Greeter", "hello", ""])
def test_what_is_no_function_is_refused_in_one_line(source: Path, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        find_function(words, source)
    assert refused.value.hint


def test_a_function_is_asked_what_it_is_and_its_file_has_the_last_word(source: Path) -> None:
    told = describe_function(find_function("app.py:Greeter", source))
    assert (told.name, told.body) == ("greeter", '{"name": "text"}')
    assert (told.declaration.memory_bytes, told.declaration.batch) == (1 << 30, Batch(4))

    (source / "pgpu.toml").write_text('[function.hello]\napp = "app.py:Greeter"\nmemory = "2GiB"\n', "utf-8")
    told = describe_function(find_function("hello", source))
    assert (told.name, told.declaration.memory_bytes, told.declaration.batch) == ("hello", 2 << 30, Batch(4))


def test_the_functions_of_the_page_are_functions(source: Path) -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "functions.md").read_text("utf-8")
    codes = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (settings,) = re.findall(r"^```toml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (source / "app.py").write_text("\n".join(codes), "utf-8")
    assert describe_function(find_function("app.py:Detector", source)).body is None
    (source / "pgpu.toml").write_text(settings, "utf-8")
    told = describe_function(find_function("embedding", source))
    assert (told.name, told.declaration.memory_bytes, told.declaration.batch) == ("embedding", 2 << 30, Batch(16))
    words = re.findall(r"`(\w+)`", page[page.index("| key |") : page.index("## Arguments")])
    assert set(READERS) <= set(words), "every key of a declaration is in the table"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Two:\n    def __init__(self, a): ...\n    def __call__(self): ...", "missing a required argument: 'a'"),
        ("class Own: ...\ndef two(x: Own): ...", "parameter x: no request can hold a Own"),
        ("class Two: ...", "Two has no __call__"),
        ("import pgpu\n@pgpu.function(batch=2)\ndef two(x: list[int], **more): ...", "cannot take \\*\\*more"),
    ],
)
def test_what_can_never_be_served_is_said_before_anything_starts(source: Path, code: str, said: str) -> None:
    (source / "app.py").write_text(code, "utf-8")
    with pytest.raises(RequestError, match=said) as refused:
        describe_function(find_function(f"app.py:{'two' if 'def two' in code else 'Two'}", source))
    assert refused.value.hint


def test_every_code_of_an_error_is_on_a_page() -> None:
    root = Path(__file__).parent.parent.parent
    pages = "".join((root / "docs" / f"{name}.md").read_text("utf-8") for name in ("functions", "gateway"))
    sources = "".join(path.read_text("utf-8") for path in (root / "src" / "pgpu" / "functions").rglob("*.py"))
    codes = set(re.findall(r'(?:refused|refusal_error|Refusal)\(\s*\d{3},\s*"(\w+)"', sources))
    assert len(codes) > 30
    assert sorted(code for code in codes if f"`{code}`" not in pages) == []


def test_code_that_cannot_be_imported_says_why_and_where(source: Path) -> None:
    (source / "app.py").write_text("import json\n\nundefined + 1\n", "utf-8")
    with pytest.raises(RequestError, match="NameError: name 'undefined' is not defined") as refused:
        describe_function(find_function("app.py:Greeter", source))
    assert refused.value.hint is not None
    assert "app.py" in refused.value.hint
    assert "line 3" in refused.value.hint


def test_edits_are_seen_and_nothing_else_is(source: Path) -> None:
    for ignored in ("__pycache__", ".git", "venv"):
        (source / ignored).mkdir()
    (source / "venv" / "pyvenv.cfg").touch()
    (source / "package").mkdir()
    edits = SourceWatch(source)
    seen: set[str] = set()

    def is_seen(path: str) -> bool:
        seen.update(edits.take())
        return path in seen

    with edits.watching():
        for ignored in ("__pycache__", ".git", "venv"):
            (source / ignored / "module.py").touch()
        (source / "notes.txt").touch()
        (source / "app.py").write_text("edited", "utf-8")
        until(lambda: is_seen("app.py"))
        seen.clear()
        (source / "package" / "module.py").touch()
        until(lambda: is_seen("package/module.py"))
        (source / "app.py").unlink()
        until(lambda: is_seen("app.py"))
    assert seen == {"app.py", "package/module.py"}


def test_a_directory_that_cannot_be_watched_is_said_with_a_remedy(source: Path) -> None:
    with pytest.raises(RequestError, match="cannot be watched") as refused, SourceWatch(source / "none").watching():
        pass
    assert "WATCHFILES_FORCE_POLLING" in str(refused.value.hint)


class Speaker(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Says its name to whatever is said."""

    daemon_threads = True

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Answer)
        self.path = path


class Answer(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while said := self.request.recv(1 << 16):
            assert isinstance(self.server, Speaker)
            self.request.sendall(f"{self.server.path.name} {len(said)}\n".encode())


@pytest.fixture
def speakers(tmp_path: Path) -> Iterator[tuple[Speaker, Speaker]]:
    servers = Speaker(tmp_path / "old"), Speaker(tmp_path / "new")
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield servers
    for server in servers:
        server.shutdown()
        server.server_close()


def say(connection: socket.socket) -> bytes:
    connection.sendall(b"hello")
    return connection.recv(100)


def test_new_connections_go_to_the_replica_of_the_moment_and_old_ones_stay(speakers: tuple[Speaker, Speaker]) -> None:
    relay = ConnectionRelay("127.0.0.1", 0)
    relay.start()
    try:
        place = ("127.0.0.1", relay.port)
        with socket.create_connection(place) as early:
            assert b"503" in say(early)
        relay.target = speakers[0].path
        with socket.create_connection(place) as first:
            assert say(first) == b"old 5\n"
            relay.target = speakers[1].path
            with socket.create_connection(place) as second:
                assert (say(first), say(second)) == (b"old 5\n", b"new 5\n")
        with socket.create_connection(place) as third:
            third.sendall(b"hello")
            third.shutdown(socket.SHUT_WR)
            assert third.recv(100) == b"new 5\n", "who has said all still hears the answer"
        with pytest.raises(RequestError, match="cannot be listened on"):
            ConnectionRelay("127.0.0.1", relay.port).start()
    finally:
        relay.stop()


def test_what_a_killed_session_left_is_removed_by_the_next_and_what_is_held_stays(tmp_path: Path) -> None:
    left = tmp_path / "pgpu-dev-left"
    (left / "0").mkdir(parents=True)
    with session_directory(tmp_path) as held:
        (held / "0").mkdir()
        assert not left.exists()
        with session_directory(tmp_path) as other:
            assert sorted(tmp_path.iterdir()) == sorted([held, other])
        assert sorted(tmp_path.iterdir()) == [held]
    assert list(tmp_path.iterdir()) == []
