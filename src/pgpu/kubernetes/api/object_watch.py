"""One watch of objects of a kind: the API server tells of each change on a connection that stays open for minutes.

A watch ends when the server ends it, when nothing at all was heard for longer than it may be silent, or when it is closed
from another thread. It refuses to go on by itself: who watches looks at the whole again, and watches anew.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import httpx2 as httpx
import msgspec
from lightkube.core import decoders
from lightkube.core.exceptions import ApiError
from lightkube.core.generic_client import ALL_NS, GenericSyncClient
from lightkube.core.resource import NamespacedResourceG, Resource
from lightkube.models.meta_v1 import ObjectMeta

from pgpu.errors import ClusterUnavailableError
from pgpu.kubernetes.api.api_connection import request_once
from pgpu.kubernetes.api.type_preparation import prepare_type

_Found = TypeVar("_Found", bound=Resource)

WATCH_SECONDS = 240
"""How long the server may keep one watch open; it then ends it, and another is begun."""

_SILENCE_SECONDS = WATCH_SECONDS + 30.0
_CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Change(Generic[_Found]):
    """One change that the API server told of."""

    kind: str
    """`ADDED`, `MODIFIED` or `DELETED`."""

    found: _Found
    """As it is now, or as it last was."""


class _Versioned(msgspec.Struct):
    """What every object says, a bookmark's empty one, too."""

    metadata: ObjectMeta


def all_namespaces(kind: type[Resource]) -> str | None:
    """Name all namespaces, for a kind whose objects lie in some."""
    return ALL_NS if issubclass(kind, NamespacedResourceG) else None


class Watch(Generic[_Found]):
    """The changes of one kind of objects since a version, in all namespaces, until the watch ends."""

    def __init__(
        self, client: GenericSyncClient, kind: type[_Found], parameters: Mapping[str, str], resource_version: str
    ) -> None:
        """Prepare to watch what a list with the same parameters has; the version is that list's."""
        prepare_type(kind)
        prepare_type(_Versioned)
        self._client = client
        self._kind = kind
        self._parameters = parameters
        self._version = resource_version
        self._lock = threading.Lock()
        self._response: httpx.Response | None = None
        self._is_closed = False
        self.is_open = False
        """Whether the server tells of changes now."""

        self.was_open = False
        """Whether it ever did."""

    @property
    def resource_version(self) -> str:
        """Up to which version all is told: another watch may begin there."""
        return self._version

    def changes(self) -> Iterator[Change[_Found]]:
        """Wait for changes, one after the other; ends where the watch does.

        Raises:
            HistoryGoneError: The version is too old: list again.
            ClusterError: The server does not answer, or does not allow it.
        """
        response = request_once(self._open)
        self.is_open = self.was_open = True
        try:
            yield from self._told(response)
        finally:
            self.is_open = False
            response.close()

    def close(self) -> None:
        """End the watch, from whatever thread."""
        with self._lock:
            self._is_closed = True
            response = self._response
        if response is not None:
            _hang_up(response)

    def _open(self) -> httpx.Response:
        response: httpx.Response = self._client.send(self._question(), stream=True)
        with self._lock:
            self._response = response
            is_closed = self._is_closed
        if response.is_error:
            response.read()
        self._client.raise_for_status(response)  # type: ignore[no-untyped-call]
        if is_closed:
            _hang_up(response)
        return response

    def _question(self) -> httpx.Request:
        parameters = {
            **self._parameters,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        asked_for = self._client.prepare_request(
            "list", self._kind, namespace=all_namespaces(self._kind), watch=True, params=parameters
        )
        asked_for.timeout = httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS)
        return self._client.build_adapter_request(asked_for)

    def _told(self, response: httpx.Response) -> Iterator[Change[_Found]]:
        lines = response.iter_lines()
        while (line := self._next(lines)) is not None:
            if (change := request_once(partial(self._read, line))) is not None:
                yield change

    def _next(self, lines: Iterator[str]) -> str | None:
        try:
            return next(lines, None)
        except httpx.HTTPError as exc:
            if self._is_closed:
                return None
            raise ClusterUnavailableError("Kubernetes' API server broke off a watch") from exc

    def _read(self, line: str) -> Change[_Found] | None:
        heard = decoders.decode_watch_event(line.encode())
        if heard.type == "ERROR":
            raise ApiError(status=decoders.decode_status(bytes(heard.object)))
        metadata = msgspec.json.decode(heard.object, type=_Versioned).metadata
        self._version = metadata.resourceVersion or self._version
        if heard.type == "BOOKMARK":
            return None
        return Change(heard.type, decoders.decode_object(bytes(heard.object), self._kind))


def _hang_up(response: httpx.Response) -> None:
    """Wake who reads: closing a socket does not, shutting it down does."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if isinstance(connection, socket.socket):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
