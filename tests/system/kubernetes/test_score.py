"""`pgpu kubernetes score` as a process of its own, between an API server over HTTP and a scheduler that asks."""

import contextlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.fakes.api_objects import KINDS
from tests.fakes.api_server import ApiServer, Fault, User, running
from tests.forked_commands import PGPU, Process, run_command, start_command
from tests.waiting import until

from pgpu.kubernetes.extender.cluster_watch import AGAIN_SECONDS

KIND = {kind.plural: kind for kind in KINDS if kind.group != "events.k8s.io"}


@dataclass
class Scoring:
    """A running `pgpu kubernetes score`, and who asks it."""

    process: Process
    errors: TextIO
    lines: list[str]
    port: int
    tls: ssl.SSLContext | None = None

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        connection = (
            http.client.HTTPConnection("127.0.0.1", self.port)
            if self.tls is None
            else http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls)
        )
        with contextlib.closing(connection):
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()

    def scores(self, pod: Any, nodes: list[str]) -> dict[str, int]:
        """Ask as kube-scheduler does."""
        question = {"Pod": pod, "Nodes": None, "NodeNames": nodes}
        status, body = self.ask("POST", "/prioritize", json.dumps(question).encode())
        assert status == 200, body
        return {one["Host"]: one["Score"] for one in json.loads(body)}

    def is_ready(self) -> bool:
        return self.ask("GET", "/readyz")[0] == 200


@contextlib.contextmanager
def scoring(kubeconfig: Path, *words: str, tls: ssl.SSLContext | None = None) -> Iterator[Scoring]:
    command = ["kubernetes", "score", "--listen", "127.0.0.1:0", "--kubeconfig", str(kubeconfig), *words]
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as errors, open(writing, "wb") as there:  # noqa: PTH123 - of descriptors
        process = start_command(command, os.environ, stdout=subprocess.DEVNULL, stderr=there)
        there.close()
        try:
            lines = []
            for line in errors:
                lines.append(line)
                if "nodes are scored at" in line:
                    break
            else:
                raise AssertionError(lines)
            port = int(lines[-1].rpartition(":")[2].split("/")[0])
            yield Scoring(process, errors, lines, port, tls)
        finally:
            process.send_signal(signal.SIGTERM)
            errors.read()
    assert process.wait() == 0


def fill(api: ApiServer, nodes: int = 3) -> list[str]:
    names = [f"node{number}" for number in range(nodes)]
    for name in names:
        allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110"}
        api.objects.create(KIND["nodes"], "", {"metadata": {"name": name}, "status": {"allocatable": allocatable}})
        api.objects.create(KIND["resourceslices"], "", a_slice(name))
    for name, is_shared in (("gpu.pgpu.io", ""), ("whole.gpu.pgpu.io", "!")):
        selector = {
            "cel": {"expression": f'device.driver == "gpu.pgpu.io" && {is_shared}device.allowMultipleAllocations'}
        }
        api.objects.create(KIND["deviceclasses"], "", {"metadata": {"name": name}, "spec": {"selectors": [selector]}})
    return names


def a_slice(node: str) -> dict[str, Any]:
    policy = {"default": "4Gi", "validRange": {"min": "256Mi", "max": "80Gi", "step": "256Mi"}}
    memory = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    devices = [
        {"name": f"gpu-{node}-{number}", "allowMultipleAllocations": True, "capacity": memory} for number in range(2)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "gpu.pgpu.io", "nodeName": node, "pool": pool, "devices": devices}
    return {"metadata": {"name": f"{node}-devices"}, "spec": spec}


def a_claim(name: str, memory: str) -> dict[str, Any]:
    exact = {"deviceClassName": "gpu.pgpu.io", "count": 1, "capacity": {"requests": {"memory": memory}}}
    requests = [{"name": "gpu", "exactly": exact}]
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": {"requests": requests}}}


def a_pod(name: str, claim: str) -> dict[str, Any]:
    spec = {
        "containers": [{"name": "c", "resources": {"claims": [{"name": "g"}]}}],
        "resourceClaims": [{"name": "g", "resourceClaimName": claim}],
    }
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"uid-{name}"}, "spec": spec, "status": {}}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ApiServer, Scoring, list[str]]]:
    with running() as api:
        names = fill(api)
        with scoring(api.kubeconfig(tmp_path_factory.mktemp("score"))) as asked:
            until(asked.is_ready)
            yield api, asked, names


Town = tuple[ApiServer, Scoring, list[str]]


def test_pods_are_led_to_the_node_that_others_have_begun(town: Town) -> None:
    api, asked, names = town
    best = set()
    for number in range(4):
        api.objects.create(KIND["resourceclaims"], "ns", a_claim(f"c{number}", "20Gi"))
        until(lambda number=number: 10 in asked.scores(a_pod(f"p{number}", f"c{number}"), names).values())  # type: ignore[misc]
        scores = asked.scores(a_pod(f"p{number}", f"c{number}"), [*names, "elsewhere"])
        assert scores.pop("elsewhere") == 0
        best.add(max(scores, key=lambda name: scores[name]))

    assert len(best) == 1


def test_a_claim_that_was_allocated_elsewhere_is_heard_of(town: Town) -> None:
    api, asked, names = town
    held = a_claim("held", "80Gi")
    results = [
        {"driver": "gpu.pgpu.io", "pool": "node2", "device": f"gpu-node2-{number}", "request": "gpu"}
        | {"consumedCapacity": {"memory": "80Gi"}}
        for number in range(2)
    ]
    api.objects.create(
        KIND["resourceclaims"], "ns", held | {"status": {"allocation": {"devices": {"results": results}}}}
    )
    api.objects.create(KIND["resourceclaims"], "ns", a_claim("late", "10Gi"))

    until(lambda: asked.scores(a_pod("late", "late"), names)["node2"] == 0)
    api.objects.delete(KIND["resourceclaims"], "ns", "held")
    until(lambda: asked.scores(a_pod("late", "late"), names)["node2"] > 0)


def test_a_scheduler_that_sends_whole_nodes_is_answered_too(town: Town) -> None:
    _, asked, names = town
    nodes = {"items": [{"metadata": {"name": name}, "status": {}} for name in names]}
    question = {"Pod": a_pod("whole", "none"), "Nodes": nodes, "NodeNames": None}

    status, body = asked.ask("POST", "/prioritize", json.dumps(question).encode())

    assert status == 200
    assert [one["Host"] for one in json.loads(body)] == names


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/prioritize", 405),
        ("POST", "/filter", 404),
        ("POST", "/bind", 404),
        ("POST", "/readyz", 405),
    ],
)
def test_an_extender_of_one_verb(town: Town, method: str, path: str, status: int) -> None:
    assert town[1].ask(method, path)[0] == status


GOOD = json.dumps({"Pod": a_pod("p", "c"), "Nodes": None, "NodeNames": ["node0", "node1"]}).encode()


@given(
    st.one_of(st.binary(max_size=300), st.builds(lambda cut, more: GOOD[:cut] + more, st.integers(0, 200), st.binary()))
)
@example(b"")
@example(b"null")
@example(b"[]")
@example(b'{"Pod": null, "NodeNames": []}')
@example(b'{"Pod": {"spec": {"containers": 5}}, "NodeNames": []}')
@example(b'{"Pod": {}, "NodeNames": [1]}')
@example(
    b'{"Pod": {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "much"}}}]}}, "NodeNames": []}'
)
@example(b"[" * 100_000)
@example(GOOD.replace(b"node0", b"\xff"))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_else_is_asked_is_answered_400_and_changes_nothing(town: Town, body: bytes) -> None:
    status, answer = town[1].ask("POST", "/prioritize", body)

    assert status == 400
    assert json.loads(answer)["error"]


def test_who_speaks_no_http_or_hangs_up_is_no_harm(town: Town) -> None:
    for words in (
        b"\x16\x03\x01\x02\x00",
        b"POST /prioritize HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
        b"GET / SPAM\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", town[1].port)) as stranger:
            stranger.sendall(words)

    assert town[1].ask("GET", "/healthz")[0] == 200


def test_an_object_that_cannot_be_read_keeps_no_other_from_being_heard_of(tmp_path: Path) -> None:
    with running() as api:
        names = fill(api, 1)
        odd = a_slice("odd")
        for device in odd["spec"]["devices"]:
            device["capacity"] = {"memory": {"value": "80Gi", "requestPolicy": {"validRange": "all"}}}
        api.objects.create(KIND["resourceslices"], "", odd)
        with scoring(api.kubeconfig(tmp_path)) as asked:
            until(asked.is_ready)
            api.objects.create(KIND["resourceslices"], "", a_slice("later"))
            api.objects.create(KIND["resourceclaims"], "ns", a_claim("mine", "30Gi"))
            until(lambda: asked.scores(a_pod("mine", "mine"), [*names, "later"])["later"] > 0)


def test_while_the_api_server_was_never_reached_all_nodes_are_equal_and_it_is_not_ready(tmp_path: Path) -> None:
    with running() as api:
        names = fill(api)
        api.faults.append(Fault(503, times=10**6, verb="list", plural="resourceclaims"))
        with scoring(api.kubeconfig(tmp_path)) as asked:
            assert asked.ask("GET", "/readyz")[0] == 503
            assert asked.ask("GET", "/healthz")[0] == 200
            assert set(asked.scores(a_pod("p", "c"), names).values()) == {0}
            api.faults.clear()
            until(asked.is_ready)


def test_watches_that_break_and_a_history_that_is_gone_lose_nothing(tmp_path: Path) -> None:
    with running() as api:
        names = fill(api)
        api.objects.create(KIND["resourceclaims"], "ns", a_claim("c", "80Gi"))
        with scoring(api.kubeconfig(tmp_path)) as asked:
            until(asked.is_ready)
            until(lambda: asked.scores(a_pod("p", "c"), names)["node2"] > 0)
            api.faults.append(Fault(410, times=6, verb="watch"))
            api.break_watches()
            api.objects.delete(KIND["resourceslices"], "", "node2-devices")
            until(lambda: asked.scores(a_pod("p", "c"), names)["node2"] == 0)
            assert asked.is_ready()


def test_a_server_that_forgets_every_version_at_once_is_not_asked_without_end(tmp_path: Path) -> None:
    with running() as api:
        fill(api)
        api.faults.append(Fault(410, times=10**6, verb="watch", plural="pods"))
        with scoring(api.kubeconfig(tmp_path)):
            until(lambda: lists_of_pods(api) > 0)
            begun = time.monotonic()
            first = lists_of_pods(api)
            until(lambda: lists_of_pods(api) >= first + 3)
            assert time.monotonic() - begun > AGAIN_SECONDS


def lists_of_pods(api: ApiServer) -> int:
    return sum((one.kind.plural, one.verb) == ("pods", "list") for one in list(api.asked))


ROLE = Path(__file__).parents[3] / "deploy" / "kubernetes" / "scheduler" / "cluster-role.yaml"


def rules(without: tuple[str, str] = ("", "")) -> list[dict[str, Any]]:
    """Return what is installed, one verb for one kind of objects less."""
    role = next(each for each in yaml.safe_load_all(ROLE.read_text()) if each["kind"] == "ClusterRole")
    return [
        {"apiGroups": rule["apiGroups"], "resources": [plural], "verbs": [verb]}
        for rule in role["rules"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
        if (plural, verb) != without
    ]


ALLOWED = [(rule["resources"][0], rule["verbs"][0]) for rule in rules()]


def test_what_is_installed_lets_it_look_and_do_nothing_else(tmp_path: Path) -> None:
    with running() as api:
        api.users["t"] = User(rules())
        names = fill(api)
        with scoring(api.kubeconfig(tmp_path, "t")) as asked:
            until(asked.is_ready)
            asked.scores(a_pod("p", "c"), names)

        assert {(one.kind.plural, one.verb) for one in api.asked} == set(ALLOWED)
        assert {verb for _, verb in ALLOWED} == {"list", "watch"}


@pytest.mark.parametrize(("plural", "verb"), ALLOWED)
def test_without_any_one_of_its_verbs_it_is_not_ready_and_says_why(tmp_path: Path, plural: str, verb: str) -> None:
    with running() as api:
        api.users["t"] = User(rules(without=(plural, verb)))
        with scoring(api.kubeconfig(tmp_path, "t")) as asked:
            said = "".join(asked.lines)
            while f"{plural} is forbidden" not in said:
                said += asked.errors.readline()
            assert f"cannot {verb} resource" in said
            assert not asked.is_ready()


def test_over_tls_only_who_has_a_certificate_of_the_authority_is_answered(tmp_path: Path) -> None:
    authority, key = tmp_path / "ca.pem", tmp_path / "ca.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", authority],
        check=True, capture_output=True,
    )  # fmt: skip
    known = ssl.create_default_context(cafile=str(authority))
    known.load_cert_chain(authority, key)
    words = ("--tls-cert", str(authority), "--tls-key", str(key), "--client-ca", str(authority))
    with running() as api, scoring(api.kubeconfig(tmp_path), *words, tls=known) as asked:
        until(asked.is_ready)
        asked.tls = ssl.create_default_context(cafile=str(authority))
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            asked.ask("GET", "/healthz")


def test_a_port_that_somebody_has_is_said_in_one_line(town: Town, tmp_path: Path) -> None:
    words = ("--listen", f"127.0.0.1:{town[1].port}", "--kubeconfig", town[0].kubeconfig(tmp_path))
    ended = subprocess.run([PGPU, "kubernetes", "score", *words], capture_output=True, text=True, check=False)

    assert ended.returncode != 0
    assert "cannot be listened on" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--listen", "0.0.0.0:0"], "not encrypted"),
        (["--listen", "9411"], "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (["--tls-cert", "/etc/hostname"], "belong together"),
        (["--tls-cert", "/etc/hostname", "--tls-key", "/etc/hostname"], "certificate cannot be used"),
        (["--client-ca", "/etc/hostname"], "need TLS"),
    ],
)
def test_how_it_must_not_listen_is_said_in_one_line(tmp_path: Path, words: list[str], complaint: str) -> None:
    with running() as api:
        command = ["kubernetes", "score", "--kubeconfig", str(api.kubeconfig(tmp_path)), *words]
        ended = run_command(command, os.environ)

    assert ended.returncode != 0
    assert complaint in ended.stderr
    assert "Traceback" not in ended.stderr
