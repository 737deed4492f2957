"""Settings that only an administrator changes: quotas, drained GPUs, tokens. Each change is in the audit log.

For a local client, access to the ledger file is the permission; a server passes the authenticated caller. A token is shown
once, when it is made: the ledger keeps only a digest of its secret part.
"""

import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Sequence
from typing import Any

from pgpu.engine.context import EngineContext
from pgpu.errors import RequestError
from pgpu.host.audit_log import AuditLog
from pgpu.ledger import ALL_GPUS, Tokens
from pgpu.model import GpuHours
from pgpu.scheduling import Quota
from pgpu.scheduling.admission_round import NO_QUOTA
from pgpu.services.access import Caller
from pgpu.services.messages import NewToken, QuotaChange, TokenReport, UserQuota
from pgpu.structs import to_builtins

_PREFIX = "pgpu"
# 4294967295 is -1 in system calls such as setreuid(2), where it stands for no change.
_LARGEST_UID = (1 << 32) - 2
_LARGEST_WEIGHT = 1e6
# Clocks are divided by weights: of much smaller ones they would lose seconds, and in the end be infinite.
_SMALLEST_WEIGHT = 1 / _LARGEST_WEIGHT
_MOST_GPU_HOURS = 1e9
_LONGEST_SECONDS = 100.0 * 365 * 86_400


class AdministrationService:
    """The operations behind `pgpu admin`."""

    def __init__(self, engine: EngineContext, caller: Caller) -> None:
        """Serve an administrator.

        Raises:
            AccessError: The caller is none.
        """
        caller.check_administers()
        self._engine = engine
        self._caller = caller
        self._audit = AuditLog(engine.settings.state_directory)

    def quotas(self) -> Sequence[UserQuota]:
        """List the quotas by UID; a user without one may hold as much as there is."""
        with self._engine.ledger.view() as view:
            found = view.quotas(self._engine.settings.gpu_model)
        return [
            UserQuota(uid, each.memory_bytes, each.jobs, each.weight, hours.most, hours.period, hours.used)
            if (hours := each.gpu_hours) is not None
            else UserQuota(uid, each.memory_bytes, each.jobs, each.weight)
            for uid, each in sorted(found.items())
        ]

    def set_quota(self, change: QuotaChange) -> None:
        """Change what a user may hold and use from now on, as far as it is named; running jobs continue.

        Raises:
            RequestError: A value is out of range.
        """
        _check_uid(change.uid)
        # `deciding` wakes the agents: with a larger quota a waiting job may start now.
        with self._engine.deciding() as decision:
            before = decision.quotas().get(change.uid, NO_QUOTA)
            hours = before.gpu_hours or GpuHours(math.inf)
            most = _changed("gpu_hours", before.gpu_hours and hours.most, change)
            period = hours.period if change.period is None else change.period
            if most is None and change.period is not None:
                raise RequestError(f"no GPU hours of a {period} are set", hint="set their number, too")
            after = Quota(
                _changed("memory_bytes", before.memory_bytes, change),
                _changed("jobs", before.jobs, change),
                before.weight if change.weight is None else change.weight,
                None if most is None else GpuHours(most, period),
            )
            _check_quota(after)
            decision.put_quota(change.uid, after)
        self._note("quota.set", user=change.uid, quota=to_builtins(after))

    def remove_quota(self, uid: int) -> None:
        """Remove a user's quota."""
        _check_uid(uid)
        with self._engine.deciding() as decision:
            decision.put_quota(uid, None)
        self._note("quota.remove", user=uid)

    def closed_gpus(self) -> Sequence[str]:
        """List the UUIDs of drained GPUs, on which nothing new starts; `*` stands for all."""
        with self._engine.ledger.view() as view:
            return sorted(view.closed_gpus())

    def close_gpu(self, uuid: str) -> None:
        """Start nothing new on a GPU, or on all with `*`; running jobs continue.

        Raises:
            RequestError: There is no such GPU.
        """
        known = {gpu.uuid for gpu in self._engine.gpus.gpus()}
        if uuid not in {ALL_GPUS, *known}:
            raise RequestError(f"there is no GPU {uuid}", hint=f"`pgpu gpus` lists them: {', '.join(sorted(known))}")
        with self._engine.deciding() as decision:
            decision.close_gpu(uuid, time.time())
        self._note("gpu.close", gpu=uuid)

    def open_gpu(self, uuid: str) -> None:
        """Start jobs on a drained GPU again, at once if some wait.

        Raises:
            RequestError: It was not drained.
        """
        if uuid not in self.closed_gpus():
            raise RequestError(f"GPU {uuid} is not closed" if uuid != ALL_GPUS else "nothing is drained")
        with self._engine.deciding() as decision:
            decision.open_gpu(uuid)
        self._note("gpu.open", gpu=uuid)

    def tokens(self) -> Sequence[TokenReport]:
        """List the valid tokens, oldest first, without their secret parts."""
        return [
            TokenReport(each.id, each.uid, each.created_at_seconds, each.expires_at_seconds)
            for each in self._engine.ledger.tokens.all()
        ]

    def create_token(self, uid: int, expires_in_seconds: float | None = None) -> NewToken:
        """Make a token for a user of this machine; it is shown this once.

        Args:
            uid: The user.
            expires_in_seconds: How long it is valid; None for no end.

        Raises:
            RequestError: A value is out of range.
        """
        _check_uid(uid)
        expires_at_seconds = end_of_token(expires_in_seconds)
        token_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
        self._engine.ledger.tokens.put(token_id, uid, digest_of(secret), expires_at_seconds)
        self._note("token.create", token=token_id, user=uid, expires_at_seconds=expires_at_seconds)
        return NewToken(token_id, uid, f"{_PREFIX}_{token_id}_{secret}", expires_at_seconds)

    def revoke_token(self, token_id: str) -> None:
        """Revoke a token.

        Raises:
            RequestError: There is none with this id.
        """
        if not self._engine.ledger.tokens.remove(token_id):
            raise RequestError(f"there is no token {token_id}", hint="`pgpu admin token list` lists them")
        self._note("token.revoke", token=token_id)

    def _note(self, action: str, **details: object) -> None:
        self._audit.write(action, **self._caller.actor(), **details)


def uid_of_token(tokens: Tokens, text: str) -> int | None:
    """Return the user of a token; None if it is invalid, expired or revoked."""
    prefix, _, rest = text.partition("_")
    token_id, _, secret = rest.partition("_")
    found = tokens.get(token_id) if prefix == _PREFIX and secret else None
    # In constant time: the duration does not depend on how much of the secret is right.
    is_valid = found is not None and hmac.compare_digest(found.digest, digest_of(secret))
    return found.uid if found is not None and is_valid else None


def token_id_of(text: str) -> str:
    """Return the id in a token; empty if there is none."""
    return text.partition("_")[2].partition("_")[0]


def digest_of(secret: str) -> str:
    """Return the stored form of a token's secret part; its 256 random bits need no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def _changed(name: str, before: Any, change: QuotaChange) -> Any:
    """Return a limit as it is after a change; None for none."""
    after = getattr(change, name)
    return None if name in change.lifted else before if after is None else after


def _check_quota(quota: Quota) -> None:
    if not _SMALLEST_WEIGHT <= quota.weight <= _LARGEST_WEIGHT:
        raise RequestError("a weight is between 0.000001 and 1000000", hint="2 gives twice the share of others")
    if (quota.memory_bytes or 0) < 0 or (quota.jobs or 0) < 0:
        raise RequestError("a quota is not below 0")
    hours = quota.gpu_hours
    if hours is not None and not 0 <= hours.most <= _MOST_GPU_HOURS:
        raise RequestError(f"{hours.most:g} is no number of GPU hours", hint="0 or more")


def end_of_token(expires_in_seconds: float | None) -> float | None:
    """Return the time at which a new token expires; None for no end.

    Raises:
        RequestError: It would never be valid, or for more than a century.
    """
    if expires_in_seconds is None:
        return None
    if not 0 < expires_in_seconds <= _LONGEST_SECONDS:
        raise RequestError("a token expires after more than 0 seconds and within 100 years", hint="write --expires 90d")
    return time.time() + expires_in_seconds


def _check_uid(uid: int) -> None:
    if not 0 <= uid <= _LARGEST_UID:
        raise RequestError(f"{uid} is no user's number")
