"""Objects of any kind as JSON: read, listed, applied and deleted by name, for manifests of deployed functions.

Objects are stored by server-side apply: the server merges, tracks which manager owns each field, and refuses to change a field of
another manager unless it is forced. Source: https://kubernetes.io/docs/reference/using-api/server-side-apply/
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from lightkube.core.generic_client import BasicRequest, GenericSyncClient

from pgpu.errors import ObjectNotFoundError
from pgpu.kubernetes.api.api_connection import connect, default_kubeconfig, request_with_retries
from pgpu.kubernetes.api.cluster import DryRun
from pgpu.structs import Struct

Object = dict[str, Any]
"""A Kubernetes object as JSON."""

# JSON is valid YAML.
_APPLY_TYPE = "application/apply-patch+yaml"

_PAGE = 500


class ObjectKind(Struct, frozen=True):
    """One kind of objects and its REST path."""

    api_version: str
    """`v1`, or `GROUP/VERSION`."""

    name: str
    """`kind` of its manifests."""

    plural: str
    is_namespaced: bool = True

    @property
    def base(self) -> str:
        """Path of its API version."""
        return f"{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """Return the path of one object, or of all; without a namespace, of all namespaces."""
        place = f"/namespaces/{namespace}" if self.is_namespaced and namespace is not None else ""
        return f"{self.base}{place}/{self.plural}" + ("" if name is None else f"/{name}")


class DynamicClient:
    """A cluster's objects. Methods raise subclasses of `ClusterError`, as those of `Cluster` do."""

    def __init__(self, client: GenericSyncClient, pause: Callable[[float], bool] | None = None) -> None:
        """Use a client; `pause` as of `Cluster`."""
        self._client = client
        self._closing = threading.Event()
        self._pause = self._closing.wait if pause is None else pause

    @classmethod
    def from_kubeconfig(cls, kubeconfig: Path | None = None, context: str | None = None) -> "DynamicClient":
        """Connect as kubectl does: with the named file, that of `KUBECONFIG`, or `~/.kube/config`.

        Args:
            kubeconfig: The named file.
            context: Context of the file; None: its current one.

        Raises:
            ClusterAccessError: There is no such file, or it is invalid.
        """
        return cls(connect(default_kubeconfig(kubeconfig), context=context))

    @property
    def namespace(self) -> str:
        """Namespace of the context, or `default`."""
        return str(self._client.namespace)

    def close(self) -> None:
        """Close the connections."""
        self._closing.set()
        self._client.close()  # type: ignore[no-untyped-call]

    def serves(self, kind: ObjectKind) -> bool:
        """Whether the cluster has this kind of objects."""
        try:
            found = self._request("GET", kind.base)
        except ObjectNotFoundError:
            return False
        return any(each.get("name") == kind.plural for each in found.get("resources") or ())

    def find(self, kind: ObjectKind, name: str, namespace: str | None = None) -> Object | None:
        """Read one object; None: there is none."""
        try:
            return self._request("GET", kind.path(namespace, name))
        except ObjectNotFoundError:
            return None

    def all(self, kind: ObjectKind, selector: str, namespace: str | None = None) -> Sequence[Object]:
        """List the objects that match a label selector; in all namespaces if none is given."""
        found: list[Object] = []
        parameters = {"labelSelector": selector, "limit": str(_PAGE)}
        while True:
            page = self._request("GET", kind.path(namespace), parameters)
            # Items of a list have neither field.
            found += [{"apiVersion": kind.api_version, "kind": kind.name, **each} for each in page.get("items") or ()]
            if not (token := (page.get("metadata") or {}).get("continue")):
                return found
            parameters["continue"] = token

    def all_if_served(self, kind: ObjectKind, selector: str, namespace: str | None = None) -> Sequence[Object]:
        """List like `all`; empty if the cluster has no such kind."""
        try:
            return self.all(kind, selector, namespace)
        # 404 for a list means that the group or kind is not served, such as Knative where it is not installed.
        except ObjectNotFoundError:
            return ()

    def apply(
        self, kind: ObjectKind, wanted: Object, namespace: str | None, manager: str, *, is_forced: bool = False,
        dry_run: DryRun = DryRun.NO,
    ) -> Object:  # fmt: skip
        """Create or change an object as a manifest says, and return it as stored.

        Args:
            kind: Of the object.
            wanted: All fields of this manager: a field that it set before and that is missing now is removed.
            namespace: Of the object; None: it is cluster-scoped.
            manager: Field manager.
            is_forced: Whether fields of other managers are taken over, instead of `ObjectConflictError`.
            dry_run: Whether nothing is stored.
        """
        parameters = {"fieldManager": manager, "force": str(is_forced).lower(), **dry_run.parameters}
        return self._request("PATCH", kind.path(namespace, wanted["metadata"]["name"]), parameters, wanted)

    def remove(self, kind: ObjectKind, name: str, namespace: str | None = None) -> bool:
        """Delete one object, and what it owns in the background; returns whether it existed."""
        try:
            self._request("DELETE", kind.path(namespace, name), {"propagationPolicy": "Background"})
        except ObjectNotFoundError:
            return False
        return True

    def _request(
        self, method: str, path: str, parameters: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        def send() -> Object:
            headers = None if body is None else {"Content-Type": _APPLY_TYPE}
            request = BasicRequest(method, path, params=dict(parameters or {}), data=body, headers=headers)
            response = self._client.send(self._client.build_adapter_request(request))
            self._client.raise_for_status(response)  # type: ignore[no-untyped-call]
            return msgspec.json.decode(response.content, type=Object)

        return request_with_retries(send, self._pause)
