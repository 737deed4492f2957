"""The way to an API server: as a pod's service account, by a kubeconfig, and what no log ever shows."""

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import waiting
from tests.fakes.api_server import ApiServer, Fault, User, running

from pgpu.errors import ClusterAccessError, ClusterError, ClusterUnavailableError
from pgpu.kubernetes.api import ClusterClient, connect

ASK_AS_A_POD = """
import sys
from pathlib import Path
from pgpu.kubernetes.api import ClusterClient, connect

account = Path(sys.argv[1])
cluster = ClusterClient(connect(None, account))
print(cluster.node("node1").name, flush=True)
(account / "token").write_text("second")
input()
print(cluster.node("node1").name, flush=True)
cluster.close()
"""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that signs itself, with its key, in one file."""
    directory = tmp_path_factory.mktemp("tls")
    key, made = directory / "key.pem", directory / "ca.crt"
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    command = ["openssl", "req", "-x509", *kind, "-keyout", str(key), "-out", str(made), *names]
    subprocess.run(command, check=True, capture_output=True)
    both = directory / "both.pem"
    both.write_text(key.read_text() + made.read_text())
    return both


@pytest.fixture
def account(tmp_path: Path, certificate: Path) -> Path:
    """A service account as a kubelet projects it."""
    for name, text in (("token", "first\n"), ("namespace", "pgpu"), ("ca.crt", certificate.read_text())):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as served:
        served.add_node("node1")
        yield served


def test_a_pod_asks_with_its_token_over_tls_and_reads_the_next_one(account: Path, certificate: Path) -> None:
    with running(ApiServer(users={"first": User()}), certificate) as served:
        served.add_node("node1")
        port = served.url.rpartition(":")[2]
        environment = {**os.environ, "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}
        command = [sys.executable, "-c", ASK_AS_A_POD, str(account)]
        with subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as pod:
            assert pod.stdin is not None
            assert pod.stdout is not None
            assert pod.stdout.readline() == "node1\n"
            waiting.until(lambda: (account / "token").read_text() == "second")
            served.users = {"second": User()}
            pod.stdin.write("\n")
            pod.stdin.flush()
            assert pod.stdout.readline() == "node1\n"
        assert pod.returncode == 0


def test_outside_of_a_pod_a_kubeconfig_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterAccessError, match="no pod of a cluster") as caught:
        connect(None, tmp_path)

    assert "--kubeconfig" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        "a: b",
        "clusters: 3",
        "{current-context: x, clusters: [], contexts: []}",
        "{current-context: x, clusters: [{name: x}], contexts: []}",
        "{current-context: x, clusters: [{name: x, cluster: {server: 3}}], contexts: []}",
        "{current-context: x, clusters: [{name: c, cluster: {server: h, certificate-authority: /no}}], contexts: [{name: x, context: {cluster: c}}]}",
    ],
)
def test_a_kubeconfig_that_is_none_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)

    with pytest.raises(ClusterAccessError) as caught:
        connect(path)

    assert "\n" not in str(caught.value)


def test_a_program_for_tokens_that_is_missing_is_named(tmp_path: Path, server: ApiServer) -> None:
    path = server.kubeconfig(tmp_path)
    command = '"exec": {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "no-such-program"}'
    path.write_text(path.read_text().replace('"user": {}', f'"user": {{{command}}}'))
    cluster = ClusterClient(connect(path))

    with pytest.raises(ClusterAccessError, match="no-such-program"):
        cluster.node("node1")

    cluster.close()


def test_no_token_is_in_a_log_or_in_an_error(
    tmp_path: Path, server: ApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.users = {"another": User()}
    cluster = ClusterClient(connect(server.kubeconfig(tmp_path, "s3cret-t0ken")), pause=lambda _: False)
    said = [refused(cluster)]
    server.users = {"s3cret-t0ken": User()}
    server.faults.append(Fault(503, times=99))
    said.append(refused(cluster))
    cluster.close()

    assert "s3cret-t0ken" not in " ".join(said) + caplog.text
    assert caplog.text


def refused(cluster: ClusterClient) -> str:
    with pytest.raises(ClusterError) as caught:
        cluster.node("node1")
    causes = f"{caught.value.__cause__} {caught.value.__cause__!r}"
    return f"{caught.value} {caught.value.hint} {causes}"


def test_a_server_that_is_not_there_is_said_so(tmp_path: Path) -> None:
    with running() as gone:
        path = gone.kubeconfig(tmp_path)
    cluster = ClusterClient(connect(path), pause=lambda _: False)

    with pytest.raises(ClusterUnavailableError, match="does not answer"):
        cluster.node("node1")

    cluster.close()


def test_a_watch_is_ended_from_another_thread_whatever_it_waits_for(tmp_path: Path, server: ApiServer) -> None:
    server.bookmark_seconds = 3600
    cluster = ClusterClient(connect(server.kubeconfig(tmp_path)))
    watch = cluster.watch_slices("gpu.pgpu.io", "node1", "0")
    heard: list[object] = []
    thread = threading.Thread(target=lambda: heard.extend(watch.changes()))
    thread.start()
    waiting.until(lambda: watch.is_open)

    watch.close()

    waiting.until(lambda: not thread.is_alive())
    assert heard == []
    cluster.close()


def test_a_request_is_not_repeated_once_its_call_must_end(server: ApiServer, tmp_path: Path) -> None:
    cluster = ClusterClient(connect(server.kubeconfig(tmp_path)), pause=lambda _: False)
    server.faults.append(Fault(503, times=100, plural="pods"))
    has_ended = iter([False, True])
    with pytest.raises(ClusterUnavailableError):
        cluster.pod("default", "any", lambda: next(has_ended))
    assert server.verbs("pods") == ["get", "get"]
    cluster.close()
