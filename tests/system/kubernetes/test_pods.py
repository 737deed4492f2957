"""Who has which slice: the kubelet's podresources read, joined with the node's claims, and told as metrics and by `ps`."""

import json
import socket
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from referencing import Registry, Resource
from tests.fakes.claims import FakeClaims, gpu
from tests.fakes.kubelet_pods import FakeKubelet, FakePod, claimed
from tests.kubernetes_log import logged

from pgpu.cli.main import main
from pgpu.enforcement import SliceUse
from pgpu.errors import KubeletAwayError, NodeError
from pgpu.kubernetes.driver_http import DriverHttpServer, NodeView
from pgpu.kubernetes.node_health import DriverReadiness
from pgpu.kubernetes.pod_resources import KubeletPods
from pgpu.kubernetes.unit_ids import Unit, claim_of
from pgpu.model import Claim, Slice
from pgpu.units import GIB

SHARE_ID = "2fdc4807-99d9-4897-9390-5e7dffbea15e"


class UsedClaims(FakeClaims):
    """Claims in whose slices there is something."""

    def uses(self) -> dict[str, list[SliceUse]]:
        return {
            uid: [SliceUse(each.gpu_uuid, 5 * GIB, 6 * GIB, 7, processes=2) for each in uses]
            for uid, uses in super().uses().items()
        }


@dataclass
class Node:
    kubelet: FakeKubelet
    claims: UsedClaims
    readiness: DriverReadiness
    web: DriverHttpServer

    @property
    def gpu_uuid(self) -> str:
        return self.claims.present[0].uuid

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.web.port}"

    def hold(self, uid: str, name: str, gib: int, share: float | None = None) -> None:
        self.claims.hold(Claim(uid, "default", name, (Slice(self.gpu_uuid, gib * GIB, share),), note="dra"))

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}") as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metrics(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        families = text_string_to_metric_families(self.get("/metrics")[1])
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for sample in (sample for family in families for sample in family.samples):
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with tempfile.TemporaryDirectory(prefix="k") as name:
        kubelet = FakeKubelet(Path(name))
        kubelet.start()
        claims = UsedClaims(tmp_path, [gpu(0), gpu(1)])
        readiness = DriverReadiness(("a subject",))
        readiness.set_working("a subject")
        watch = NodeView(claims, KubeletPods(Path(name)))
        web = DriverHttpServer("127.0.0.1:0", watch, readiness)
        web.start()
        yield Node(kubelet, claims, readiness, web)
        web.stop()
        kubelet.stop()


def _run(node: Node, uid: str, claim: str, *containers: str, pod: str = "pod-a") -> None:
    told = [claimed(claim, uid, node.gpu_uuid.lower(), SHARE_ID)]
    node.kubelet.pods["default", pod] = FakePod(
        pod, {"none": 0, **dict.fromkeys(containers, 0)}, claims=dict.fromkeys(containers, told)
    )


def test_a_container_is_told_with_its_claim_device_and_share(node: Node) -> None:
    _run(node, "u-1", "claim-a", "c")
    (pod,) = KubeletPods(node.kubelet.directory).pods()
    none, container = pod.containers
    (device,) = container.claims[0].devices
    assert (pod.namespace, pod.name, none.claims, container.name) == ("default", "pod-a", (), "c")
    assert (container.claims[0].name, device.driver, device.pool) == ("claim-a", "gpu.pgpu.io", "node1")
    assert (device.share_id, device.cdi_ids) == (SHARE_ID, ("pgpu.io/gpu=u-1",))


def test_one_pod_is_asked_for_by_name_and_one_that_is_not_there_is_none(node: Node) -> None:
    _run(node, "u-1", "claim-a", "c")
    pods = KubeletPods(node.kubelet.directory)
    found = pods.pod("default", "pod-a")
    assert found is not None
    assert found == pods.pods()[0]
    assert pods.pod("default", "pod-b") is None


def test_a_kubelet_that_is_away_is_an_error_of_ours_and_one_that_comes_back_is_heard(node: Node) -> None:
    pods = KubeletPods(node.kubelet.directory)
    node.kubelet.stop()
    with pytest.raises(KubeletAwayError, match="UNAVAILABLE"):
        pods.pods()
    with pytest.raises(KubeletAwayError, match="UNAVAILABLE"):
        pods.pod("default", "pod-a")
    node.kubelet.start()
    assert pods.pods() == ()


def test_a_kubelet_without_a_socket_is_away(tmp_path: Path) -> None:
    with pytest.raises(KubeletAwayError, match=r"there is no .*pod-resources/kubelet\.sock"):
        KubeletPods(tmp_path).pods()


def test_metrics_tell_each_container_its_slice(node: Node) -> None:
    node.hold("u-1", "claim-a", 30, 0.3)
    _run(node, "u-1", "claim-a", "c1", "c2")
    told = node.metrics()
    labels = {
        "namespace": "default",
        "pod": "pod-a",
        "container": "c1",
        "claim": "claim-a",
        "claim_uid": "u-1",
        "gpu": "0",
        "UUID": node.gpu_uuid,
        "modelName": "NVIDIA H100 80GB HBM3",
    }
    second = {**labels, "container": "c2"}
    expected = {
        "pgpu_slice_memory_limit_bytes": 30 * GIB,
        "pgpu_slice_memory_used_bytes": 5 * GIB,
        "pgpu_slice_memory_peak_bytes": 6 * GIB,
        "pgpu_slice_refusals_total": 7,
        "pgpu_slice_processes": 2,
        "pgpu_slice_compute_share": 0.3,
    }
    assert {name: told[name] for name in expected} == {
        name: [(labels, amount), (second, amount)] for name, amount in expected.items()
    }


def test_metrics_tell_each_gpu_what_it_can_give_and_what_it_gave(node: Node) -> None:
    node.hold("u-1", "claim-a", 30)
    told = node.metrics()
    first = {"gpu": "0", "UUID": node.gpu_uuid, "modelName": "NVIDIA H100 80GB HBM3"}
    second = {**first, "gpu": "1", "UUID": node.claims.present[1].uuid}
    assert told["pgpu_gpu_memory_granted_bytes"] == [(first, 30 * GIB), (second, 0)]
    assert told["pgpu_gpu_memory_grantable_bytes"] == [(first, 80 * GIB), (second, 80 * GIB)]
    assert told["pgpu_gpu_memory_bytes"] == [(first, 80 * GIB), (second, 80 * GIB)]
    assert "pgpu_slice_compute_share" not in told, "nobody asked for one"


def test_units_of_the_device_plugin_are_told_like_claims(node: Node) -> None:
    units = [Unit(node.gpu_uuid, number) for number in (5, 3, 4)]
    node.claims.hold(claim_of(units))
    pod = FakePod("p", {"c": 3})
    node.kubelet.pods["default", "p"] = pod
    node.kubelet.set_ids(pod, "c", [each.id for each in units])
    ((labels, limit),) = node.metrics()["pgpu_slice_memory_limit_bytes"]
    assert (labels["pod"], labels["container"], labels["claim"], limit) == ("p", "c", "", 3 * GIB)


def test_a_slice_that_no_pod_shows_is_told_without_one(node: Node) -> None:
    node.hold("u-1", "claim-a", 1)
    ((labels, _),) = node.metrics()["pgpu_slice_memory_limit_bytes"]
    assert (labels["namespace"], labels["pod"], labels["container"], labels["claim"]) == ("default", "", "", "claim-a")


def test_claims_of_other_drivers_and_pods_without_slices_are_none_of_ours(node: Node) -> None:
    node.hold("u-1", "claim-a", 1)
    other = [claimed("claim-b", "u-1", "gpu-0", None, driver="gpu.nvidia.com")]
    node.kubelet.pods["default", "p"] = FakePod("p", {"c": 0}, claims={"c": other})
    ((labels, _),) = node.metrics()["pgpu_slice_memory_limit_bytes"]
    assert (labels["claim"], labels["pod"]) == ("claim-a", "")


def test_without_a_kubelet_no_slice_is_told_as_nobody_s(node: Node) -> None:
    node.hold("u-1", "claim-a", 1)
    assert node.metrics()["pgpu_pods_known"] == [({}, 1)]
    node.kubelet.stop()
    told = node.metrics()
    assert told["pgpu_pods_known"] == [({}, 0)]
    assert "pgpu_slice_memory_limit_bytes" not in told
    assert "pgpu_gpu_memory_bytes" in told


def test_a_driver_is_ready_when_nothing_is_wrong_and_says_what_is(node: Node) -> None:
    assert node.get("/readyz") == (200, "ready\n")
    node.readiness.set_problem("registered with the kubelet", "it refuses")
    node.readiness.set_problem("slices published", "fields dropped")
    told = "registered with the kubelet: it refuses\nslices published: fields dropped\n"
    assert node.get("/readyz") == (503, told)
    assert node.metrics()["pgpu_driver_ready"] == [({}, 0)]
    assert node.get("/healthz") == (200, "alive\n")
    for subject in ("registered with the kubelet", "slices published"):
        node.readiness.set_working(subject)
    assert node.get("/readyz") == (200, "ready\n")


def test_a_subject_that_nobody_spoke_of_keeps_a_driver_from_being_ready() -> None:
    readiness = DriverReadiness(("a",))
    assert readiness.problems() == {"a": "not yet"}
    with logged() as said:
        for _ in range(2):
            readiness.set_problem("a", "why")
        for _ in range(2):
            readiness.set_working("a")
    assert said == ["a: why", "a: in order"]


def test_other_paths_are_not_there(node: Node) -> None:
    assert node.get("/")[0] == 404


def test_a_port_that_is_taken_is_an_error_of_ours(node: Node) -> None:
    other = DriverHttpServer(node.address, NodeView(node.claims, KubeletPods(Path("/"))), node.readiness)
    with pytest.raises(NodeError, match=r"--metrics 127\.0\.0\.1"):
        other.start()


def test_callers_that_say_nothing_do_not_keep_others_out_for_ever(node: Node) -> None:
    silent = [socket.create_connection(("127.0.0.1", node.web.port)) for _ in range(16)]
    assert node.get("/healthz")[0] == 200
    for each in silent:
        each.close()


Capture = pytest.CaptureFixture[str]


def test_ps_lists_pods_as_a_table(node: Node, capsys: Capture) -> None:
    node.hold("u-1", "claim-a", 30, 0.3)
    _run(node, "u-1", "claim-a", "c")
    assert main(["ps", "--kubernetes", "--driver", node.address]) == 0
    heading, heads, row = capsys.readouterr().out.splitlines()
    assert heading == "simulated GPUs (NVIDIA H100 80GB HBM3): kernels compute nothing"
    assert heads.split() == [
        "NAMESPACE",
        "POD",
        "CONTAINER",
        "CLAIM",
        "GPU",
        "USED",
        "LIMIT",
        "PEAK",
        "REFUSED",
        "COMPUTE",
        "JOB",
    ]
    assert row.split()[:5] == ["default", "pod-a", "c", "claim-a", "0"]
    assert "5 GiB  30 GiB  6 GiB  7        30%" in row


def test_ps_prints_json_as_its_schema_says(node: Node, capsys: Capture) -> None:
    node.hold("u-1", "claim-a", 30)
    _run(node, "u-1", "claim-a", "c")
    assert main(["ps", "--kubernetes", "--json", "--driver", node.address]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    folder = files("pgpu.cli") / "schemas"
    schemas = {each.name: json.loads(each.read_text()) for each in folder.iterdir() if each.name.endswith(".json")}
    registry: Registry[Any] = Registry().with_resources(
        (name, Resource.from_contents(schema)) for name, schema in schemas.items()
    )
    jsonschema.Draft202012Validator(schemas["pods.schema.json"], registry=registry).validate(document)
    (told,) = document["slices"]
    assert set(told) == set(schemas["pods.schema.json"]["properties"]["slices"]["items"]["properties"])
    assert (told["pod"], told["gpu"], told["memory_limit_bytes"]) == ("pod-a", "0 NVIDIA H100 80GB HBM3", 30 * GIB)


def _no_driver(_node: Node) -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def _no_kubelet(node: Node) -> str:
    node.kubelet.stop()
    for path in (node.kubelet.directory / "pod-resources").iterdir():
        path.unlink()
    return node.address


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_no_driver, "no driver answers at"),
        (_no_kubelet, "pod-resources/kubelet.sock"),
        (lambda _: "x", "is not HOST:PORT"),
    ],
)
def test_ps_says_in_one_line_what_is_missing(
    node: Node, capsys: Capture, prepare: Callable[[Node], str], words: str
) -> None:
    assert main(["ps", "--kubernetes", "--driver", prepare(node)]) != 0
    told = capsys.readouterr()
    assert words in told.err
    assert not told.out
    assert "Traceback" not in told.err


def test_ps_of_kubernetes_has_no_jobs_to_show_more_of(capsys: Capture) -> None:
    for option in ("--all", "--quiet", "--watch", "--filter=job=x", "--format={{.Job}}"):
        assert main(["ps", "--kubernetes", option]) == 2
        assert "leave out" in capsys.readouterr().err
