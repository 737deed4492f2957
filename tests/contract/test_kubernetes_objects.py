"""Objects of whatever kind, asked of an API server over HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.api_objects import RefusalError
from tests.fakes.api_server import ApiServer, Fault, User, running

from pgpu.errors import (
    ClusterAccessError,
    ClusterUnavailableError,
    ObjectConflictError,
    ObjectRefusedError,
)
from pgpu.kubernetes.api import DryRun, DynamicClient, ObjectKind

MAPS = ObjectKind("v1", "ConfigMap", "configmaps")
CLASSES = ObjectKind("resource.k8s.io/v1", "DeviceClass", "deviceclasses", is_namespaced=False)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with running() as served:
        yield served


@pytest.fixture
def objects(server: ApiServer, tmp_path: Path) -> Iterator[DynamicClient]:
    found = DynamicClient.from_kubeconfig(server.kubeconfig(tmp_path))
    yield found
    found.close()


def config_map(name: str = "one", **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"of": name}}, "data": data}


def test_what_is_applied_is_found_changed_and_removed(objects: DynamicClient) -> None:
    assert objects.find(MAPS, "one", "default") is None
    objects.apply(MAPS, config_map(a="1", b="2"), "default", "pgpu")
    stored = objects.apply(MAPS, config_map(a="3"), "default", "pgpu")
    assert stored["data"] == {"a": "3"}, "what is not said any more is gone"
    found = objects.find(MAPS, "one", "default")
    assert found is not None
    assert found["data"] == {"a": "3"}
    assert objects.remove(MAPS, "one", "default")
    assert not objects.remove(MAPS, "one", "default")


def test_a_field_of_another_manager_is_taken_only_by_force(objects: DynamicClient) -> None:
    objects.apply(MAPS, config_map(a="1", b="2"), "default", "argocd")
    with pytest.raises(ObjectConflictError, match=r'"argocd" using v1: \.data\.a'):
        objects.apply(MAPS, config_map(a="3"), "default", "pgpu")
    assert (objects.find(MAPS, "one", "default") or {})["data"] == {"a": "1", "b": "2"}, "nothing changed"
    forced = objects.apply(MAPS, config_map(a="3"), "default", "pgpu", is_forced=True)
    assert forced["data"] == {"a": "3", "b": "2"}, "what is not contradicted stays the other's"


def test_a_dry_run_stores_nothing(objects: DynamicClient) -> None:
    shown = objects.apply(MAPS, config_map(a="1"), "default", "pgpu", dry_run=DryRun.ALL)
    assert shown["data"] == {"a": "1"}
    assert objects.find(MAPS, "one", "default") is None
    objects.apply(MAPS, config_map(a="1"), "default", "pgpu")
    objects.apply(MAPS, config_map(a="2"), "default", "pgpu", dry_run=DryRun.ALL)
    assert (objects.find(MAPS, "one", "default") or {})["data"] == {"a": "1"}


def test_objects_are_listed_by_label_in_one_namespace_or_all(objects: DynamicClient) -> None:
    for namespace, name in (("default", "one"), ("default", "two"), ("other", "one")):
        objects.apply(MAPS, config_map(name), namespace, "pgpu")
    assert [each["metadata"]["name"] for each in objects.all(MAPS, "of", "default")] == ["one", "two"]
    assert [each["metadata"]["namespace"] for each in objects.all(MAPS, "of=one")] == ["default", "other"]
    assert all((each["apiVersion"], each["kind"]) == ("v1", "ConfigMap") for each in objects.all(MAPS, "of"))


def test_a_kind_is_there_or_not(server: ApiServer, objects: DynamicClient) -> None:
    assert objects.serves(CLASSES)
    server.kinds = [kind for kind in server.kinds if kind.group != "resource.k8s.io"]
    assert not objects.serves(CLASSES)


def test_a_busy_server_is_asked_again_and_a_refusal_is_not(server: ApiServer, objects: DynamicClient) -> None:
    server.faults.append(Fault(503, times=2, verb="patch"))
    objects.apply(MAPS, config_map(a="1"), "default", "pgpu")
    server.faults.append(Fault(503, times=100, verb="delete"))
    with pytest.raises(ClusterUnavailableError):
        objects.remove(MAPS, "one", "default")
    asked = len(server.asked)
    server.faults[:] = [Fault(422, times=100)]
    with pytest.raises(ObjectRefusedError):
        objects.find(MAPS, "one", "default")
    assert len(server.asked) == asked + 1


def test_a_field_that_a_kind_does_not_have_is_not_asked_for_again(server: ApiServer, objects: DynamicClient) -> None:
    def schema(*_: object) -> None:
        raise RefusalError(
            500, "", "failed to create typed patch object: errors: .data.x: field not declared in schema"
        )

    server.admission = schema
    with pytest.raises(ObjectRefusedError, match=r"\.data\.x"):
        objects.apply(MAPS, config_map(x="1"), "default", "pgpu")
    assert len(server.asked) == 1


def test_who_may_not_is_told_so(server: ApiServer, tmp_path: Path) -> None:
    server.users["reader"] = User([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}])
    objects = DynamicClient.from_kubeconfig(server.kubeconfig(tmp_path, "reader"))
    assert objects.find(MAPS, "one", "default") is None
    with pytest.raises(ClusterAccessError, match="cannot patch"):
        objects.apply(MAPS, config_map(), "default", "pgpu")
    objects.close()


def test_a_context_says_where_and_in_which_namespace(server: ApiServer, tmp_path: Path) -> None:
    file = server.kubeconfig(tmp_path)
    assert DynamicClient.from_kubeconfig(file, "fake").namespace == "default"
    with pytest.raises(ClusterAccessError, match="'other' not found"):
        DynamicClient.from_kubeconfig(file, "other")
    with pytest.raises(ClusterAccessError, match="not found"):
        DynamicClient.from_kubeconfig(tmp_path / "missing")
