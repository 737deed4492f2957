"""Which browser is which user: one-time codes and tokens are exchanged for a signed cookie; requests of other sites are refused.

The cookie holds a user's UID, the id of the token, a time and a random word, signed with a key of the state directory (mode 0600), so that
it survives a restart of the server and ends with its token. Signing out ends it on the server: its digest is kept, beside the key, until
its time is over. It opens the dashboard and nothing else: the routes of the API do not take it.
"""

import base64
import errno
import hmac
import json
import os
import secrets
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol

from starlette.requests import HTTPConnection
from starlette.responses import Response

from pgpu.errors import NodeError, UnauthenticatedError
from pgpu.host.atomic_file import write_atomically
from pgpu.ledger import Tokens
from pgpu.server.browser_boundary import DASHBOARD_PATH, check_host, check_origin
from pgpu.server.peer_credentials import STATE_KEY, PeerCredentials
from pgpu.services.access import AccessRules, Caller, Identity, administers
from pgpu.services.administration import token_id_of

COOKIE = "pgpu_dashboard"
"""How the names of all cookies begin; a digest of the key follows."""

SESSION_SECONDS = 12 * 3600
CODE_SECONDS = 60.0
SECRET_SECONDS = 10.0
"""Time limit for a code or a token to come."""

KEY_NAME = "dashboard.key"
ENDED_NAME = "dashboard.ended"
"""A line for each session that was signed out: the digest of its cookie, and when that would have ended."""


_SPARE_LINES = 64
"""How many more lines than twice those that count the file of ended sessions may have."""

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
    """Signs, reads and ends sessions."""

    def __init__(self, key: bytes, ended_file: Path | None = None, session_seconds: int = SESSION_SECONDS) -> None:
        """Begin with the sessions that were ended before.

        Args:
            key: Signs cookies.
            ended_file: Keeps the sessions that were ended; None where the key ends with this process.
            session_seconds: How long a cookie is valid.

        Raises:
            OSError: The file cannot be read.
            ValueError: It is damaged.
        """
        self._key, self._ended_file, self._session_seconds = key, ended_file, session_seconds
        self._lock = threading.Lock()
        self._ended: dict[str, int] = {}
        self._most_lines = 0
        if ended_file is not None and ended_file.exists():
            *lines, rest = ended_file.read_text("ascii", "replace").split("\n")
            if rest:
                raise ValueError(rest)  # a line that was not written to its end
            self._ended = {digest: int(end) for digest, end in map(str.split, lines)}
        # Browsers send cookies to all ports of a host: with one name, two servers behind 127.0.0.1 would sign each other's users out.
        self.cookie = f"{COOKIE}_{self._signature(b'name')[:_NAME_DIGITS]}"

    @classmethod
    def of_directory(cls, state_directory: Path, session_seconds: int = SESSION_SECONDS) -> "SessionKey":
        """Read the key of a state directory; made with mode 0600 if it is missing or damaged, as all cookies are then.

        Raises:
            NodeError: It cannot be made.
        """
        path, ended_file = state_directory / KEY_NAME, state_directory / ENDED_NAME
        try:
            with suppress(ValueError):  # a damaged file could let a session in again that was ended
                if path.exists() and len(key := path.read_bytes()) == _KEY_BYTES:
                    return cls(key, ended_file, session_seconds)
            path.unlink(missing_ok=True)
            ended_file.unlink(missing_ok=True)
            key = secrets.token_bytes(_KEY_BYTES)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(key)
        except OSError as exc:
            raise NodeError(f"{path} cannot be made: {exc.strerror}") from exc
        return cls(key, ended_file, session_seconds)

    def seal(self, uid: int, token_id: str) -> str:
        """Return the value of a new cookie."""
        words = [uid, token_id, int(time.time()) + self._session_seconds, secrets.token_hex(8)]
        content = base64.urlsafe_b64encode(json.dumps(words).encode())
        return f"{content.decode()}.{self._signature(content)}"

    def read(self, value: str) -> tuple[int, str]:
        """Return the UID and the token's id of a cookie.

        Raises:
            UnauthenticatedError: It is forged, too old or signed out.
        """
        return self._read(value)[:2]

    def is_ended(self, value: str) -> bool:
        """Whether the session of a cookie was signed out."""
        return sha256(value.encode("utf-8", "replace")).hexdigest() in self._ended

    def end(self, value: str) -> None:
        """End the session of a cookie: it opens nothing from now on, after a restart of the server neither.

        Raises:
            UnauthenticatedError: As of `read`.
            NodeError: It cannot be noted for the time after a restart.
        """
        end_seconds, digest = self._read(value)[2], sha256(value.encode()).hexdigest()
        with self._lock:
            self._ended[digest] = end_seconds
            is_full = len(self._ended) > self._most_lines
            if is_full:
                now_seconds = time.time()
                self._ended = {each: end for each, end in self._ended.items() if end >= now_seconds}
                self._most_lines = 2 * len(self._ended) + _SPARE_LINES
            if self._ended_file is not None:
                try:
                    self._write(self._ended_file, {digest: end_seconds}, self._ended if is_full else None)
                except OSError as exc:
                    self._most_lines = 0  # what was written may end within a line
                    raise NodeError(f"{self._ended_file} cannot be written: {exc.strerror}") from exc

    @staticmethod
    def _write(path: Path, new: Mapping[str, int], every: Mapping[str, int] | None) -> None:
        """Append the new sessions that were ended, or write every one anew; return once the disk has them."""
        content = "".join(f"{digest} {end}\n" for digest, end in (every or new).items()).encode()
        if every is not None:
            write_atomically(path, content, 0o600, is_durable=True)
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            if file.write(content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(descriptor)

    def _read(self, value: str) -> tuple[int, str, int]:
        content, _, signature = value.partition(".")
        if not hmac.compare_digest(
            self._signature(content.encode("utf-8", "replace")).encode(), signature.encode("utf-8", "replace")
        ):
            raise _unauthenticated()
        uid, token_id, end_seconds, *_ = json.loads(base64.urlsafe_b64decode(content))
        if end_seconds < time.time() or self.is_ended(value):
            raise _unauthenticated()
        return uid, token_id, end_seconds

    def _signature(self, content: bytes) -> str:
        return hmac.new(self._key, content, sha256).hexdigest()


class SignIn(Protocol):
    """How a browser becomes a caller."""

    asks_for: str
    """What a user has to give, as the page names it."""

    key: SessionKey
    secret_seconds: float
    """Time limit for a code or a token to come."""

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

    def __init__(self, codes: LoginCodes, secret_seconds: float = SECRET_SECONDS) -> None:
        self._codes, self.secret_seconds = codes, secret_seconds
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

    def __init__(
        self, rules: AccessRules, tokens: Tokens, key: SessionKey, secret_seconds: float = SECRET_SECONDS
    ) -> None:
        self._rules, self._tokens, self.key, self.secret_seconds = rules, tokens, key, secret_seconds

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


async def until_signed_out(
    sign_in: SignIn, connection: HTTPConnection, parts: AsyncGenerator[bytes]
) -> AsyncIterator[bytes]:
    """Yield the parts of an answer until the session that it belongs to is signed out."""
    cookie = connection.cookies.get(sign_in.key.cookie, "")
    async with aclosing(parts):
        async for part in parts:
            if sign_in.key.is_ended(cookie):
                return
            yield part


def set_cookie(response: Response, name: str, value: str, *, is_encrypted: bool) -> None:
    """Let a browser keep a session; scripts cannot read it, and other sites cannot use it."""
    response.set_cookie(
        name, value, SESSION_SECONDS, path=DASHBOARD_PATH, secure=is_encrypted, httponly=True, samesite="strict"
    )


def _unauthenticated() -> UnauthenticatedError:
    return UnauthenticatedError("the page is not signed in any more", hint="sign in again")
