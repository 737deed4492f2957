"""Functions on a real cluster: they answer through their Service, from slices of a simulated GPU."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster import Cluster
from tests.waiting import DEADLINE_SECONDS, until

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.skipif(
        "PGPU_KUBERNETES_FUNCTIONS_IMAGE" not in os.environ,
        reason="PGPU_KUBERNETES_FUNCTIONS_IMAGE names no image with pgpu and its extra functions",
    ),
]

ROOT = Path(__file__).parent.parent.parent
GIB = 1 << 30
DETECTOR = """
class Detector:
    def __call__(self, image: bytes, top_k: int = 10) -> list[str]:
        return ["tiger", "dog"][:top_k]
"""
APP = """
import os
from ctypes import CDLL, byref, c_int, c_size_t, c_void_p

import pgpu


class Doubler:
    def __init__(self):
        cuda, device, context, free, total = CDLL("libcuda.so.1"), c_int(), c_void_p(), c_size_t(), c_size_t()
        assert cuda.cuInit(0) == 0 and cuda.cuDeviceGet(byref(device), 0) == 0
        assert cuda.cuDevicePrimaryCtxRetain(byref(context), device) == 0 and cuda.cuCtxSetCurrent(context) == 0
        assert cuda.cuMemGetInfo_v2(byref(free), byref(total)) == 0
        self.total_bytes = total.value

    def __call__(self, x: int) -> dict:
        return {"x": FACTOR * x, "total_bytes": self.total_bytes, "uid": os.getuid()}


def plain(x: int) -> int:
    return FACTOR * x
"""


@dataclass
class Author:
    """Somebody with a source directory who types commands."""

    cluster: Cluster
    source: Path
    kubeconfig: Path | None = None
    """As whom they type; None: as whom the tests' names."""

    def write(self, factor: int) -> None:
        """Write a version of the functions."""
        (self.source / "app.py").write_text(APP.replace("FACTOR", str(factor)))

    def pgpu(self, *words: str, code: int = 0) -> str:
        """Run pgpu; the cluster is that of the tests."""
        command = (sys.executable, "-c", "import sys; from pgpu.cli.main import main; sys.exit(main())", *words)
        done = subprocess.run(
            [*command, "--runtime", "kubernetes", "--namespace", self.cluster.namespace],
            cwd=self.source,
            env=dict(os.environ) | {"KUBECONFIG": str(self.kubeconfig or os.environ["PGPU_TEST_KUBECONFIG"])},
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
        assert done.returncode == code, done.stderr
        return done.stdout if code == 0 else done.stderr

    def deploy(self, *words: str) -> str:
        """Deploy, or be refused."""
        return self.pgpu("deploy", *words, "--image", os.environ["PGPU_KUBERNETES_FUNCTIONS_IMAGE"], "--no-knative")

    def call(self, name: str, x: int) -> Any:
        """Call a function through its Service, as the API server's proxy reaches it; None where it is not there."""
        place = f"/api/v1/namespaces/{self.cluster.namespace}/services/{name}:80/proxy/"
        done = self.cluster.try_kubectl("create", "--raw", place, "--filename", "-", stdin=json.dumps({"x": x}))
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait_until_rolled_out(self, name: str) -> None:
        """Wait until all replicas are of the last version."""
        self.cluster.kubectl("rollout", "status", f"deployment/{name}", f"--timeout={DEADLINE_SECONDS}s")


@pytest.fixture
def author(cluster: Cluster, tmp_path: Path) -> Iterator[Author]:
    cluster.kubectl("label", "namespace", cluster.namespace, "pod-security.kubernetes.io/enforce=restricted")
    made = Author(cluster, tmp_path)
    made.write(2)
    yield made
    cluster.delete("deployments", "--all")
    until(lambda: not cluster.get("pods")["items"])  # the namespace looks for pods only now and then


def test_a_function_answers_from_its_slice_through_its_service_until_it_is_undeployed(author: Author) -> None:
    assert author.deploy("app.py:Doubler", "--memory", "3GiB") == f"http://doubler.{author.cluster.namespace}.svc/\n"
    author.wait_until_rolled_out("doubler")

    assert author.call("doubler", 21) == {"x": 42, "total_bytes": 3 * GIB, "uid": 65532}
    (found,) = json.loads(author.pgpu("functions", "--json"))["functions"]
    assert (found["ready"], found["slice"], found["reasons"]) == (1, "1 GPU, 3 GiB", [])

    author.pgpu("undeploy", "doubler")
    until(lambda: not author.cluster.get("deployments,services,resourceclaimtemplates,pods,resourceclaims")["items"])


@dataclass
class Caller:
    """Calls again and again, until it is told to stop."""

    author: Author
    answers: list[Any] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.stopped.is_set():
            self.answers.append(self.author.call("plain", 1))


@contextmanager
def calling(author: Author) -> Iterator[Caller]:
    caller = Caller(author)
    thread = threading.Thread(target=caller.run)
    thread.start()
    try:
        yield caller
    finally:
        caller.stopped.set()
        thread.join()


def test_a_new_version_takes_over_and_no_call_is_lost(author: Author) -> None:
    author.deploy("app.py:plain")
    author.wait_until_rolled_out("plain")
    with calling(author) as caller:
        until(lambda: len(caller.answers) > 3)
        author.write(3)
        author.deploy("app.py:plain")
        author.wait_until_rolled_out("plain")
        until(lambda: caller.answers[-1] == 3)
        until(lambda: len(author.cluster.get("pods")["items"]) == 1)
    assert set(caller.answers) == {2, 3}
    assert caller.answers == sorted(caller.answers), "the old version answered after the new one"


def test_what_kubectl_scaled_is_not_undone_unless_it_is_forced(author: Author) -> None:
    author.deploy("app.py:plain")
    author.cluster.kubectl("scale", "deployment/plain", "--replicas=2")
    image = os.environ["PGPU_KUBERNETES_FUNCTIONS_IMAGE"]
    complaint = author.pgpu("deploy", "app.py:plain", "--image", image, code=125)
    assert ".spec.replicas" in complaint
    author.deploy("app.py:plain", "--force", "--recreate")
    spec = author.cluster.get("deployment", "plain")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_a_function_that_no_gpu_has_room_for_is_told_so(author: Author) -> None:
    author.deploy("app.py:Doubler", "--memory", "900GiB")

    def reasons() -> Any:
        return json.loads(author.pgpu("functions", "doubler", "--json"))["functions"][0]["reasons"]

    assert "no node has a GPU with room" in until(reasons)[0]


_BLOCK = re.compile(r"^```shell\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_guide_s_commands_for_a_cluster_run(author: Author, tmp_path: Path) -> None:
    blocks = _BLOCK.findall((ROOT / "docs" / "guide" / "functions.md").read_text("utf-8"))
    assert len(blocks) == 2
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(author.cluster.kubectl("config", "view", "--raw", "--flatten"))
    author.cluster.try_kubectl(
        *("config", "set-context", "--current", f"--namespace={author.cluster.namespace}"), kubeconfig=str(kubeconfig)
    )
    (tmp_path / "app.py").write_text(DETECTOR)
    (tmp_path / "cat.png").write_text("pixels")
    done = subprocess.run(
        ["bash", "-eux", "-o", "pipefail", "-c", "\n".join(["trap 'kill $(jobs -p) || :' EXIT", *blocks])],
        cwd=tmp_path,
        env=dict(os.environ)
        | {"KUBECONFIG": str(kubeconfig), "IMAGE": os.environ["PGPU_KUBERNETES_FUNCTIONS_IMAGE"]}
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tiger" in done.stdout


_ROLE = re.compile(r"^```yaml\n(.*?kind: Role\n.*?)^```$", re.MULTILINE | re.DOTALL)


def test_who_deploys_needs_no_more_than_the_role_that_is_documented(author: Author, tmp_path: Path) -> None:
    cluster = author.cluster
    found = _ROLE.search((ROOT / "docs" / "functions-on-kubernetes.md").read_text("utf-8"))
    assert found
    cluster.kubectl("apply", "--filename", "-", stdin=found[1])
    cluster.kubectl("create", "serviceaccount", "author")
    account = f"--serviceaccount={cluster.namespace}:author"
    cluster.kubectl("create", "rolebinding", "author", "--role=pgpu-functions", account)
    written = json.loads(cluster.kubectl("config", "view", "--raw", "--flatten", "--minify", "--output", "json"))
    written["users"][0]["user"] = {"token": cluster.kubectl("create", "token", "author").strip()}
    author.kubeconfig = tmp_path / "author.json"
    author.kubeconfig.write_text(json.dumps(written))

    author.deploy("app.py:Doubler", "--memory", "3GiB", "--autoscale", "--max", "2")
    author.write(3)
    author.deploy("app.py:Doubler", "--memory", "4GiB")
    assert "doubler" in author.pgpu("functions")
    author.pgpu("undeploy", "doubler")
