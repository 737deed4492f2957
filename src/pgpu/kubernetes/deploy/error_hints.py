"""What the API server's refusals mean for somebody who deploys a function, and what they can do."""

from collections.abc import Iterator
from contextlib import contextmanager

from pgpu.errors import CapacityError, ClusterAccessError, ObjectConflictError, ObjectNotFoundError
from pgpu.kubernetes.api import ObjectKind
from pgpu.kubernetes.deploy.object_kinds import named

_QUOTA = "exceeded quota"


@contextmanager
def with_hints(kind: ObjectKind, name: str, namespace: str) -> Iterator[None]:
    """Say which object it was, and what to do about it.

    Raises:
        CapacityError: The namespace's quota has no room.
        ClusterError: One of its kinds.
    """
    what = f"{named(kind)} {name} in {namespace}"
    try:
        yield
    except ObjectConflictError as exc:
        raise ObjectConflictError(
            f"{what}: {exc}",
            hint="let that manager deploy it (--dry-run prints the manifests), or take those fields over: --force",
        ) from exc
    except ObjectNotFoundError as exc:
        raise ObjectNotFoundError(f"{what}: {exc}", hint=f"kubectl create namespace {namespace}") from exc
    except ClusterAccessError as exc:
        if _QUOTA in str(exc):
            raise CapacityError(f"{what}: {exc}", hint=f"kubectl describe quota -n {namespace}") from exc
        plural = kind.plural if "/" not in kind.api_version else f"{kind.plural}.{kind.api_version.partition('/')[0]}"
        raise ClusterAccessError(f"{what}: {exc}", hint=f"kubectl auth can-i patch {plural} -n {namespace}") from exc
