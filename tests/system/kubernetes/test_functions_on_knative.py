"""Functions that an earlier release deployed to Knative: they stay, are listed and removed; no other is deployed there."""

import pytest
from tests.fakes.api_objects import KINDS
from tests.fakes.api_server import ApiServer
from tests.system.kubernetes.deployed_functions import DEPLOYED, IMAGE, KNATIVE, SERVED, SOURCES, Manifest, Said, names

_LABELS = {"app.kubernetes.io/managed-by": "pgpu", "pgpu.io/function": "doubler"}


def made(name: str) -> Manifest:
    return {"metadata": {"name": name, "labels": _LABELS}}


@pytest.fixture
def knative(server: ApiServer) -> None:
    """Install Knative, with a function of an earlier release."""
    server.kinds = list(KINDS)
    spec = {"template": {"spec": {"containers": [{"image": "it:1"}]}}}
    status = {"url": "http://doubler.default.example.com"}
    server.objects.create(KNATIVE, "default", {**made("doubler"), "spec": spec, "status": status})
    server.objects.create(SOURCES, "default", {**made("doubler-source-1"), "data": {}})
    of_knative = {**_LABELS}, [{"kind": "Route", "name": "doubler"}]
    server.objects.create(
        SERVED,
        "default",
        {"metadata": {"name": "doubler", "labels": of_knative[0], "ownerReferences": of_knative[1]}, "spec": {}},
    )


@pytest.mark.usefixtures("knative")
def test_a_function_of_an_earlier_release_stays_until_it_is_removed(server: ApiServer, said: Said) -> None:
    listed = said("functions", "--runtime", "kubernetes")
    assert "knative" in listed
    assert "http://doubler.default.example.com" in listed
    refused = said("deploy", "app.py:Doubler", *IMAGE, code=125)
    assert "is a Knative Service of an earlier release" in refused
    assert "undeploy doubler" in refused
    assert (names(server, KNATIVE), names(server, DEPLOYED)) == (["doubler"], [])
    said("undeploy", "doubler", "--runtime", "kubernetes")
    assert names(server, KNATIVE) == names(server, SOURCES) == []
    assert names(server, SERVED) == ["doubler"], "what Knative made is Knative's to remove"


@pytest.mark.usefixtures("knative")
def test_where_knative_is_installed_a_function_is_a_deployment(server: ApiServer, said: Said) -> None:
    said("deploy", "app.py:Doubler", *IMAGE, "--name", "other", "--no-knative")
    assert (names(server, KNATIVE), names(server, DEPLOYED)) == (["doubler"], ["other"])
