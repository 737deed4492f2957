"""One request over a Unix socket to a server that answers as it is told."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgpu.host import unix_http


@contextmanager
def _answering(path: Path, answer: bytes) -> Iterator[list[bytes]]:
    """Serve one connection; what was asked is in the list at the end."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                asked.append(connection.recv(65536))
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield asked
        thread.join()


def test_a_request_and_its_answer(tmp_path: Path) -> None:
    answer = b"HTTP/1.0 201 Created\r\nX-Name: value \r\nContent-Length: 4\r\n\r\n{}\r\n"
    with _answering(tmp_path / "s", answer) as asked:
        url = f"unix://{tmp_path}/s"
        response = unix_http.receive(unix_http.send(url, "POST", "/a?b=%22", b"{}", timeout_seconds=60.0))
    assert (response.status, response.body, response.is_error) == (201, b"{}\r\n", False)
    assert response.header("x-name") == "value"
    assert response.header("name") is None
    assert asked[0].startswith(b"POST /a?b=%22 HTTP/1.0\r\n")
    assert asked[0].endswith(b"Content-Length: 2\r\n\r\n{}")


@pytest.mark.parametrize(("answer", "error"), [(b"", ConnectionResetError), (b"SSH-2.0\r\n\r\n", ValueError)])
def test_what_is_no_answer_is_an_error(tmp_path: Path, answer: bytes, error: type[Exception]) -> None:
    with _answering(tmp_path / "s", answer), pytest.raises(error):
        unix_http.receive(unix_http.send(f"unix://{tmp_path}/s", "GET", "/", timeout_seconds=60.0))


def test_a_long_answer_is_cut_off(tmp_path: Path) -> None:
    with _answering(tmp_path / "s", b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 100):
        connection = unix_http.send(f"unix://{tmp_path}/s", "GET", "/", timeout_seconds=60.0)
        assert 10 < len(unix_http.receive(connection, most_bytes=30).body) <= 100


@pytest.mark.parametrize("path", ["/a b", "/a\r\nX: y", "a", "/ä", "/a\n"])
def test_a_path_cannot_hold_a_second_request(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="not the path"):
        unix_http.send(f"unix://{tmp_path}/s", "GET", path, timeout_seconds=60.0)


def test_only_unix_sockets_are_called() -> None:
    with pytest.raises(ValueError, match="not a Unix socket"):
        unix_http.send("tcp://127.0.0.1:2375", "GET", "/", timeout_seconds=60.0)
