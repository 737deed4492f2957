"""Objects of whatever kind, as JSON, for whoever writes whole manifests: read, listed, applied and removed by name.

They are stored by server-side apply: the server merges, knows whose each field is, and refuses to give one to another
manager unless it is forced. Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from lightkube.core.generic_client import BasicRequest, GenericSyncClient

from pgpu.errors import ObjectNotFoundError
from pgpu.kubernetes.api.api_connection import request_with_retries
from pgpu.kubernetes.api.cluster import DryRun
from pgpu.kubernetes.api.credentials import connect
from pgpu.kubernetes.api.kubeconfig import default_kubeconfig

Object = dict[str, Any]
"""An object of Kubernetes, as JSON."""

_APPLY = "application/apply-patch+yaml"
"""JSON is YAML, too."""

_PAGE = 500


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """One kind of objects, as addresses name it."""

    api_version: str
    """`v1`, or `GROUP/VERSION`."""

    name: str
    """As manifests have it."""

    plural: str
    is_namespaced: bool = True

    @property
    def base(self) -> str:
        """The beginning of its objects' addresses."""
        return f"{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"


class DynamicClient:
    """A cluster's objects. Every method raises a kind of `ClusterError`, as those of `Cluster` do."""

    def __init__(self, client: GenericSyncClient, pause: Callable[[float], bool] | None = None) -> None:
        """Ask through a client; `pause` as of `Cluster`."""
        self._client = client
        self._ending = threading.Event()
        self._pause = self._ending.wait if pause is None else pause

    @classmethod
    def of_a_person(cls, kubeconfig: Path | None = None, context: str | None = None) -> "DynamicClient":
        """Find the cluster as kubectl does: a file that is named, that of `KUBECONFIG`, or `~/.kube/config`.

        Args:
            kubeconfig: The file that is named.
            context: Which of its contexts; None: its current one.

        Raises:
            ClusterAccessError: There is none, or it leads nowhere.
        """
        return cls(connect(default_kubeconfig(kubeconfig), context=context))

    @property
    def namespace(self) -> str:
        """That of the context, or `default`."""
        return str(self._client.namespace)

    def close(self) -> None:
        """Let go of the connections."""
        self._ending.set()
        self._client.close()  # type: ignore[no-untyped-call]

    def serves(self, kind: ObjectKind) -> bool:
        """Whether the cluster has this kind of objects."""
        try:
            found = self._ask("GET", kind.base)
        except ObjectNotFoundError:
            return False
        return any(each.get("name") == kind.plural for each in found.get("resources") or ())

    def find(self, kind: ObjectKind, name: str, namespace: str | None = None) -> Object | None:
        """Read one; None where there is none."""
        try:
            return self._ask("GET", _address(kind, namespace, name))
        except ObjectNotFoundError:
            return None

    def all(self, kind: ObjectKind, selector: str, namespace: str | None = None) -> Sequence[Object]:
        """List those whose labels fit; in all namespaces where none is named."""
        found: list[Object] = []
        more: dict[str, str] = {}
        while True:
            asked = {"labelSelector": selector, "limit": str(_PAGE), **more}
            page = self._ask("GET", _address(kind, namespace), asked)
            found += [{"apiVersion": kind.api_version, "kind": kind.name, **each} for each in page.get("items") or ()]
            if not (going_on := (page.get("metadata") or {}).get("continue")):
                return found
            more = {"continue": going_on}

    def there(self, kind: ObjectKind, selector: str, namespace: str | None = None) -> Sequence[Object]:
        """List like `all`; nothing where the cluster has no such kind."""
        try:
            return self.all(kind, selector, namespace)
        except ObjectNotFoundError:
            return ()

    def apply(
        self, kind: ObjectKind, wanted: Object, namespace: str | None, manager: str, *, is_forced: bool = False,
        dry_run: DryRun = DryRun.NO,
    ) -> Object:  # fmt: skip
        """Let an object be as a manifest says, making it where there is none; return it as it is stored.

        Args:
            kind: Of the object.
            wanted: All that this manager says of it: a field that it said before and does not say now is removed.
            namespace: Where it lies; None for what lies in none.
            manager: Who says it.
            is_forced: Whether fields of other managers are taken over, instead of `ObjectConflictError`.
            dry_run: Whether nothing is stored.
        """
        asked = {"fieldManager": manager, "force": str(is_forced).lower(), **dry_run.parameters}
        return self._ask("PATCH", _address(kind, namespace, wanted["metadata"]["name"]), asked, wanted)

    def remove(self, kind: ObjectKind, name: str, namespace: str | None = None) -> bool:
        """Remove one, and what it owns after it; whether there was one."""
        try:
            self._ask("DELETE", _address(kind, namespace, name), {"propagationPolicy": "Background"})
        except ObjectNotFoundError:
            return False
        return True

    def _ask(
        self, method: str, address: str, parameters: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        def question() -> Object:
            headers = None if body is None else {"Content-Type": _APPLY}
            asked = BasicRequest(method, address, params=dict(parameters or {}), data=body, headers=headers)
            response = self._client.send(self._client.build_adapter_request(asked))
            self._client.raise_for_status(response)  # type: ignore[no-untyped-call]
            return msgspec.json.decode(response.content, type=Object)

        return request_with_retries(question, self._pause)


def _address(kind: ObjectKind, namespace: str | None, name: str | None = None) -> str:
    place = f"/namespaces/{namespace}" if kind.is_namespaced and namespace is not None else ""
    return f"{kind.base}{place}/{kind.plural}" + ("" if name is None else f"/{name}")
