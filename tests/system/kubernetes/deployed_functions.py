"""Words that tests of functions on a cluster share: the source that is deployed, and what an API server has of it."""

from collections.abc import Callable
from typing import Any

from tests.fakes.api_objects import KINDS, Kind
from tests.fakes.api_server import ApiServer

Said = Callable[..., str]
Manifest = dict[str, Any]

APP = """
import pgpu

@pgpu.function(timeout="5s", max_replicas=3)
class Doubler:
    def __call__(self, x: int) -> int:
        return 2 * x

@pgpu.function(memory="4GiB", compute="25%")
class Sliced(Doubler):
    pass
"""
IMAGE = ("--runtime", "kubernetes", "--image", "registry/functions:1")


def kind(plural: str, group: str = "") -> Kind:
    return next(each for each in KINDS if (each.plural, each.group) == (plural, group))


DEPLOYED = kind("deployments", "apps")
SERVED = kind("services")
SOURCES = kind("configmaps")
TEMPLATES = kind("resourceclaimtemplates", "resource.k8s.io")
SCALERS = kind("horizontalpodautoscalers", "autoscaling")
KNATIVE = kind("services", "serving.knative.dev")
CLASSES = kind("deviceclasses", "resource.k8s.io")
SETS = kind("replicasets", "apps")
PODS = kind("pods")


def names(server: ApiServer, of: Kind) -> list[str]:
    return sorted(each["metadata"]["name"] for each in server.objects.all(of))


def stored(server: ApiServer) -> list[str]:
    """Return what was asked to be changed, dry runs not among it."""
    changing = {"create", "update", "patch", "delete"}
    return [each.kind.name for each in server.asked if each.verb in changing and not each.dry_run]


def pod_of(found: Manifest) -> Manifest:
    spec: Manifest = found["spec"]["template"]["spec"]
    return spec
