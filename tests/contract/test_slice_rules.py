"""The fake API server refuses the slices that a real one refuses. Each was also sent to a 1.36 server, which agreed."""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
from lightkube.resources.resource_v1 import ResourceSlice
from tests.fakes.api_objects import Object
from tests.fakes.api_rules import wrongs

from pgpu.errors import ObjectRefusedError
from pgpu.kubernetes.api import ClusterClient, DryRun

REAL = os.environ.get("KUBECONFIG", "")


def a_slice() -> Object:
    policy = {"default": "1Gi", "validRange": {"min": "256Mi", "max": "80Gi", "step": "256Mi"}}
    device = {
        "name": "gpu-0",
        "allowMultipleAllocations": True,
        "attributes": {"driverVersion": {"version": "580.65.6"}, "productName": {"string": "H100"}},
        "capacity": {"memory": {"value": "80Gi", "requestPolicy": policy}},
        "taints": [{"key": "gpu.pgpu.io/x", "value": "xid-79", "effect": "NoExecute"}],
    }
    pool = {"name": "node1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "test.pgpu.io", "nodeName": "node1", "pool": pool, "devices": [device]}
    return {"metadata": {"name": "node1-test"}, "spec": spec}


def changed(path: str, value: Any) -> Object:
    """Return the slice with one thing in it otherwise: `spec.devices.0.name`."""
    made = copy.deepcopy(a_slice())
    *way, last = path.split(".")
    at: Any = made
    for name in way:
        at = at[int(name)] if name.isdigit() else at[name]
    at[last] = value
    return made


MEMORY = "spec.devices.0.capacity.memory"
RANGE = f"{MEMORY}.requestPolicy.validRange"
COUNTERS = [{"name": f"set-{number}", "counters": {"whole": {"value": "1"}}} for number in range(9)]
MANY = [{"name": f"gpu-{number}"} for number in range(129)]
TAINTED = [{**device, "taints": a_slice()["spec"]["devices"][0]["taints"]} for device in MANY[:65]]
WRONG = {
    "no subdomain": changed("metadata.name", "Node_1"),
    "no slices in the pool": changed("spec.pool.resourceSliceCount", 0),
    "a negative generation": changed("spec.pool.generation", -1),
    "devices and counters": changed("spec.sharedCounters", COUNTERS[:1]),
    "too many devices": changed("spec.devices", MANY),
    "too many tainted devices": changed("spec.devices", TAINTED),
    "twice the same device": changed("spec.devices", [{"name": "gpu-0"}, {"name": "gpu-0"}]),
    "a device's name in capitals": changed("spec.devices.0.name", "GPU-0"),
    "a device's name too long": changed("spec.devices.0.name", "g" * 64),
    "a version with leading zeros": changed("spec.devices.0.attributes.driverVersion", {"version": "580.65.06"}),
    "a version of two numbers": changed("spec.devices.0.attributes.driverVersion", {"version": "9.0"}),
    "a long text": changed("spec.devices.0.attributes.productName", {"string": "x" * 65}),
    "too many attributes": changed("spec.devices.0.attributes", {f"a{n}": {"bool": True} for n in range(32)}),
    "a capacity's odd name": changed("spec.devices.0.capacity", {"mem-ory": {"value": "1"}}),
    "an odd taint": changed("spec.devices.0.taints.0.effect", "Never"),
    "a taint's odd value": changed("spec.devices.0.taints.0.value", "no label"),
    "policy without sharing": changed("spec.devices.0.allowMultipleAllocations", False),
    "less than can be asked": changed(f"{MEMORY}.value", "128Mi"),
    "one step is too much": changed(f"{MEMORY}.value", "256Mi"),
    "more than there is": changed(f"{RANGE}.max", "81Gi"),
    "a most between steps": changed(f"{RANGE}.max", "1000Mi"),
    "a default between steps": changed(f"{MEMORY}.requestPolicy.default", "300Mi"),
    "a default too small": changed(f"{MEMORY}.requestPolicy.default", "1Mi"),
    "values out of order": changed(f"{MEMORY}.requestPolicy", {"default": "2", "validValues": ["2", "1"]}),
    "a default that is no value": changed(f"{MEMORY}.requestPolicy", {"default": "3", "validValues": ["1", "2"]}),
    "too many counter sets": {
        "metadata": {"name": "node1-test"},
        "spec": {
            **{name: said for name, said in a_slice()["spec"].items() if name != "devices"},
            "sharedCounters": COUNTERS,
        },
    },
}
RIGHT = {
    "as it is": a_slice(),
    "values": changed(f"{MEMORY}.requestPolicy", {"default": "1", "validValues": ["1"]}),
    "128 devices": changed("spec.devices", MANY[:128]),
    "64 tainted devices": changed("spec.devices", TAINTED[:64]),
    "8 counter sets": {
        **WRONG["too many counter sets"],
        "spec": {**WRONG["too many counter sets"]["spec"], "sharedCounters": COUNTERS[:8]},
    },
}


@pytest.mark.parametrize("what", sorted(WRONG))
def test_what_is_wrong_is_refused(what: str) -> None:
    assert wrongs(WRONG[what])


@pytest.mark.parametrize("what", sorted(RIGHT))
def test_what_is_right_is_taken(what: str) -> None:
    assert wrongs(RIGHT[what]) == []


@pytest.mark.skipif(not REAL, reason="KUBECONFIG names no cluster")
def test_a_real_server_agrees() -> None:
    cluster = ClusterClient.at(Path(REAL))

    verdicts = {what: is_taken(cluster, sent) for what, sent in (WRONG | RIGHT).items()}

    cluster.close()
    assert {what for what, taken in verdicts.items() if taken} == set(RIGHT)


def is_taken(cluster: ClusterClient, sent: Object) -> bool:
    wanted = ResourceSlice.from_dict(copy.deepcopy(sent))
    assert isinstance(wanted, ResourceSlice)
    try:
        cluster.create_slice(wanted, DryRun.ALL)
    except ObjectRefusedError:
        return False
    return True
