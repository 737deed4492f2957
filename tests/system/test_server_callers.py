"""A real `pgpu serve`, and whoever starts or calls it wrongly: told in a line, without a trace in its log."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.contract.test_server_submissions import with_value
from tests.forked_commands import PGPU
from tests.system.test_server import LONG, Connection, Served, get, place
from tests.waiting import DEADLINE_SECONDS, until

from pgpu.client.websocket import WebSocketChannel
from pgpu.engine.streams.frames import Kind, encode_frame

__all__ = ["place"]


def test_tcp_off_loopback_needs_tls(place: Served) -> None:
    with tempfile.TemporaryDirectory() as other:
        done = place.run("serve", "--host", f"unix://{other}/s.sock", "--tcp", "0.0.0.0:0", PGPU_STATE_DIR=other)
    assert done.returncode == 125
    assert "TLS" in done.stderr


@pytest.mark.parametrize("bad", ["missing", "no PEM", "another key"])
def test_a_certificate_that_cannot_be_used_is_refused_before_anybody_is_told(place: Served, bad: str) -> None:
    with tempfile.TemporaryDirectory() as other:
        certificate, key = f"{other}/certificate.pem", f"{other}/key.pem"
        make_certificate(certificate, key)
        if bad == "missing":
            Path(certificate).unlink()
        elif bad == "no PEM":
            Path(certificate).write_text("nonsense\n")
        else:
            make_certificate(f"{other}/other.pem", key)
        done = place.run(
            *("serve", "--host", f"unix://{other}/s.sock", "--tcp", "127.0.0.1:0"),
            *("--tls-certificate", certificate, "--tls-key", key),
            PGPU_STATE_DIR=other,
        )
    assert done.returncode == 125
    assert certificate in done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert "listening" not in done.stdout + done.stderr


def make_certificate(certificate: str, key: str) -> None:
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        ["openssl", *words, "-keyout", key, "-out", certificate, "-days", "1", "-subj", "/CN=localhost"],
        check=True,
        capture_output=True,
    )


def test_a_hang_up_reloads_the_certificate_and_a_closed_terminal_ends_the_server(place: Served) -> None:
    place.server.end()
    certificate, key = str(place.path / "certificate.pem"), str(place.path / "key.pem")
    make_certificate(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words: list[str | Path] = [PGPU, "serve", "--host", place.server.host, "--gateway", "none"]
    words += ["--tcp", f"127.0.0.1:{port}", "--tls-certificate", certificate, "--tls-key", key]
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        # A session of its own, whose terminal is the one of its standard input; also where the tests run under nohup.
        ["env", "--default-signal=HUP", "setsid", "--ctty", *words],
        stdin=terminal,
        stderr=subprocess.PIPE,
        text=True,
        env=place.environment,
        cwd="/",
    ) as server:
        os.close(terminal)
        assert server.stderr is not None
        until(lambda: "https://" in server.stderr.readline())  # type: ignore[union-attr]
        for _ in range(2):
            assert ssl.get_server_certificate(("127.0.0.1", port)) == Path(certificate).read_text()
            make_certificate(certificate, key)
            server.send_signal(signal.SIGHUP)
            assert "none has changed" in server.stderr.readline()
        kept = ssl.get_server_certificate(("127.0.0.1", port))
        Path(key).write_text("nonsense\n")
        server.send_signal(signal.SIGHUP)
        assert "is not reloaded" in server.stderr.readline()
        assert ssl.get_server_certificate(("127.0.0.1", port)) == kept
        os.close(controller)
        assert server.wait(DEADLINE_SECONDS) == 0


@pytest.mark.parametrize("words", [["--host", "https://x"], ["--host", "nonsense"], ["--tcp", "7878"]])
def test_an_address_that_is_none_is_refused_in_one_line(place: Served, words: list[str]) -> None:
    done = place.run("serve", *words)
    assert done.returncode == 125
    assert len(done.stderr.splitlines()) == 2


def test_an_attach_that_greets_with_nonsense_is_closed_without_a_trace(place: Served) -> None:
    job_id = place.detach("one", "2GiB", LONG)
    for greeting in (None, b'{"offset": Infinity, "holds_back": false, "owns_stdin": false}', b"[" * 200_000, b"[]"):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(place.server.socket))
        with contextlib.closing(WebSocketChannel(connection, f"/v1/jobs/{job_id}/attach", {})) as channel:
            if greeting is not None:
                channel.sendall(encode_frame(Kind.HELLO, greeting))
                select.select([channel], [], [], 60)
                assert channel.receive() is None
    assert get(place, "/healthz")[0] == 200
    assert place.job("one")["state"] in {"starting", "running"}
    assert place.server.end() == 0
    assert "Traceback" not in place.server.said()


def test_what_callers_do_wrong_is_told_to_them_and_not_to_the_log(place: Served) -> None:
    for garbage in (
        b"\0\1\2\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"GET ",
    ):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(place.server.socket))
            connection.sendall(garbage)
            if garbage.endswith(b"\n"):
                assert connection.recv(65536).startswith(b"HTTP/1.1 4")
    assert get(place, "/v1/nothing")[0] == 404
    assert place.server.end() == 0
    assert not re.search("WARNING|ERROR|Traceback", place.server.said())


def _asked(place: Served, place_in_ask: Any, value: Any) -> tuple[int, Any]:
    ask = with_value(place_in_ask, value)
    del ask["submissions"][0]["array"]
    connection = Connection(place.server.socket)
    connection.request("POST", "/v1/jobs", json.dumps(ask))
    answer = connection.getresponse()
    said = answer.status, json.loads(answer.read())
    connection.close()
    return said


def test_what_no_process_can_have_is_refused_and_nothing_that_is_taken_fails_by_our_fault(place: Served) -> None:
    spec: tuple[str | int, ...] = ("submissions", 0, "spec")
    name, value = ("environment", 0, 0), ("environment", 0, 1)
    refused = [
        ((*spec, "runtime"), "oci"),
        ((*spec, "runtime"), "claim"),
        (("submissions", 0, "request", "compute_share"), 2.0),
        (("submissions", 0, "request", "priority"), -1000),
        ((*spec, "command"), ["true", *["x" * 100_000] * 30]),
        (("environment",), [[f"A{number}", "x" * 100_000] for number in range(30)]),
        *(((*spec, "command", 1), word) for word in ("\0", "\ud800", "x" * (128 << 10))),
        *((where, word) for where in (name, value) for word in ("\0", "\ud800", "x" * (128 << 10))),
        (name, "a=b"),
    ]
    for where, what in refused:
        status, said = _asked(place, where, what)
        assert status == 400, (where, str(what)[:40], said)
        assert len(said["error"]["message"]) < 500
    taken = [((*spec, "command", 1), "\udcff"), (name, "\udcff"), (value, "/bin:/usr/bin:\udcff"), (name, " ")]
    for where, what in taken:
        status, said = _asked(place, where, what)
        assert status == 201, said
        ended = json.loads(get(place, f"/v1/jobs/{said[0]['id']}/wait?timeout_seconds=60")[1])
        assert (ended["state"], ended["exit_code"]) == ("exited", 0), ended
    assert "Traceback" not in place.server.said()
