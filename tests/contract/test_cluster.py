"""What pgpu asks of an API server, over HTTP: of the fake one, and of a real one where KUBECONFIG names it."""

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.models.resource_v1 import Device, ResourcePool, ResourceSliceSpec
from lightkube.resources.resource_v1 import ResourceSlice
from tests.fakes.api_server import running

from pgpu.errors import ObjectConflictError, ObjectNotFoundError, ObjectRefusedError
from pgpu.kubernetes.api import ClusterClient, DryRun

REAL = os.environ.get("KUBECONFIG", "")
WAYS = ["fake", pytest.param("real", marks=pytest.mark.skipif(not REAL, reason="KUBECONFIG names no cluster"))]


@pytest.fixture(params=WAYS)
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ClusterClient]:
    if request.param == "real":
        asked = ClusterClient.at(Path(REAL))
        yield asked
        asked.close()
        return
    with running() as server:
        server.add_node("node1")
        asked = ClusterClient.at(server.kubeconfig(tmp_path))
        yield asked
        asked.close()


@pytest.fixture
def wanted(cluster: ClusterClient) -> Iterator[ResourceSlice]:
    """A slice of a driver and a node that nobody has."""
    name = f"pgpu-test-{uuid.uuid4().hex[:8]}"
    pool = ResourcePool(name=name, generation=1, resourceSliceCount=1)
    spec = ResourceSliceSpec(driver="test.pgpu.io", nodeName=name, pool=pool, devices=[Device(name="gpu-0")])
    yield ResourceSlice(metadata=ObjectMeta(name=name), spec=spec)
    for left in cluster.slices("test.pgpu.io", name).slices:
        cluster.delete_slice(named(left))


def named(found: ResourceSlice) -> str:
    assert found.metadata is not None
    return found.metadata.name or ""


def test_a_slice_is_made_listed_changed_and_removed(cluster: ClusterClient, wanted: ResourceSlice) -> None:
    made = cluster.create_slice(wanted)
    made.spec.pool.generation = 2

    changed = cluster.update_slice(made)

    assert changed.spec.pool.generation == 2
    assert cluster.slices("test.pgpu.io", named(wanted)).slices == (changed,)
    cluster.delete_slice(named(wanted))
    assert cluster.slices("test.pgpu.io", named(wanted)).slices == ()


def test_a_dry_run_stores_nothing(cluster: ClusterClient, wanted: ResourceSlice) -> None:
    answered = cluster.create_slice(wanted, DryRun.ALL)

    assert answered.spec.devices == wanted.spec.devices
    assert cluster.slices("test.pgpu.io", named(wanted)).slices == ()


def test_a_slice_that_is_there_is_not_made_twice(cluster: ClusterClient, wanted: ResourceSlice) -> None:
    cluster.create_slice(wanted)

    with pytest.raises(ObjectConflictError, match="already exists"):
        cluster.create_slice(wanted)


def test_who_changes_an_older_slice_is_told_of_the_conflict(cluster: ClusterClient, wanted: ResourceSlice) -> None:
    made = cluster.create_slice(wanted)
    (newer,) = cluster.slices("test.pgpu.io", named(wanted)).slices
    newer.spec.pool.generation = 2
    cluster.update_slice(newer)
    made.spec.pool.generation = 3

    with pytest.raises(ObjectConflictError):
        cluster.update_slice(made)


def test_a_wrong_slice_is_refused(cluster: ClusterClient, wanted: ResourceSlice) -> None:
    assert wanted.spec.devices is not None
    wanted.spec.devices[0].attributes = {"driverVersion": {"version": "580.65.06"}}

    with pytest.raises(ObjectRefusedError, match="semver"):
        cluster.create_slice(wanted)


def test_what_is_not_there_is_not_found(cluster: ClusterClient) -> None:
    with pytest.raises(ObjectNotFoundError):
        cluster.node("no-such-node")
    with pytest.raises(ObjectNotFoundError):
        cluster.claim("default", "no-such-claim")
    with pytest.raises(ObjectNotFoundError):
        cluster.delete_slice("no-such-slice")


def test_a_watch_tells_each_change_since_a_list(cluster: ClusterClient, wanted: ResourceSlice) -> None:
    listed = cluster.slices("test.pgpu.io", named(wanted))
    made = cluster.create_slice(wanted)
    cluster.delete_slice(named(made))
    watch = cluster.watch_slices("test.pgpu.io", named(wanted), listed.resource_version)

    changes = watch.changes()

    assert [next(changes).kind, next(changes).kind] == ["ADDED", "DELETED"]
    watch.close()
    assert list(changes) == []


def test_recorded_claims_are_read(tmp_path: Path) -> None:
    recorded = json.loads((Path(__file__).parents[1] / "fakes" / "recorded" / "resourceclaims.json").read_text())
    with running() as server:
        server.objects.load(recorded)
        asked = ClusterClient.at(server.kubeconfig(tmp_path))

        claim = asked.claim("default", "claim-a")

        assert claim.uid == "a02db829-7410-4da1-ace7-96d91078b587"
        (device,) = claim.devices
        assert (device.request, device.driver, device.pool, device.device) == ("gpu", "gpu.pgpu.io", "node1", "gpu-0")
        assert device.consumed == {"cores": 30, "memory": 30 << 30}
        assert [user.name for user in claim.users] == ["pod-a"]
        asked.close()
