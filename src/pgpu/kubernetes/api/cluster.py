"""What pgpu asks of a cluster, one method for each question. Safe to use from several threads."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar

from lightkube.core.generic_client import GenericSyncClient
from lightkube.core.resource import Resource
from lightkube.resources.core_v1 import Node as NodeObject
from lightkube.resources.events_v1 import Event
from lightkube.resources.resource_v1 import ResourceClaim as ClaimObject
from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.kubernetes.api.api_connection import TRIES, request_once, request_with_retries
from pgpu.kubernetes.api.credentials import connect
from pgpu.kubernetes.api.object_watch import Watch, all_namespaces
from pgpu.kubernetes.api.resource_decoding import claim_of, node_of
from pgpu.kubernetes.api.resources import Node, ResourceClaim
from pgpu.kubernetes.api.type_preparation import prepare_type

_Resource = TypeVar("_Resource", bound=Resource)

_PAGE = 500
"""Objects in one answer of a list."""


class DryRun(Enum):
    """Whether the API server shall only say what it would store."""

    NO = "no"
    ALL = "All"

    @property
    def parameters(self) -> dict[str, str]:
        """Of the request's address."""
        return {} if self is DryRun.NO else {"dryRun": self.value}


@dataclass(frozen=True, slots=True)
class SliceList:
    """Slices as they were at one version of the cluster's store."""

    slices: tuple[ResourceSlice, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class ObjectList(Generic[_Resource]):
    """Objects of a kind as they were at one version of the cluster's store."""

    resource_version: str
    found: tuple[_Resource, ...]


class Cluster:
    """A cluster behind its API server.

    Every method raises a kind of `ClusterError`: `ClusterUnavailableError` (after some tries), `ClusterAccessError`,
    `ObjectNotFoundError`, `ObjectConflictError`, `ObjectRefusedError`.
    """

    def __init__(self, client: GenericSyncClient, pause: Callable[[float], bool] | None = None) -> None:
        """Ask through a client; `pause` waits between tries, and is true where the waiting was in vain."""
        self._client = client
        self._ending = threading.Event()
        self._pause = self._ending.wait if pause is None else pause

    @classmethod
    def at(cls, kubeconfig: Path | None = None) -> "Cluster":
        """Find the cluster that a kubeconfig names, or this pod's own.

        Raises:
            ClusterAccessError: Nothing says where it is, or as whom to ask.
        """
        return cls(connect(kubeconfig))

    def close(self) -> None:
        """Let go of the connections; who waits between two tries is told so at once."""
        self._ending.set()
        self._client.close()  # type: ignore[no-untyped-call]

    def claim(self, namespace: str, name: str) -> ResourceClaim:
        """Read one ResourceClaim."""
        return claim_of(self._request("get", ClaimObject, name=name, namespace=namespace))

    def node(self, name: str) -> Node:
        """Read one Node."""
        return node_of(self._request("get", NodeObject, name=name))

    def slices(self, driver: str, node_name: str | None = None) -> SliceList:
        """List a driver's slices: of one node, or of all."""
        listed = self.list(ResourceSlice, _selector(driver, node_name))
        return SliceList(tuple(listed.found), listed.resource_version)

    def watch_slices(self, driver: str, node_name: str, resource_version: str) -> Watch[ResourceSlice]:
        """Follow the changes of a node's slices from a version on; nothing is asked before the first is wanted."""
        return self.watch(ResourceSlice, resource_version, _selector(driver, node_name))

    def list(self, kind: type[_Resource], field_selector: str | None = None) -> ObjectList[_Resource]:
        """List objects of a kind, in all namespaces."""

        def question() -> ObjectList[_Resource]:
            found: list[_Resource] = []
            version = self._pages(kind, field_selector, found.append)
            return ObjectList(version, tuple(found))

        return request_with_retries(question, self._pause)

    def show(self, kind: type[_Resource], note: Callable[[_Resource], None], field_selector: str | None = None) -> str:
        """Show all objects of a kind, in all namespaces, and return the version of the list.

        Asked once, and page by page: of 30,000 pods no more than a page is held, 35 KB each. `note` must not raise.
        """
        return request_once(lambda: self._pages(kind, field_selector, note))

    def watch(
        self, kind: type[_Resource], resource_version: str, field_selector: str | None = None
    ) -> Watch[_Resource]:
        """Follow the changes of what such a list has; nothing is asked before the first is wanted."""
        return Watch(self._client, kind, _parameters(field_selector), resource_version)

    def create_slice(self, wanted: ResourceSlice, dry_run: DryRun = DryRun.NO) -> ResourceSlice:
        """Store a new slice, and return it as it was stored: the server leaves out what its gates do not allow."""
        return self._slice("post", wanted, dry_run)

    def update_slice(self, wanted: ResourceSlice) -> ResourceSlice:
        """Replace a slice; its `resourceVersion` must be the one that was read, or `ObjectConflictError` is raised."""
        return self._slice("put", wanted)

    def delete_slice(self, name: str) -> None:
        """Remove a slice."""
        self._request("delete", ResourceSlice, name=name)

    def create_event(self, event: Event) -> Event:
        """Tell the cluster of something; asked once, since an event is no reason to wait."""
        namespace = event.metadata.namespace if event.metadata else None
        return self._request("post", Event, obj=event, namespace=namespace, tries=1)

    def _slice(self, method: str, wanted: ResourceSlice, dry_run: DryRun = DryRun.NO) -> ResourceSlice:
        name = wanted.metadata.name if wanted.metadata and method == "put" else None
        return self._request(method, ResourceSlice, obj=wanted, name=name, params=dry_run.parameters)

    def _request(self, method: str, kind: type[_Resource], *, tries: int = TRIES, **more: Any) -> _Resource:
        prepare_type(kind)

        def question() -> _Resource:
            answer: _Resource = self._client.request(method, kind, **more)
            return answer

        return request_with_retries(question, self._pause, tries)

    def _pages(self, kind: type[_Resource], field_selector: str | None, note: Callable[[_Resource], None]) -> str:
        prepare_type(kind)
        paged = {**_parameters(field_selector), "limit": str(_PAGE)}
        asked_for = self._client.prepare_request("list", kind, namespace=all_namespaces(kind), params=paged)
        version = None
        for version, page in self._client.list_chunks(asked_for):  # noqa: B007 - the last one counts
            for found in page:
                note(found)
        return version or ""


def _parameters(field_selector: str | None) -> dict[str, str]:
    return {} if field_selector is None else {"fieldSelector": field_selector}


def _selector(driver: str, node_name: str | None) -> str:
    on_node = "" if node_name is None else f",spec.nodeName={node_name}"
    return f"spec.driver={driver}{on_node}"
