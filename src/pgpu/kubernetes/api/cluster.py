"""Typed calls to the API server: the driver's and the scorer's (`ClusterClient`, `ObjectWatch`), and the doctor's (`ClusterInspector`)."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx2 as httpx
import msgspec
from lightkube.core import decoders
from lightkube.core.exceptions import ApiError
from lightkube.core.generic_client import ALL_NS, BasicRequest, GenericSyncClient
from lightkube.core.resource import NamespacedResourceG, Resource
from lightkube.models.authorization_v1 import ResourceAttributes, SubjectAccessReviewSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.authorization_v1 import SubjectAccessReview
from lightkube.resources.core_v1 import Node as NodeObject
from lightkube.resources.core_v1 import Pod as PodObject
from lightkube.resources.events_v1 import Event
from lightkube.resources.resource_v1 import ResourceClaim as ClaimObject
from lightkube.resources.resource_v1 import ResourceSlice

from pgpu.errors import ClusterUnavailableError, ObjectNotFoundError
from pgpu.kubernetes.api.api_connection import (
    CONNECT_SECONDS,
    TRIES,
    connect,
    prepare_type,
    request_once,
    request_with_retries,
)
from pgpu.kubernetes.api.resources import Node, PodLifecycle, ResourceClaim, claim_of, node_of, pod_of
from pgpu.structs import Struct

_Resource = TypeVar("_Resource", bound=Resource)

WATCH_SECONDS = 240
"""The server ends a watch after so long; the client then begins another one."""

_SILENCE_SECONDS = WATCH_SECONDS + 30.0
# Objects in one answer of a list.
_PAGE = 500

EVERYWHERE = "*"
"""All namespaces."""


class DryRun(Enum):
    """Whether the API server only returns what it would store."""

    NO = "no"
    ALL = "All"

    @property
    def parameters(self) -> dict[str, str]:
        """Query parameters of the request."""
        return {} if self is DryRun.NO else {"dryRun": self.value}


class SliceList(Struct, frozen=True):
    """ResourceSlices at one resource version."""

    slices: tuple[ResourceSlice, ...]
    resource_version: str


class ObjectList(Struct, Generic[_Resource], frozen=True):
    """Objects of a kind at one resource version."""

    resource_version: str
    found: tuple[_Resource, ...]


class WatchEvent(Struct, Generic[_Resource], frozen=True):
    """One event of a watch."""

    kind: str
    """`ADDED`, `MODIFIED` or `DELETED`."""

    found: _Resource
    """The present object, or its last state."""


class ClusterClient:
    """A cluster behind its API server. Thread-safe.

    Every method raises subclasses of `ClusterError`: `ClusterUnavailableError` (after some attempts), `ClusterAccessError`,
    `ObjectNotFoundError`, `ObjectConflictError`, `ObjectRefusedError`.
    """

    def __init__(self, client: GenericSyncClient, pause: Callable[[float], bool] | None = None) -> None:
        """Use a client; `pause` waits between attempts, and returns True to end them."""
        self._client = client
        self._closing = threading.Event()
        self._pause = self._closing.wait if pause is None else pause

    @classmethod
    def at(cls, kubeconfig: Path | None = None) -> "ClusterClient":
        """Connect to the cluster of a kubeconfig, or to this pod's own.

        Raises:
            ClusterAccessError: There are no credentials.
        """
        return cls(connect(kubeconfig))

    def close(self) -> None:
        """Close the connections; threads that wait between two attempts wake up at once."""
        # First: a thread between two attempts must not begin another one on a closed client.
        self._closing.set()
        self._client.close()  # type: ignore[no-untyped-call]

    def claim(self, namespace: str, name: str, must_end: Callable[[], bool] = lambda: False) -> ResourceClaim:
        """Read one ResourceClaim; no attempt is repeated once the call `must_end`."""
        return claim_of(self._request("get", ClaimObject, must_end=must_end, name=name, namespace=namespace))

    def node(self, name: str) -> Node:
        """Read one Node."""
        return node_of(self._request("get", NodeObject, name=name))

    def pod(self, namespace: str, name: str, must_end: Callable[[], bool] = lambda: False) -> PodLifecycle:
        """Read one Pod, like `claim`."""
        return pod_of(self._request("get", PodObject, must_end=must_end, name=name, namespace=namespace))

    def slices(self, driver: str, node_name: str | None = None) -> SliceList:
        """List a driver's slices: of one node, or of all."""
        listed = self.list(ResourceSlice, _slice_selector(driver, node_name))
        return SliceList(tuple(listed.found), listed.resource_version)

    def watch_slices(self, driver: str, node_name: str, resource_version: str) -> "ObjectWatch[ResourceSlice]":
        """Watch a node's slices from a version on; no request is sent before the first change is read."""
        return self.watch(ResourceSlice, resource_version, _slice_selector(driver, node_name))

    def list(self, kind: type[_Resource], field_selector: str | None = None) -> ObjectList[_Resource]:
        """List objects of a kind, in all namespaces."""

        def read() -> ObjectList[_Resource]:
            found: list[_Resource] = []
            version = self._read_pages(kind, field_selector, found.append)
            return ObjectList(version, tuple(found))

        return request_with_retries(read, self._pause)

    def for_each(
        self, kind: type[_Resource], note: Callable[[_Resource], None], field_selector: str | None = None
    ) -> str:
        """Call `note` for each object of a kind, in all namespaces, and return the list's resource version.

        One attempt, page by page: 30,000 pods of 35 KB each are never in memory at once. `note` must not raise.
        """
        return request_once(lambda: self._read_pages(kind, field_selector, note))

    def watch(
        self, kind: type[_Resource], resource_version: str, field_selector: str | None = None
    ) -> "ObjectWatch[_Resource]":
        """Watch what such a list contains; no request is sent before the first change is read."""
        return ObjectWatch(self._client, kind, _parameters(field_selector), resource_version)

    def create_slice(self, wanted: ResourceSlice, dry_run: DryRun = DryRun.NO) -> ResourceSlice:
        """Create a slice, and return it as stored: the server drops fields whose feature gates are off."""
        return self._request("post", ResourceSlice, obj=wanted, name=None, params=dry_run.parameters)

    def update_slice(self, wanted: ResourceSlice) -> ResourceSlice:
        """Replace a slice; if its `resourceVersion` is not the stored one, `ObjectConflictError` is raised."""
        name = wanted.metadata.name if wanted.metadata else None
        return self._request("put", ResourceSlice, obj=wanted, name=name, params={})

    def delete_slice(self, name: str) -> None:
        """Delete a slice."""
        self._request("delete", ResourceSlice, name=name)

    def create_event(self, event: Event) -> Event:
        """Create an event; one attempt."""
        namespace = event.metadata.namespace if event.metadata else None
        return self._request("post", Event, obj=event, namespace=namespace, tries=1)

    def _request(
        self,
        method: str,
        kind: type[_Resource],
        *,
        tries: int = TRIES,
        must_end: Callable[[], bool] = lambda: False,
        **more: Any,
    ) -> _Resource:
        prepare_type(kind)

        def send() -> _Resource:
            answer: _Resource = self._client.request(method, kind, **more)
            return answer

        return request_with_retries(send, lambda seconds: must_end() or self._pause(seconds), tries)

    def _read_pages(self, kind: type[_Resource], field_selector: str | None, note: Callable[[_Resource], None]) -> str:
        prepare_type(kind)
        # Pages bound the memory of server and client; the list is of one version all the same.
        parameters = {**_parameters(field_selector), "limit": str(_PAGE)}
        request = self._client.prepare_request("list", kind, namespace=_all_namespaces(kind), params=parameters)
        version = None
        for version, page in self._client.list_chunks(request):  # noqa: B007 - the last one counts
            for found in page:
                note(found)
        return version or ""


def _parameters(field_selector: str | None) -> dict[str, str]:
    return {} if field_selector is None else {"fieldSelector": field_selector}


def _slice_selector(driver: str, node_name: str | None) -> str:
    on_node = "" if node_name is None else f",spec.nodeName={node_name}"
    return f"spec.driver={driver}{on_node}"


def _all_namespaces(kind: type[Resource]) -> str | None:
    return ALL_NS if issubclass(kind, NamespacedResourceG) else None


class _VersionedObject(msgspec.Struct):
    """The part that every object has, also the otherwise empty object of a bookmark."""

    metadata: ObjectMeta


class ObjectWatch(Generic[_Resource]):
    """One watch of a kind since a resource version, in all namespaces.

    It ends when the server ends it, after 270 s without any data, or when another thread closes it. It is not repeated here: the
    caller lists again or begins another watch at `resource_version`.
    """

    def __init__(
        self, client: GenericSyncClient, kind: type[_Resource], parameters: Mapping[str, str], resource_version: str
    ) -> None:
        """Prepare to watch what a list with the same parameters contains, from that list's version on."""
        prepare_type(kind)
        prepare_type(_VersionedObject)
        self._client = client
        self._kind = kind
        self._parameters = parameters
        self._version = resource_version
        self._lock = threading.Lock()
        self._response: httpx.Response | None = None
        self._is_closed = False
        self.is_open = False
        """Whether the connection is open now."""

        self.was_open = False
        """Whether it ever was."""

    @property
    def resource_version(self) -> str:
        """All changes up to this version were returned: another watch may begin here."""
        return self._version

    def changes(self) -> Iterator[WatchEvent[_Resource]]:
        """Wait for changes and yield them; ends where the watch does.

        Raises:
            HistoryGoneError: The version is too old: list again.
            ClusterError: The server does not answer, or does not allow it.
        """
        response = request_once(self._open)
        self.is_open = self.was_open = True
        try:
            lines = response.iter_lines()
            while (line := self._next_line(lines)) is not None:
                if (change := request_once(partial(self._decode, line))) is not None:
                    yield change
        finally:
            self.is_open = False
            response.close()

    def close(self) -> None:
        """End the watch, from any thread."""
        with self._lock:
            self._is_closed = True
            response = self._response
        if response is not None:
            _shut_down(response)

    def _open(self) -> httpx.Response:
        parameters = {
            **self._parameters,
            "resourceVersion": self._version,
            # Bookmarks advance the version while nothing changes, so that the next watch does not begin at an expired
            # one.
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        request = self._client.prepare_request(
            "list", self._kind, namespace=_all_namespaces(self._kind), watch=True, params=parameters
        )
        request.timeout = httpx.Timeout(_SILENCE_SECONDS, connect=CONNECT_SECONDS)
        response: httpx.Response = self._client.send(self._client.build_adapter_request(request), stream=True)
        # `close` may have been called while this thread connected.
        with self._lock:
            self._response = response
            is_closed = self._is_closed
        # A streamed body is not read yet, and the error message is in it.
        if response.is_error:
            response.read()
        self._client.raise_for_status(response)  # type: ignore[no-untyped-call]
        # `close` found no response to shut down: do it here, so that the reader ends at once.
        if is_closed:
            _shut_down(response)
        return response

    def _next_line(self, lines: Iterator[str]) -> str | None:
        try:
            return next(lines, None)
        except httpx.HTTPError as exc:
            # The connection was shut down on purpose.
            if self._is_closed:
                return None
            raise ClusterUnavailableError("Kubernetes' API server broke off a watch") from exc

    def _decode(self, line: str) -> WatchEvent[_Resource] | None:
        event = decoders.decode_watch_event(line.encode())
        # An error within a watch has status 200 of HTTP: its code is in the event.
        if event.type == "ERROR":
            raise ApiError(status=decoders.decode_status(bytes(event.object)))
        metadata = msgspec.json.decode(event.object, type=_VersionedObject).metadata
        # Stored before the change is returned: a change that a caller fails on is not delivered twice.
        self._version = metadata.resourceVersion or self._version
        if event.type == "BOOKMARK":
            return None
        return WatchEvent(event.type, decoders.decode_object(bytes(event.object), self._kind))


def _shut_down(response: httpx.Response) -> None:
    # Closing a socket does not wake a thread that reads from it; shutting it down does.
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if isinstance(connection, socket.socket):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class ClusterInspector:
    """Reads a cluster for the doctor: any kind of objects, API versions, dry runs and access reviews.

    Nothing is changed and nothing is retried, since the doctor reports the present state. Methods raise subclasses of
    `ClusterError`.
    """

    def __init__(self, client: GenericSyncClient) -> None:
        """Use a client."""
        self._client = client

    def close(self) -> None:
        """Close the connections."""
        self._client.close()  # type: ignore[no-untyped-call]

    def version(self) -> str:
        """Return the API server's version, such as `v1.36.2`."""
        return str(self._get("version").get("gitVersion", ""))

    def kinds_served(self, group_version: str) -> frozenset[str]:
        """Return the kinds of one group and version, such as `resource.k8s.io/v1`; none if it is not served."""
        try:
            found = self._get(f"apis/{group_version}")
        except ObjectNotFoundError:
            return frozenset()
        return frozenset(str(each.get("kind", "")) for each in found.get("resources") or ())

    def all(
        self, kind: type[_Resource], namespace: str | None = EVERYWHERE, parameters: Mapping[str, str] | None = None
    ) -> tuple[_Resource, ...]:
        """List objects; `namespace` is None for cluster-scoped kinds."""
        request = self._client.prepare_request("list", kind, namespace=namespace, params=dict(parameters or {}))
        return request_once(lambda: tuple(one for _, chunk in self._client.list_chunks(request) for one in chunk))

    def one(self, kind: type[_Resource], name: str, namespace: str | None = None) -> _Resource:
        """Read one object."""
        found: _Resource = request_once(lambda: self._client.request("get", kind, name=name, namespace=namespace))
        return found

    def dry_run(self, wanted: _Resource) -> _Resource:
        """Return what would be stored of a new cluster-scoped object."""
        answer: _Resource = request_once(
            lambda: self._client.request("post", type(wanted), obj=wanted, params=DryRun.ALL.parameters)
        )
        return answer

    def may(self, user: str, verb: str, group: str, resource: str) -> bool:
        """Whether a user may do something in all namespaces."""
        attributes = ResourceAttributes(group=group, resource=resource, verb=verb)
        review = SubjectAccessReview(spec=SubjectAccessReviewSpec(user=user, resourceAttributes=attributes))
        answer = request_once(lambda: self._client.request("post", SubjectAccessReview, obj=review))
        return bool(answer.status and answer.status.allowed)

    def _get(self, path: str) -> dict[str, Any]:
        def send() -> dict[str, Any]:
            response = self._client.send(self._client.build_adapter_request(BasicRequest("GET", path)))
            self._client.raise_for_status(response)  # type: ignore[no-untyped-call]
            found: dict[str, Any] = msgspec.json.decode(response.content)
            return found

        return request_once(send)
