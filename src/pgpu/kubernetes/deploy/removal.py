"""The end of a function on a cluster: everything that pgpu made for it, and nothing else of its name."""

from pgpu.errors import FunctionNotFoundError
from pgpu.kubernetes.api import DynamicClient, ObjectKind
from pgpu.kubernetes.deploy.apply import ObjectChange
from pgpu.kubernetes.deploy.error_hints import with_hints
from pgpu.kubernetes.deploy.object_kinds import MADE, is_own, named
from pgpu.kubernetes.deploy.object_names import check_function_name, selector


def undeploy(objects: DynamicClient, name: str, namespace: str) -> tuple[ObjectChange, ...]:
    """Remove a function; its replicas finish what they have.

    Raises:
        FunctionNotFoundError: There is none of this name.
        ClusterError: The server refuses; what was removed before that stays so, and the rest can be removed later.
    """
    check_function_name(name)
    done = tuple(each for kind in MADE for each in _removed(objects, kind, name, namespace))
    if not done:
        raise FunctionNotFoundError(
            f"{namespace} has no function {name}", hint="`pgpu functions --runtime kubernetes` lists them"
        )
    return done


def _removed(objects: DynamicClient, kind: ObjectKind, name: str, namespace: str) -> list[ObjectChange]:
    with with_hints(kind, name, namespace):
        names = [
            str(each["metadata"]["name"])
            for each in objects.all_if_served(kind, selector(name), namespace)
            if is_own(each)
        ]
        return [ObjectChange(named(kind), each, "removed") for each in names if objects.remove(kind, each, namespace)]
