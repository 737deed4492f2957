"""The administration of a server, over HTTP: the server asks the kernel, or a token, whether the caller may."""

import os
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import quote as quoted

from pgpu.client.connection import HttpTransport
from pgpu.services import wire
from pgpu.services.administration import NewToken, TokenReport, UserQuota

T = TypeVar("T")

_ROOT = "/v1/admin"


class HttpAdministration:
    """The `Administration` of one server."""

    def __init__(self, server: HttpTransport) -> None:
        self._server = server

    def quotas(self) -> Sequence[UserQuota]:
        """List quotas; see `Administration.quotas`."""
        return self._told(tuple[UserQuota, ...], "GET", "/quotas")

    def set_quota(self, quota: UserQuota) -> None:
        """Set a quota; see `Administration.set_quota`."""
        self._server.ask("POST", f"{_ROOT}/quotas", quota)

    def remove_quota(self, uid: int) -> None:
        """Remove a quota; see `Administration.remove_quota`."""
        self._server.ask("DELETE", f"{_ROOT}/quotas/{uid}")

    def closed_gpus(self) -> Sequence[str]:
        """List closed GPUs; see `Administration.closed_gpus`."""
        return self._told(tuple[str, ...], "GET", "/closed-gpus")

    def close_gpu(self, uuid: str) -> None:
        """Close a GPU; see `Administration.close_gpu`."""
        self._server.ask("PUT", f"{_ROOT}/closed-gpus/{quoted(os.fsencode(uuid), safe='')}")

    def open_gpu(self, uuid: str) -> None:
        """Open a GPU; see `Administration.open_gpu`."""
        self._server.ask("DELETE", f"{_ROOT}/closed-gpus/{quoted(os.fsencode(uuid), safe='')}", is_repeatable=False)

    def tokens(self) -> Sequence[TokenReport]:
        """List tokens; see `Administration.tokens`."""
        return self._told(tuple[TokenReport, ...], "GET", "/tokens")

    def create_token(self, uid: int) -> NewToken:
        """Make a token; see `Administration.create_token`."""
        return self._told(NewToken, "POST", f"/tokens?uid={uid}", is_repeatable=False)

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token; see `Administration.revoke_token`."""
        self._server.ask("DELETE", f"{_ROOT}/tokens/{quoted(os.fsencode(token_id), safe='')}", is_repeatable=False)

    def _told(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        return wire.decode(kind, self._server.ask(method, f"{_ROOT}{path}", **options))
