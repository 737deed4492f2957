"""Functions where Knative is installed, which takes claims or does not."""

from dataclasses import dataclass

import pytest
from tests.fakes.api_objects import KINDS, RefusalError
from tests.fakes.api_server import ApiServer, Asked, User
from tests.system.kubernetes.deployed_functions import (
    DEPLOYED,
    IMAGE,
    KNATIVE,
    SERVED,
    SOURCES,
    Manifest,
    Said,
    names,
    pod_of,
)

_FIELDS = ("spec.template.spec.containers[0].resources.claims", "spec.template.spec.resourceClaims")
SCHEMA = (500, "failed to create typed patch object: errors: ." + ": field not declared in schema\n ".join(_FIELDS))
"""What Kubernetes 1.36.2 said with the CRD of Knative's main branch of August 2026."""

_DENIED = 'admission webhook "validation.webhook.serving.knative.dev" denied the request: validation failed: '
WEBHOOK = (400, f"{_DENIED}must not set the field(s): {', '.join(_FIELDS)}")
"""What Knative's webhook says. Source: knative/serving#15332."""


@dataclass
class Webhook:
    """Knative's, as far as claims go."""

    refusal: tuple[int, str] = SCHEMA
    takes_claims: bool = False

    def __call__(self, asked: Asked, _user: User, wanted: Manifest) -> None:
        if asked.kind == KNATIVE and not self.takes_claims and "resourceClaims" in pod_of(wanted):
            code, message = self.refusal
            raise RefusalError(code, "BadRequest", message)


@pytest.fixture
def knative(server: ApiServer) -> Webhook:
    server.kinds = list(KINDS)
    webhook = Webhook()
    server.admission = webhook
    return webhook


@pytest.mark.usefixtures("knative")
def test_where_knative_is_installed_a_function_becomes_its_service(server: ApiServer, said: Said) -> None:
    said("deploy", "app.py:Doubler", *IMAGE)
    assert (names(server, KNATIVE), names(server, DEPLOYED), names(server, SERVED)) == (["doubler"], [], [])
    made = server.objects.get(KNATIVE, "default", "doubler")
    assert made["spec"]["template"]["metadata"]["annotations"]["autoscaling.knative.dev/max-scale"] == "3"
    assert "knative" in said("functions", "--runtime", "kubernetes")
    labels = made["metadata"]["labels"]
    own = {"name": "doubler", "labels": labels, "ownerReferences": [{"kind": "Route", "name": "doubler"}]}
    server.objects.create(SERVED, "default", {"metadata": own, "spec": {}})
    said("undeploy", "doubler", "--runtime", "kubernetes")
    assert names(server, KNATIVE) == names(server, SOURCES) == []
    assert names(server, SERVED) == ["doubler"], "what Knative made is Knative's to remove"


@pytest.mark.parametrize("refusal", [SCHEMA, WEBHOOK])
def test_where_knative_takes_no_claims_a_gpu_function_is_a_deployment(
    server: ApiServer, knative: Webhook, remarked: Said, refusal: tuple[int, str]
) -> None:
    knative.refusal = refusal
    assert "Knative takes no claims" in remarked("deploy", "app.py:Sliced", *IMAGE)
    assert (names(server, KNATIVE), names(server, DEPLOYED)) == ([], ["sliced"])
    knative.takes_claims = True
    remarked("deploy", "app.py:Sliced", *IMAGE, "--name", "other")
    assert names(server, KNATIVE) == ["other"]
    remarked("deploy", "app.py:Sliced", *IMAGE)
    assert names(server, DEPLOYED) == ["sliced"], "it stays where it runs"


@pytest.mark.usefixtures("knative")
def test_the_platform_that_is_named_is_taken_or_refused(server: ApiServer, said: Said) -> None:
    said("deploy", "app.py:Doubler", *IMAGE, "--no-knative")
    assert names(server, DEPLOYED) == ["doubler"]
    assert "is a deployment in default" in said("deploy", "app.py:Doubler", *IMAGE, "--knative", code=125)
    assert "resources.claims" in said("deploy", "app.py:Sliced", *IMAGE, "--knative", code=125)
    server.kinds = [each for each in KINDS if each.group != "serving.knative.dev"]
    assert "not installed" in said("deploy", "app.py:Sliced", *IMAGE, "--knative", code=125)
