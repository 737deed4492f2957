"""Which browser is which user: one-time codes and tokens are exchanged for a signed cookie; requests of other sites are refused.

The cookie holds a user's UID, the id of the token and a time, signed with a key of the state directory (mode 0600), so that it survives a
restart of the server and ends with its token. It opens the dashboard and nothing else: the routes of the API do not take it.
"""

import base64
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from starlette.requests import HTTPConnection
from starlette.responses import Response

from pgpu.errors import NodeError, UnauthenticatedError
from pgpu.ledger import Tokens
from pgpu.server.browser_boundary import DASHBOARD_PATH, check_host, check_origin
from pgpu.server.peer_credentials import STATE_KEY, PeerCredentials
from pgpu.services.access import AccessRules, Caller, Identity, administers
from pgpu.services.administration import token_id_of

COOKIE = "pgpu_dashboard"
"""How the names of all cookies begin; a digest of the key follows."""

SESSION_SECONDS = 12 * 3600
CODE_SECONDS = 60.0
KEY_NAME = "dashboard.key"

_KEY_BYTES = 32
_NAME_DIGITS = 8


class LoginCodes:
    """One-time codes of `pgpu dashboard`: each is valid once, for a minute."""

    def __init__(self, now_seconds: Callable[[], float] = time.monotonic) -> None:
        self._now_seconds = now_seconds
        self._ends_seconds: dict[str, float] = {}

    def make(self) -> str:
        """Return a new code of 128 random bits."""
        code = secrets.token_urlsafe(16)
        self._ends_seconds[code] = self._now_seconds() + CODE_SECONDS
        return code

    def take(self, code: str) -> bool:
        """Use a code; False if it is unknown, used or too old."""
        return self._ends_seconds.pop(code, float("-inf")) >= self._now_seconds()


class SessionKey:
    """Signs and reads cookies."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        # Browsers send cookies to all ports of a host: with one name, two servers behind 127.0.0.1 would sign each other's users out.
        self.cookie = f"{COOKIE}_{self._signature(b'name')[:_NAME_DIGITS]}"

    @classmethod
    def of_directory(cls, state_directory: Path) -> "SessionKey":
        """Read the key of a state directory; made with mode 0600 if it is missing or damaged.

        Raises:
            NodeError: It cannot be made.
        """
        path = state_directory / KEY_NAME
        try:
            if path.exists() and len(key := path.read_bytes()) == _KEY_BYTES:
                return cls(key)
            path.unlink(missing_ok=True)
            key = secrets.token_bytes(_KEY_BYTES)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
        except OSError as exc:
            raise NodeError(f"{path} cannot be made: {exc.strerror}") from exc
        return cls(key)

    def seal(self, uid: int, token_id: str) -> str:
        """Return the value of a cookie, valid from now on for `SESSION_SECONDS`."""
        content = base64.urlsafe_b64encode(json.dumps([uid, token_id, int(time.time()) + SESSION_SECONDS]).encode())
        return f"{content.decode()}.{self._signature(content)}"

    def read(self, value: str) -> tuple[int, str]:
        """Return the UID and the token's id of a cookie.

        Raises:
            UnauthenticatedError: It is forged or too old.
        """
        content, _, signature = value.partition(".")
        if not hmac.compare_digest(
            self._signature(content.encode("utf-8", "replace")).encode(), signature.encode("utf-8", "replace")
        ):
            raise _unauthenticated()
        uid, token_id, end_seconds = json.loads(base64.urlsafe_b64decode(content))
        if end_seconds < time.time():
            raise _unauthenticated()
        return uid, token_id

    def _signature(self, content: bytes) -> str:
        return hmac.new(self._key, content, sha256).hexdigest()


class SignIn(Protocol):
    """How a browser becomes a caller."""

    asks_for: str
    """What a user has to give, as the page names it."""

    key: SessionKey

    def seal(self, secret: str) -> str:
        """Return the value of a new cookie.

        Raises:
            UnauthenticatedError: The secret is not valid.
        """
        ...

    def caller(self, connection: HTTPConnection) -> Caller:
        """Return the caller of a request, after `check_origin`.

        Raises:
            AccessError: A page of another site made it.
            UnauthenticatedError: It has no valid cookie.
        """
        ...


class CodeSignIn:
    """Of `pgpu dashboard`: one user, who is the user of this process, by a one-time code."""

    asks_for = "code"

    def __init__(self, codes: LoginCodes) -> None:
        self._codes = codes
        self.key = SessionKey(secrets.token_bytes(_KEY_BYTES))

    def seal(self, secret: str) -> str:
        if not self._codes.take(secret):
            raise UnauthenticatedError(
                "the code is not valid: each is valid once, for a minute",
                hint="press Enter where `pgpu dashboard` runs, for another one",
            )
        return self.key.seal(os.getuid(), "")

    def caller(self, connection: HTTPConnection) -> Caller:
        check_origin(connection)
        check_host(connection)
        self.key.read(connection.cookies.get(self.key.cookie, ""))
        return Caller.this_process()


class TokenSignIn:
    """Of a server: the kernel identifies the user of a Unix socket, a token of `pgpu admin token` that of a browser over TCP."""

    asks_for = "token"

    def __init__(self, rules: AccessRules, tokens: Tokens, key: SessionKey) -> None:
        self._rules = rules
        self._tokens = tokens
        self.key = key

    def seal(self, secret: str) -> str:
        caller = self._rules.authenticate(None, secret)
        return self.key.seal(caller.uid, token_id_of(secret))

    def caller(self, connection: HTTPConnection) -> Caller:
        peer: PeerCredentials | None = connection.scope.get("state", {}).get(STATE_KEY)
        check_origin(connection)
        if peer is not None:
            # No cookie is asked for, so the name of the host must be one of this machine.
            check_host(connection)
            return self._rules.authenticate(Identity(peer.uid, peer.gid, peer.groups, peer.pid), None)
        uid, token_id = self.key.read(connection.cookies.get(self.key.cookie, ""))
        token = self._tokens.get(token_id)
        if token is None or token.uid != uid:  # it was revoked
            raise _unauthenticated()
        return Caller(uid, administers(uid), Identity.of_uid(uid), self._rules)


def set_cookie(response: Response, name: str, value: str, *, is_encrypted: bool) -> None:
    """Let a browser keep a session; scripts cannot read it, and other sites cannot use it."""
    response.set_cookie(
        name, value, SESSION_SECONDS, path=DASHBOARD_PATH, secure=is_encrypted, httponly=True, samesite="strict"
    )


def _unauthenticated() -> UnauthenticatedError:
    return UnauthenticatedError("the page is not signed in any more", hint="sign in again")
