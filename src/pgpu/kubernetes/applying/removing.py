"""The end of a function on a cluster: everything that pgpu made for it, and nothing else of its name."""

from pgpu.errors import FunctionNotFoundError
from pgpu.kubernetes.api import Kind, Objects
from pgpu.kubernetes.applying.applying import Done
from pgpu.kubernetes.applying.explaining import explained
from pgpu.kubernetes.applying.kinds import MADE, is_own, named
from pgpu.kubernetes.deploying.naming import check_function_name, selector


def undeploy(objects: Objects, name: str, namespace: str) -> tuple[Done, ...]:
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


def _removed(objects: Objects, kind: Kind, name: str, namespace: str) -> list[Done]:
    with explained(kind, name, namespace):
        names = [
            str(each["metadata"]["name"]) for each in objects.there(kind, selector(name), namespace) if is_own(each)
        ]
        return [Done(named(kind), each, "removed") for each in names if objects.remove(kind, each, namespace)]
