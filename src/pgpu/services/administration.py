"""What the administrator sets for everybody: quotas, GPUs that take no jobs, tokens. One protocol, and the engine's side.

Whoever opens the ledger is its administrator already; over HTTP the server asks who calls. A token is shown once, when
it is made: the ledger keeps a digest of its secret part. This module refuses to know users by name.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pgpu.engine.engine import Engine
from pgpu.errors import RequestError
from pgpu.ledger import ALL_GPUS, Tokens
from pgpu.scheduling import Quota

_PREFIX = "pgpu"
_LARGEST_UID = (1 << 32) - 2
_LARGEST_WEIGHT = 1e6


@dataclass(frozen=True, slots=True)
class UserQuota:
    """What one user may hold at a time; None for as much as there is."""

    uid: int
    memory_bytes: int | None = None
    jobs: int | None = None
    weight: float = 1.0
    """Of the user's share where several wait; above 0."""


@dataclass(frozen=True, slots=True)
class TokenReport:
    """A token without its secret part."""

    id: str
    uid: int
    created_at_seconds: float


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token, this once in full."""

    id: str
    uid: int
    text: str
    """What its holder shows: `PGPU_TOKEN`."""


class Administration(Protocol):
    """What `pgpu admin` asks for."""

    def quotas(self) -> Sequence[UserQuota]:
        """Return the quotas that are set, by UID."""
        ...

    def set_quota(self, quota: UserQuota) -> None:
        """Set what a user may hold from now on; what runs goes on.

        Raises:
            RequestError: It is no quota.
        """
        ...

    def remove_quota(self, uid: int) -> None:
        """Let a user hold as much as there is."""
        ...

    def closed_gpus(self) -> Sequence[str]:
        """Return the UUIDs of GPUs that take no jobs; `*` stands for all."""
        ...

    def close_gpu(self, uuid: str) -> None:
        """Let nothing new start on a GPU, or on all with `*`; what runs goes on.

        Raises:
            RequestError: There is no such GPU.
        """
        ...

    def open_gpu(self, uuid: str) -> None:
        """Let jobs start there again, at once if some wait.

        Raises:
            RequestError: It was not closed.
        """
        ...

    def tokens(self) -> Sequence[TokenReport]:
        """Return the tokens that are valid, oldest first."""
        ...

    def create_token(self, uid: int) -> NewToken:
        """Make a token for a user of this machine."""
        ...

    def revoke_token(self, token_id: str) -> None:
        """Make a token worth nothing from now on.

        Raises:
            RequestError: There is none with this id.
        """
        ...


class AdministrationService:
    """The `Administration` of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def quotas(self) -> Sequence[UserQuota]:
        """List quotas; see `Administration.quotas`."""
        with self._engine.ledger.view() as view:
            found = view.quotas()
        return [UserQuota(uid, each.memory_bytes, each.jobs, each.weight) for uid, each in sorted(found.items())]

    def set_quota(self, quota: UserQuota) -> None:
        """Set a quota, and start who fits now; see `Administration.set_quota`."""
        _check_uid(quota.uid)
        if not 0 < quota.weight <= _LARGEST_WEIGHT:
            raise RequestError("a weight is a number above 0", hint="2 gives twice the share of others")
        if (quota.memory_bytes or 0) < 0 or (quota.jobs or 0) < 0:
            raise RequestError("a quota is not below 0")
        with self._engine.deciding() as decision:
            decision.put_quota(quota.uid, Quota(quota.memory_bytes, quota.jobs, quota.weight))

    def remove_quota(self, uid: int) -> None:
        """Remove a quota, and start who fits now; see `Administration.remove_quota`."""
        _check_uid(uid)
        with self._engine.deciding() as decision:
            decision.put_quota(uid, None)

    def closed_gpus(self) -> Sequence[str]:
        """List closed GPUs; see `Administration.closed_gpus`."""
        with self._engine.ledger.view() as view:
            return sorted(view.closed_gpus())

    def close_gpu(self, uuid: str) -> None:
        """Close a GPU; see `Administration.close_gpu`."""
        known = {gpu.uuid for gpu in self._engine.gpus.gpus()}
        if uuid not in {ALL_GPUS, *known}:
            raise RequestError(f"there is no GPU {uuid}", hint=f"`pgpu gpus` lists them: {', '.join(sorted(known))}")
        with self._engine.deciding() as decision:
            decision.close_gpu(uuid, time.time())

    def open_gpu(self, uuid: str) -> None:
        """Open a GPU, and start who fits now; see `Administration.open_gpu`."""
        if uuid not in self.closed_gpus():
            raise RequestError(f"GPU {uuid} is not closed" if uuid != ALL_GPUS else "nothing is drained")
        with self._engine.deciding() as decision:
            decision.open_gpu(uuid)

    def tokens(self) -> Sequence[TokenReport]:
        """List tokens; see `Administration.tokens`."""
        return [TokenReport(each.id, each.uid, each.created_at_seconds) for each in self._engine.ledger.tokens.all()]

    def create_token(self, uid: int) -> NewToken:
        """Make a token; see `Administration.create_token`."""
        _check_uid(uid)
        token_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        self._engine.ledger.tokens.put(token_id, uid, _digest(secret))
        return NewToken(token_id, uid, f"{_PREFIX}_{token_id}_{secret}")

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token; see `Administration.revoke_token`."""
        if not self._engine.ledger.tokens.remove(token_id):
            raise RequestError(f"there is no token {token_id}", hint="`pgpu admin token list` lists them")


def uid_of_token(tokens: Tokens, text: str) -> int | None:
    """Return whose token this is; None if it is none, or none any more.

    Its secret part has 256 random bits, so that a plain digest keeps it as well as a slow one would.
    """
    prefix, _, rest = text.partition("_")
    token_id, _, secret = rest.partition("_")
    found = tokens.get(token_id) if prefix == _PREFIX and secret else None
    is_it = found is not None and hmac.compare_digest(found.digest, _digest(secret))
    return found.uid if found is not None and is_it else None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _check_uid(uid: int) -> None:
    if not 0 <= uid <= _LARGEST_UID:
        raise RequestError(f"{uid} is no user's number")
