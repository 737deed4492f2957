"""What an examination asks of a cluster: any kind of objects, what is served, what would be stored, and who may do what.

It changes nothing: whatever it creates is a dry run. It refuses to ask twice: who examines wants to know how it is now.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from lightkube.core.generic_client import BasicRequest, GenericSyncClient
from lightkube.core.resource import Resource
from lightkube.models.authorization_v1 import ResourceAttributes, SubjectAccessReviewSpec
from lightkube.resources.authorization_v1 import SubjectAccessReview

from pgpu.errors import ObjectNotFoundError
from pgpu.kubernetes.api.api_connection import request_once

_Resource = TypeVar("_Resource", bound=Resource)

EVERYWHERE = "*"
"""All namespaces."""

_DRY = {"dryRun": "All"}


class ClusterInspector:
    """A cluster, looked at. Every method raises kinds of `ClusterError`."""

    def __init__(self, client: GenericSyncClient) -> None:
        """Ask through a client."""
        self._client = client

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()  # type: ignore[no-untyped-call]

    def version(self) -> str:
        """Return the API server's version, such as `v1.36.2`."""
        return str(self._raw("version").get("gitVersion", ""))

    def kinds_served(self, group_version: str) -> frozenset[str]:
        """Return the kinds of one group and version, such as `resource.k8s.io/v1`; none where it is not served."""
        try:
            found = self._raw(f"apis/{group_version}")
        except ObjectNotFoundError:
            return frozenset()
        return frozenset(str(each.get("kind", "")) for each in found.get("resources") or ())

    def all(
        self, kind: type[_Resource], namespace: str | None = EVERYWHERE, parameters: Mapping[str, str] | None = None
    ) -> tuple[_Resource, ...]:
        """List objects; `namespace` is None for those that lie in none."""
        wanted = self._client.prepare_request("list", kind, namespace=namespace, params=dict(parameters or {}))
        return request_once(lambda: tuple(one for _, chunk in self._client.list_chunks(wanted) for one in chunk))

    def one(self, kind: type[_Resource], name: str, namespace: str | None = None) -> _Resource:
        """Read one object."""
        found: _Resource = request_once(lambda: self._client.request("get", kind, name=name, namespace=namespace))
        return found

    def tried(self, wanted: _Resource) -> _Resource:
        """Return what would be stored of a new object that lies in no namespace."""
        answer: _Resource = request_once(lambda: self._client.request("post", type(wanted), obj=wanted, params=_DRY))
        return answer

    def may(self, user: str, verb: str, group: str, resource: str) -> bool:
        """Whether a user may do something in all namespaces."""
        attributes = ResourceAttributes(group=group, resource=resource, verb=verb)
        review = SubjectAccessReview(spec=SubjectAccessReviewSpec(user=user, resourceAttributes=attributes))
        answer = request_once(lambda: self._client.request("post", SubjectAccessReview, obj=review))
        return bool(answer.status and answer.status.allowed)

    def _raw(self, path: str) -> dict[str, Any]:
        def question() -> dict[str, Any]:
            response = self._client.send(self._client.build_adapter_request(BasicRequest("GET", path)))
            self._client.raise_for_status(response)  # type: ignore[no-untyped-call]
            found: dict[str, Any] = msgspec.json.decode(response.content)
            return found

        return request_once(question)
