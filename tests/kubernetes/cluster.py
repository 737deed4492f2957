"""One test's namespace of the cluster, by plain kubectl.

It is not pgpu's own client: what pgpu says of a cluster is what is tested. It refuses to choose a cluster itself: the
one that PGPU_TEST_KUBECONFIG names is meant to be tested on.
"""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from tests.kubernetes.manifests import DRIVER, Manifest
from tests.waiting import DEADLINE_SECONDS, until

BINARY_SUFFIXES = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}


def bytes_of(quantity: str) -> int:
    """Return the bytes of a quantity as the API server writes it for memory."""
    for suffix, factor in BINARY_SUFFIXES.items():
        if quantity.endswith(suffix):
            return int(quantity.removesuffix(suffix)) * factor
    return int(quantity)


_NEVER_STARTED = "StartError"
"""The kubelet calls a container ended, too, that its runtime could not start."""


@dataclass(frozen=True)
class Gpu:
    """One simulated GPU that the cluster offers."""

    node: str
    device: str
    """Name of the device of its time slices; its other devices' names begin with it."""

    uuid: str
    memory_bytes: int
    """That claims may have in all."""

    @property
    def selector(self) -> str:
        """The CEL expression that admits the devices of this GPU only."""
        return f'device.attributes["{DRIVER}"].uuid == "{self.uuid}"'


@dataclass(frozen=True)
class Cluster:
    """A cluster, and a namespace in it."""

    namespace: str

    def kubectl(self, *words: str, stdin: str = "") -> str:
        """Run kubectl, which must succeed, and return what it printed."""
        done = self.try_kubectl(*words, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def try_kubectl(
        self, *words: str, stdin: str = "", kubeconfig: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl, as whom the tests' kubeconfig names or another one."""
        return subprocess.run(
            ["kubectl", "--namespace", self.namespace, *words],
            env=dict(os.environ) | {"KUBECONFIG": kubeconfig or os.environ["PGPU_TEST_KUBECONFIG"]},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )

    def apply(self, *objects: Manifest) -> None:
        """Create or change objects."""
        self.kubectl(
            "apply", "--filename", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )

    def get(self, *words: str) -> Any:
        """Return an object or a list of objects."""
        return json.loads(self.kubectl("get", *words, "--output", "json"))

    def wait_for(self, pod: str, condition: str) -> None:
        """Wait until something is so of a pod, as `kubectl wait --for` puts it; it sleeps, where looking again and again would not."""
        done = self.try_kubectl("wait", f"pod/{pod}", f"--for={condition}", f"--timeout={DEADLINE_SECONDS}s")
        assert done.returncode == 0, f"{done.stderr}{self.story(pod)}"

    def wait_until_running(self, pod: str) -> None:
        """Wait until all containers of a pod run."""
        self.wait_for(pod, "condition=Ready")

    def wait_until_unschedulable(self, pod: str) -> str:
        """Wait until the scheduler has said that a pod finds no place now, and return its words."""
        self.wait_for(pod, "condition=PodScheduled=False")
        conditions = self.get("pod", pod)["status"]["conditions"]
        return next(str(each["message"]) for each in conditions if each["type"] == "PodScheduled")

    def phases(self) -> dict[str, str]:
        """Return the phase of every pod, such as `Succeeded`, by name."""
        return {each["metadata"]["name"]: str(each["status"].get("phase")) for each in self.get("pods")["items"]}

    def has_started(self, pod: str) -> bool:
        """Whether any container of a pod was ever started."""
        statuses = self.get("pod", pod)["status"].get("containerStatuses", [])
        ended = [each[when].get("terminated", {}) for each in statuses for when in ("state", "lastState")]
        has_run = [end for end in ended if end and end.get("reason") != _NEVER_STARTED]
        return bool(has_run) or any("running" in each["state"] for each in statuses)

    def restarts(self, pod: str, container: str = "client") -> int:
        """Return how often a container of a pod was started again."""
        statuses = self.get("pod", pod)["status"].get("containerStatuses", [])
        return sum(int(each["restartCount"]) for each in statuses if each["name"] == container)

    def wait_until_restarted(self, pod: str, times: int, container: str = "client") -> None:
        """Wait until a container of a pod was started again so often, and all of the pod's run."""
        until(lambda: self.restarts(pod, container) >= times, lambda: self.story(pod))
        self.wait_until_running(pod)

    def report(self, pod: str, container: str = "client") -> Mapping[str, Any]:
        """Wait for what the CUDA client that runs now in a container found, and return it."""
        line = until(lambda: self._last_report(pod, container), lambda: self.story(pod))
        return dict(json.loads(line))

    def _last_report(self, pod: str, container: str) -> str:
        done = self.try_kubectl("logs", pod, "--container", container)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return lines[-1] if done.returncode == 0 and lines else ""

    def ask_to_leave(self, pod: str, container: str = "client") -> None:
        """Let a container's CUDA client end by itself; the command that asks it to dies with the container."""
        self.try_kubectl("exec", pod, "--container", container, "--", "python3", "-c", "import os; os.kill(1, 15)")

    def end(self, pod: str) -> None:
        """Let a pod's CUDA client end by itself, and wait until the pod has succeeded."""
        self.ask_to_leave(pod)
        self.wait_for(pod, "jsonpath={.status.phase}=Succeeded")

    def delete(self, *words: str) -> None:
        """Delete objects and wait until they are gone."""
        self.kubectl("delete", *words, "--wait", f"--timeout={DEADLINE_SECONDS}s")

    def events(self, name: str) -> list[str]:
        """Return what was said of an object, a line an event: `Reason: message`."""
        listed = self.get("events", f"--field-selector=involvedObject.name={name}")["items"]
        return [f"{each.get('reason')}: {each.get('message')}" for each in listed]

    def wait_for_event(self, name: str, words: str) -> str:
        """Wait until somebody has said these words of an object, and return all that was said in that event."""
        return until(
            lambda: next((line for line in self.events(name) if words in line), ""),
            lambda: "\n".join(self.events(name)),
        )

    def story(self, pod: str) -> str:
        """Return all that is known of a pod, for people."""
        return self.try_kubectl("describe", "pod", pod).stdout

    def log(self, pod: str) -> str:
        """Return what a pod's containers have said."""
        return self.try_kubectl("logs", pod, "--all-containers").stdout

    def claim_of(self, pod: str) -> Any:
        """Return the one claim that was made for a pod."""
        (status,) = self.get("pod", pod)["status"]["resourceClaimStatuses"]
        return self.get("resourceclaim", status["resourceClaimName"])

    def consumed_bytes(self, gpu: Gpu) -> int:
        """Return how much of a GPU's memory claims of the whole cluster have now."""
        claims = self.get("resourceclaims", "--all-namespaces")["items"]
        return sum(
            bytes_of(result["consumedCapacity"]["memory"]) if "consumedCapacity" in result else gpu.memory_bytes
            for each in claims
            for result in each.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
            if (result["driver"], result["pool"]) == (DRIVER, gpu.node) and result["device"].startswith(gpu.device)
        )

    def slice_uids(self, gpu: Gpu) -> set[str]:
        """Return which ResourceSlices the GPU's node has now."""
        return {each["metadata"]["uid"] for each in self._slices() if each["spec"]["nodeName"] == gpu.node}

    def _slices(self) -> list[Any]:
        return list(self.get("resourceslices", f"--field-selector=spec.driver={DRIVER}")["items"])

    def gpus(self) -> list[Gpu]:
        """Return the simulated GPUs that all nodes offer now."""
        return [
            found
            for each in self._slices()
            for device in each["spec"].get("devices", [])
            if (found := _gpu(each["spec"]["nodeName"], device)) is not None
        ]


def _gpu(node: str, device: Manifest) -> Gpu | None:
    attributes = device.get("attributes", {})
    uuid = attributes.get("uuid", {}).get("string", "")
    if device["name"] != uuid.lower() or not attributes.get("simulated", {}).get("bool"):
        return None
    return Gpu(node, device["name"], uuid, bytes_of(device["capacity"]["memory"]["value"]))


@contextmanager
def new_namespace() -> Iterator[Cluster]:
    """Make a namespace, and delete it with all that is in it: that nothing hangs in it is part of every test."""
    cluster = Cluster(f"pgpu-test-{uuid4().hex[:8]}")
    cluster.kubectl("create", "namespace", cluster.namespace)
    try:
        yield cluster
    finally:
        cluster.delete("namespace", cluster.namespace)
