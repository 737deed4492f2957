"""The same crowd on a real control plane: etcd, API server and scheduler of a folder, and fake nodes without kubelets.

A plane of its own for each crowd, on loopback, with nothing left of it in the end. There are no controllers: pods are bound
and nothing runs them. Slices are published once, so devices stay in their first order.
"""

import contextlib
import json
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightkube
import msgspec
from benchmarks.kubernetes_score import fleet
from benchmarks.kubernetes_score.crowd import WEIGHT
from lightkube.config.kubeconfig import KubeConfig
from lightkube.resources.core_v1 import Namespace, Node, Pod
from lightkube.resources.resource_v1 import DeviceClass, ResourceClaim, ResourceSlice
from tests.fakes.allocator import amount
from tests.waiting import until

from pgpu.kubernetes.names import DRIVER, MEMORY, SHARED_CLASS, gpu_of
from pgpu.units import GIB

PGPU = Path(sys.executable).with_name("pgpu")
_SELECTOR = {"cel": {"expression": f'device.driver == "{DRIVER}" && device.allowMultipleAllocations'}}


@dataclass(frozen=True)
class Result:
    """What came of one crowd."""

    gpus_used: int
    allocated: int
    most_gib_of_a_gpu: float
    seconds: float
    """From the first pod that was made to the last that was bound."""


class Plane:
    """A control plane in a folder."""

    def __init__(self, binaries: Path, folder: Path, stack: contextlib.ExitStack) -> None:
        self._binaries = binaries
        self._folder = folder
        self._stack = stack
        self._ports = _free_ports(4)
        self.kubeconfig = folder / "kubeconfig"

    def start(self) -> Any:
        """Start store and API server, and return a client."""
        store, peers, api, _ = self._ports
        token = secrets.token_hex()
        key, certificate = self._certificate()
        (self._folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
        self._kubeconfig(token, certificate, api)
        self._run("etcd", "--data-dir", self._folder / "etcd", "--unsafe-no-fsync",
                  "--listen-client-urls", f"http://127.0.0.1:{store}", "--advertise-client-urls", f"http://127.0.0.1:{store}",
                  "--listen-peer-urls", f"http://127.0.0.1:{peers}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peers}",
                  "--initial-cluster", f"default=http://127.0.0.1:{peers}")  # fmt: skip
        self._run("kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{store}", "--secure-port", str(api),
                  "--bind-address", "127.0.0.1", "--tls-cert-file", certificate, "--tls-private-key-file", key,
                  "--service-account-key-file", key, "--service-account-signing-key-file", key,
                  "--service-account-issuer", "https://kubernetes", "--service-cluster-ip-range", "10.0.0.0/24",
                  "--token-auth-file", self._folder / "tokens.csv", "--disable-admission-plugins", "ServiceAccount")  # fmt: skip
        client = lightkube.Client(config=KubeConfig.from_file(self.kubeconfig))
        until(lambda: _answers(client))
        return client

    def schedule(self, *, is_scored: bool) -> None:
        """Start the scheduler, and the extender if it shall have one."""
        port = self._ports[3]
        if is_scored:
            self._run(PGPU, "kubernetes", "score", "--listen", f"127.0.0.1:{port}", "--kubeconfig", self.kubeconfig)
            until(lambda: _is_ready(port))
        extender = {
            "urlPrefix": f"http://127.0.0.1:{port}", "prioritizeVerb": "prioritize", "weight": WEIGHT,
            "nodeCacheCapable": True, "ignorable": True, "httpTimeout": "1s",
        }  # fmt: skip
        written = {
            "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False}, "clientConnection": {"kubeconfig": str(self.kubeconfig)},
            "extenders": [extender] if is_scored else [],
        }  # fmt: skip
        (self._folder / "scheduler.json").write_text(json.dumps(written))
        self._run("kube-scheduler", "--config", self._folder / "scheduler.json", "--secure-port", "0")

    def _certificate(self) -> tuple[Path, Path]:
        key, certificate = self._folder / "key.pem", self._folder / "certificate.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kubernetes",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate],
                       check=True, capture_output=True)  # fmt: skip
        return key, certificate

    def _kubeconfig(self, token: str, certificate: Path, port: int) -> None:
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificate)}
        written = {
            "apiVersion": "v1", "kind": "Config", "current-context": "plane",
            "clusters": [{"name": "plane", "cluster": cluster}], "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "plane", "context": {"cluster": "plane", "user": "admin"}}],
        }  # fmt: skip
        self.kubeconfig.write_text(json.dumps(written))

    def _run(self, program: str | Path, *words: str | Path) -> None:
        log = self._stack.enter_context((self._folder / f"{Path(program).name}.log").open("wb"))
        process = subprocess.Popen([self._binaries / program, *words], stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)


def play(sizes_gib: Sequence[int], binaries: Path, *, is_scored: bool) -> Result:
    """Let pods with claims of these sizes come to a cluster of fake nodes.

    Args:
        sizes_gib: Of each.
        binaries: Folder of etcd, kube-apiserver and kube-scheduler.
        is_scored: Whether the scheduler asks for scores.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        plane = Plane(binaries, Path(folder), stack)
        client = plane.start()
        for node in fleet.nodes():
            _stand(client, node)
        plane.schedule(is_scored=is_scored)
        start = time.monotonic()
        for number, gib in enumerate(sizes_gib):
            client.create(msgspec.convert(_anonymous(fleet.claim(number, gib)), ResourceClaim))
            client.create(msgspec.convert(_tolerant(_anonymous(fleet.pod(number))), Pod))
        _wait_until_bound(client, len(sizes_gib))
        return _result(client, round(time.monotonic() - start, 1))


def _stand(client: Any, node: fleet.Object) -> None:
    made = client.create(msgspec.convert({"metadata": {"name": node["metadata"]["name"]}}, Node))
    status = {"status": {**node["status"], "capacity": node["status"]["allocatable"]}}
    client.patch(Node.Status, made.metadata.name, status)
    for each in fleet.slices({"metadata": {"name": made.metadata.name, "uid": made.metadata.uid}}):
        client.create(msgspec.convert(each, ResourceSlice))


def _anonymous(written: fleet.Object) -> fleet.Object:
    """Remove fields that the API server sets itself."""
    del written["metadata"]["uid"]
    written.pop("status", None)
    return written


def _tolerant(pod: fleet.Object) -> fleet.Object:
    """Let a pod be scheduled to nodes without a kubelet that reports them ready."""
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    return pod


def _answers(client: Any) -> bool:
    with contextlib.suppress(Exception):  # while it starts, every error is retried
        client.create(msgspec.convert({"metadata": {"name": fleet.NAMESPACE}}, Namespace))
        shared = {"metadata": {"name": SHARED_CLASS}, "spec": {"selectors": [_SELECTOR]}}
        client.create(msgspec.convert(shared, DeviceClass))
        return True
    return False


def _is_ready(port: int) -> bool:
    with contextlib.suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz").close()
        return True
    return False


def _wait_until_bound(client: Any, count: int) -> None:
    bound: set[str] = set()
    for _, pod in client.watch(Pod, namespace=fleet.NAMESPACE):
        if pod.spec.nodeName:
            bound.add(pod.metadata.name)
        if len(bound) == count:
            return


def _result(client: Any, seconds: float) -> Result:
    taken: Counter[tuple[str, str]] = Counter()
    allocated = 0
    for claim in client.list(ResourceClaim, namespace=fleet.NAMESPACE):
        allocated += 1
        for one in claim.status.allocation.devices.results:
            taken[one.pool, gpu_of(one.device)] += amount(one.consumedCapacity[MEMORY])
    return Result(len(taken), allocated, max(taken.values()) / GIB, seconds)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in made]
