"""Access to functions: by token, or by the user at the other end of a Unix socket, which the kernel reports.

A caller without access gets the same answer for a function that exists and for one that does not. Each token is looked up once
at the server, in a thread; the answer is cached for a few seconds, so a revoked token works no longer than that. The caches hold
digests of tokens only.
"""

import asyncio
import hashlib
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from pgpu.errors import CapacityError
from pgpu.functions.control.control_plane import ControlPlane
from pgpu.functions.protocols import Refusal
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.server.page_requests import is_clients_host, is_of_a_page
from pgpu.services.messages import Bearer

_LONGEST_TOKEN = 512
"""Characters; a longer one is not hashed."""

_CACHE_SECONDS = 5.0
"""The longest time that a revoked token still works."""

_MOST_CACHED = 10_000
_MOST_WAITING = 64
"""Lookups of one pool in flight; of one user over the Unix socket, and of all callers over TCP together, half as many."""

_THREADS = 2
"""Of each pool: the server has other clients."""

NO_TOKEN = Refusal(
    401, "no_token", "this needs a token: Authorization: Bearer TOKEN", {"www-authenticate": 'Bearer realm="pgpu"'}
)
BAD_TOKEN = Refusal(401, "bad_token", "this token is not valid", {"www-authenticate": 'Bearer error="invalid_token"'})
NOT_YOURS = Refusal(404, "not_found", "there is no function of this name that you may call")
NOT_ADMIN = Refusal(403, "forbidden", "only an administrator of the server may see this")


class Credentials:
    """A request's credentials: a token, a user of this machine, both or none."""

    __slots__ = ("digest", "token", "uid")

    def __init__(self, authorization: str | None, uid: int | None) -> None:
        scheme, _, rest = (authorization or "").partition(" ")
        token = rest.strip()
        self.token = token if scheme.lower() == "bearer" and 0 < len(token) <= _LONGEST_TOKEN else None
        self.uid = uid
        self.digest = b"" if self.token is None else hashlib.sha256(self.token.encode("utf-8", "replace")).digest()

    @classmethod
    def of_request(cls, headers: Mapping[str, str], uid: int | None) -> "Credentials":
        """Return a request's credentials; that of a web page has only its token, also on the Unix socket.

        A port that `ssh -L` forwards to the socket is open to every page in that user's browser.

        Args:
            headers: Names in lower case.
            uid: The user at the other end of the Unix socket; None: over TCP.
        """
        is_client = uid is not None and is_clients_host(headers) and not is_of_a_page(headers)
        return cls(headers.get("authorization"), uid if is_client else None)


class TokenCache:
    """What tokens permit, from the server; on the event loop only.

    Tokens that were valid before have a thread pool and a cache of their own: a flood of invalid tokens delays only itself.
    """

    def __init__(
        self, control_plane: ControlPlane, cache_seconds: float = _CACHE_SECONDS, most_cached: int = _MOST_CACHED
    ) -> None:
        self._control_plane, self._seconds = control_plane, cache_seconds
        self._most_cached = most_cached
        # Two caches, so that a flood of invalid tokens evicts no valid one. Answers with their times, the oldest first.
        self._valid: OrderedDict[bytes, tuple[Bearer, float]] = OrderedDict()
        self._invalid: OrderedDict[bytes, tuple[Bearer, float]] = OrderedDict()
        self._known_pool, self._new_pool = _LookupPool("known-tokens"), _LookupPool("new-tokens")
        self._lookups: dict[bytes, asyncio.Task[None]] = {}

    def close(self) -> None:
        self._known_pool.threads.shutdown(wait=False, cancel_futures=True)
        self._new_pool.threads.shutdown(wait=False, cancel_futures=True)

    def get(self, caller: Credentials) -> Bearer | None:
        """Return what a caller's token permits; None: there is no token, or no recent answer about it."""
        if caller.token is None:
            return None
        found = self._valid.get(caller.digest) or self._invalid.get(caller.digest)
        if found is None or time.monotonic() - found[1] > self._seconds:
            return None
        return found[0]

    async def look_up(self, caller: Credentials) -> None:
        """Request from the server what a caller's token permits, unless the cache has it; concurrent calls share one lookup.

        Raises:
            CapacityError: Too many lookups are in flight.
            PgpuError: The server does not answer.
        """
        if caller.token is None or self.get(caller) is not None:
            return
        lookup = self._lookups.get(caller.digest)
        if lookup is None:
            pool = self._new_pool if self._valid.get(caller.digest) is None else self._known_pool
            pool.enter(caller.uid)
            lookup = asyncio.get_running_loop().create_task(self._look_up(pool, caller, caller.token))
            self._lookups[caller.digest] = lookup
            # Retrieves the exception: all waiting callers may have left, and asyncio would log it as never retrieved.
            lookup.add_done_callback(lambda task: task.cancelled() or task.exception())
        # Shielded: a caller that leaves must not cancel the lookup for the others.
        await asyncio.shield(lookup)

    async def _look_up(self, pool: "_LookupPool", caller: Credentials, token: str) -> None:
        loop = asyncio.get_running_loop()
        try:
            bearer = await loop.run_in_executor(pool.threads, self._control_plane.bearer, token)
        finally:
            pool.leave(caller.uid)
            del self._lookups[caller.digest]
        kept, other = (self._invalid, self._valid) if bearer == Bearer() else (self._valid, self._invalid)
        kept[caller.digest] = (bearer, time.monotonic())
        kept.move_to_end(caller.digest)
        if len(kept) > self._most_cached:
            kept.popitem(last=False)
        # A token was revoked, or an invalid one was created: the caches must not contradict each other.
        other.pop(caller.digest, None)


class _LookupPool:
    """Threads for lookups, and the number of lookups in flight by user."""

    def __init__(self, name: str) -> None:
        self.threads = ThreadPoolExecutor(_THREADS, name)
        self._waiting: Counter[int | None] = Counter()

    def enter(self, uid: int | None) -> None:
        if self._waiting[uid] >= _MOST_WAITING // 2 or self._waiting.total() >= _MOST_WAITING:
            raise CapacityError("too many tokens are being looked up")
        self._waiting[uid] += 1

    def leave(self, uid: int | None) -> None:
        self._waiting[uid] -= 1
        if not self._waiting[uid]:
            del self._waiting[uid]


class GatewayAccess:
    """Decides about access, from the cached answers about tokens."""

    def __init__(self, tokens: TokenCache) -> None:
        self.tokens = tokens
        self._admins = {0, os.geteuid()}

    def is_known(self, caller: Credentials) -> bool:
        """Whether access can be decided without a lookup."""
        return caller.token is None or self.tokens.get(caller) is not None

    def refusal(self, caller: Credentials, router: FunctionRouter | None) -> Refusal | None:
        """Return why a caller may not call a function; None: it may. Valid only after a lookup of its token.

        Args:
            caller: The request's credentials.
            router: The function's; None: there is no such function.
        """
        if router is not None and router.declaration.is_public:
            return None
        # No cached answer counts as no permission: the lookup before this call may have expired.
        bearer = self.tokens.get(caller) or Bearer()
        if caller.uid is None and caller.token is None:
            return NO_TOKEN
        if router is not None:
            function = router.function
            if self._is_admin(caller, bearer) or function.owner_uid in {caller.uid, bearer.uid}:
                return None
            if bearer.function == function.identity:
                return None
        return BAD_TOKEN if caller.uid is None and bearer == Bearer() else NOT_YOURS

    def principal(self, caller: Credentials) -> str:
        """Return a caller's identity; valid only after a lookup of its token.

        A user has one identity over the Unix socket and with a token of its own; a function's token is an identity itself. Empty
        for a caller without valid credentials.
        """
        bearer = self.tokens.get(caller) or Bearer()
        if bearer.function is not None:
            return f"token {caller.digest.hex()}"
        uid = caller.uid if bearer.uid is None else bearer.uid
        return "" if uid is None else f"user {uid}"

    def admin_refusal(self, caller: Credentials) -> Refusal | None:
        """Return why a caller may not use an administrator's page; None: it may."""
        if self._is_admin(caller, self.tokens.get(caller) or Bearer()):
            return None
        return NO_TOKEN if caller.uid is None and caller.token is None else NOT_ADMIN

    def _is_admin(self, caller: Credentials, bearer: Bearer) -> bool:
        return caller.uid in self._admins or bearer.is_admin
