"""Who may call what: by a token, or by who the kernel says is at the other end of a Unix socket.

A stranger is told the same of a function that exists and of one that does not. What a token is good for is remembered for a
moment, so a revoked one works no longer than that. It refuses to ask by itself: `TokenCache` does.
"""

import hashlib
import os

from pgpu.functions.gateway.token_cache import TokenCache
from pgpu.functions.protocols import Refusal
from pgpu.functions.router.function_router import FunctionRouter
from pgpu.services.messages import Bearer

_LONGEST_TOKEN = 512

NO_TOKEN = Refusal(
    401, "no_token", "this needs a token: Authorization: Bearer TOKEN", {"www-authenticate": 'Bearer realm="pgpu"'}
)
BAD_TOKEN = Refusal(
    401, "bad_token", "this token is good for nothing", {"www-authenticate": 'Bearer error="invalid_token"'}
)
NOT_YOURS = Refusal(404, "not_found", "there is no function of this name that you may call")
NOT_ADMIN = Refusal(403, "forbidden", "this is for who administers the server")


class Credentials:
    """Who asks, as far as a request tells: a token, a user of this machine, both or nobody."""

    __slots__ = ("digest", "token", "uid")

    def __init__(self, authorization: str | None, uid: int | None) -> None:
        scheme, _, rest = (authorization or "").partition(" ")
        token = rest.strip()
        self.token = token if scheme.lower() == "bearer" and 0 < len(token) <= _LONGEST_TOKEN else None
        self.uid = uid
        self.digest = b"" if self.token is None else hashlib.sha256(self.token.encode("utf-8", "replace")).digest()


class GatewayAccess:
    """Judges callers."""

    def __init__(self, bearers: TokenCache) -> None:
        self.bearers = bearers
        self._admins = {0, os.geteuid()}

    def is_known(self, caller: Credentials) -> bool:
        """Say whether a caller can be judged without asking anybody."""
        return caller.token is None or self.bearers.remembered(caller) is not None

    def refusal(self, caller: Credentials, hall: FunctionRouter | None) -> Refusal | None:
        """Say why a caller whom it knows may not call a function; None: they may.

        Args:
            caller: Who asks.
            hall: The function's; None if there is none of the name that they said.
        """
        if hall is not None and hall.declaration.is_public:
            return None
        bearer = self.bearers.remembered(caller) or Bearer()
        if caller.uid is None and caller.token is None:
            return NO_TOKEN
        if hall is not None and (self._is_admin(caller, bearer) or hall.function.owner_uid in {caller.uid, bearer.uid}):
            return None
        if hall is not None and bearer.function == hall.function.identity:
            return None
        is_nobody = caller.uid is None and bearer == Bearer()
        return BAD_TOKEN if is_nobody else NOT_YOURS

    def principal(self, caller: Credentials) -> str:
        """Return who a caller whom it knows is, as far as it tells two apart.

        A user is the same one by their socket and by their own token; empty for who shows nothing that is good for anything.
        """
        bearer = self.bearers.remembered(caller) or Bearer()
        if bearer.function is not None:
            return f"token {caller.digest.hex()}"
        uid = caller.uid if bearer.uid is None else bearer.uid
        return "" if uid is None else f"user {uid}"

    def admin_refusal(self, caller: Credentials) -> Refusal | None:
        """Say why a caller whom it knows may not see everything; None: they may."""
        if self._is_admin(caller, self.bearers.remembered(caller) or Bearer()):
            return None
        return NO_TOKEN if caller.uid is None and caller.token is None else NOT_ADMIN

    def _is_admin(self, caller: Credentials, bearer: Bearer) -> bool:
        return caller.uid in self._admins or bearer.is_admin
