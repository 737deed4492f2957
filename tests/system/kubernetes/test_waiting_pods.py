"""Why pods wait for their GPU, as `pgpu doctor --kubernetes --pod` tells it."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.api_server import CLAIMS, NODES, PODS, SLICES, ApiServer
from tests.system.kubernetes.test_doctor import (
    claim,
    explained,
    labelled,
    pod,
    pod_of_claim,
    published,
    run,
    server,
)

from pgpu.errors import RequestError
from pgpu.model.finding import Result

__all__ = ["server"]

GIB = 1 << 30


def test_nodes_that_are_closed_to_a_pod_do_not_count(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(NODES, "", labelled("node2", {"pool": "large"}))
    server.objects.create(SLICES, "", published("node2", "gpu-c"))
    for name, on in (("one", "gpu-a"), ("two", "gpu-b")):
        server.objects.create(CLAIMS, "team", claim(name, "60Gi", on=on))
    server.objects.create(CLAIMS, "team", claim("mine", "30Gi"))
    server.objects.create(PODS, "team", pod_of_claim("anywhere", "mine"))
    bound = pod_of_claim("bound", "mine")
    bound["spec"]["nodeSelector"] = {"pool": "small"}
    server.objects.create(PODS, "team", bound)
    assert "that fits on node2" in explained(server, tmp_path, "anywhere")[0].finding
    assert explained(server, tmp_path, "bound")[0].finding == "no node with a GPU is open to it"
    closed = labelled("node2", {"pool": "large"})
    closed["spec"]["unschedulable"] = True
    server.objects.update(NODES, "", closed)
    told = explained(server, tmp_path, "anywhere")[0]
    assert told.finding == "it asks for 30 GiB, and no node that is open to it has that free"
    assert "at most 20 GiB" in (told.remedy or "")


def test_a_pod_that_fits_nowhere_is_told_who_has_the_rest(server: ApiServer, tmp_path: Path) -> None:
    for name, on in (("one", "gpu-a"), ("two", "gpu-a"), ("three", "gpu-b"), ("four", "gpu-b")):
        server.objects.create(CLAIMS, "team", claim(name, "30Gi", on=on))
    server.objects.create(CLAIMS, "team", claim("mine", "30Gi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    first, *gpus = explained(server, tmp_path, "waits")
    assert first.result is Result.FAILURE
    assert first.finding == "it asks for 30 GiB, and no node that is open to it has that free"
    assert "at most 20 GiB of one GPU are free for it" in (first.remedy or "")
    assert gpus[0].name == "node1 gpu-a"
    assert "20 GiB of 80 GiB" in gpus[0].finding
    assert "held by team/one 30 GiB, team/two 30 GiB" in gpus[0].finding


def test_what_is_asked_is_rounded_up_as_the_scheduler_does(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("mine", "1000Mi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    (first, *_) = explained(server, tmp_path, "waits")
    assert "it asks for 1 GiB, and that fits on node1 now" in first.finding
    assert "cannot allocate all claims" in first.finding


def test_a_claim_larger_than_any_gpu_never_starts(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("mine", "81Gi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    assert "it never starts here: no GPU has more than 80 GiB" in (explained(server, tmp_path, "waits")[0].remedy or "")


def test_limits_without_a_claim_ask_for_the_usual_size(server: ApiServer, tmp_path: Path) -> None:
    for name in ("gpu-a", "gpu-b"):
        server.objects.create(CLAIMS, "team", claim(f"on-{name}", "78Gi", on=name))
    limits = {"limits": {"pgpu.io/gpu-slice": "1"}, "requests": {"pgpu.io/gpu-slice": "1"}}
    server.objects.create(PODS, "team", pod("waits", containers=[{"name": "main", "resources": limits}]))
    assert (
        explained(server, tmp_path, "waits")[0].finding
        == "it asks for 4 GiB, and no node that is open to it has that free"
    )


def test_a_whole_gpu_needs_one_that_is_nobodys(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("slice", "1Gi", on="gpu-a"))
    server.objects.create(CLAIMS, "team", claim("whole", "1Gi", on="gpu-b-whole"))
    wanted = claim("mine", "1Gi")
    wanted["spec"]["devices"]["requests"][0]["exactly"] = {"deviceClassName": "whole.gpu.pgpu.io"}
    server.objects.create(CLAIMS, "team", wanted)
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    first, *gpus = explained(server, tmp_path, "waits")
    assert first.finding == "it asks for a whole GPU, and no node that is open to it has that free"
    assert "held by team/whole all of it" in gpus[1].finding


def test_a_gpu_that_is_shared_in_another_way_has_no_room(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("under-mps", "1Gi", on="gpu-a-mps"))
    server.objects.create(CLAIMS, "team", claim("large", "50Gi", on="gpu-b"))
    server.objects.create(CLAIMS, "team", claim("mine", "40Gi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    first, *gpus = explained(server, tmp_path, "waits")
    assert first.result is Result.FAILURE
    assert "at most 30 GiB of one GPU are free for it" in (first.remedy or "")
    assert "in the kind mps; held by team/under-mps 1 GiB" in gpus[0].finding


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpu-99gib"}]}, "not there: gpu-99gib"),
        ({"resourceClaims": [{"name": "gpu", "resourceClaimName": "gone"}]}, "not there: gone"),
        ({}, "asks for no GPU"),
    ],
)
def test_other_reasons_are_told(server: ApiServer, tmp_path: Path, spec: dict[str, Any], words: str) -> None:
    server.objects.create(PODS, "team", pod("waits", **spec))
    assert words in explained(server, tmp_path, "waits")[0].finding


def test_pods_that_do_not_wait_are_told_so(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(PODS, "team", pod("runs", nodeName="node1"))
    ended = pod("ended")
    ended["status"]["phase"] = "Succeeded"
    server.objects.create(PODS, "team", ended)
    assert "on node1" in explained(server, tmp_path, "runs")[0].finding
    assert "waits for nothing" in explained(server, tmp_path, "ended")[0].finding
    with pytest.raises(RequestError, match="no pod team/none"):
        explained(server, tmp_path, "none")


def test_the_command_explains_a_pod(server: ApiServer, tmp_path: Path) -> None:
    server.objects.create(CLAIMS, "team", claim("mine", "81Gi"))
    server.objects.create(PODS, "team", pod_of_claim("waits", "mine"))
    told = run(server, tmp_path, "--pod", "team/waits")
    assert told.returncode == 1
    assert "FAIL  team/waits: it asks for 81 GiB" in told.stdout
    unknown = run(server, tmp_path, "--pod", "team/none", "--json")
    assert unknown.returncode == 125
    assert json.loads(unknown.stderr)["error"]["message"].startswith("there is no pod team/none")
