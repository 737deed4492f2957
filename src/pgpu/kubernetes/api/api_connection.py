"""The connection to the API server: credentials, retries, translated errors, and thread-safe decoding.

Credentials come from a pod's service account or a kubeconfig. A service account's token is replaced every hour; the client reads
it again when the server rejects it. TCP keepalive detects a dead server within two minutes, for watches as well.

Requests that the server has no capacity for (429, 5xx) or that did not reach it are repeated with growing pauses.
"""

import contextlib
import gc
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import httpx2 as httpx
import msgspec
import yaml
from lightkube.config.client_adapter import ConnectionParams, verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig
from lightkube.config.models import User
from lightkube.core import decoders
from lightkube.core.exceptions import ApiError, ConfigError
from lightkube.core.generic_client import GenericSyncClient
from lightkube.core.resource import Resource
from lightkube.models.meta_v1 import Status

from pgpu.errors import (
    ClusterAccessError,
    ClusterError,
    ClusterUnavailableError,
    HistoryGoneError,
    ObjectConflictError,
    ObjectNotFoundError,
    ObjectRefusedError,
)

_Answer = TypeVar("_Answer")

ANSWER_SECONDS = 10.0
"""Timeout of one request; longer than an API server waits for its own store."""

CONNECT_SECONDS = 5.0

TRIES = 4
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
"""Four attempts with their pauses last less than 2 s if the server refuses at once; the kubelet retries as well."""

_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)
_ERRORS: dict[int, tuple[type[ClusterError], str]] = {
    400: (ObjectRefusedError, "rejects the request"),
    401: (ClusterAccessError, "does not accept the credentials"),
    403: (ClusterAccessError, "does not allow this"),
    404: (ObjectNotFoundError, "has no such object"),
    409: (ObjectConflictError, "reports a conflict with another writer"),
    410: (HistoryGoneError, "no longer has that version"),
    422: (ObjectRefusedError, "finds the object invalid"),
}
_HINTS: dict[int, str] = {
    401: "is the token of the service account mounted, or the kubeconfig's user right?",
    403: "the ClusterRole or the admission policy of deploy/kubernetes is missing or older than this pgpu",
}
# What lightkube may raise for a kubeconfig, a token or the output of a credential plugin: their content is unchecked.
_CREDENTIAL_ERRORS = (
    ConfigError,
    httpx.InvalidURL,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    AssertionError,
)

_TOO_MANY_REQUESTS = 429
_SERVER_ERROR = 500
# Server-side apply reports an unknown field with status 500, although a retry cannot help.
_UNKNOWN_FIELD = "field not declared in schema"

_LONGEST_QUOTE = 400


def connect(
    kubeconfig: Path | None = None, service_account: Path = Path(SERVICE_ACCOUNT), *, context: str | None = None
) -> GenericSyncClient:
    """Return a client of the cluster; sends no request yet.

    Args:
        kubeconfig: Address and credentials; None: the pod's service account.
        service_account: Directory with `token`, `ca.crt` and `namespace`.
        context: Context of the kubeconfig; None: its current one.

    Raises:
        ClusterAccessError: The files are missing or invalid.
    """
    prepare_type()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" not in os.environ:
            raise ConfigError("this is no pod of a cluster, and no kubeconfig was named")
        source = (
            KubeConfig.from_service_account(service_account) if kubeconfig is None else KubeConfig.from_file(kubeconfig)
        )
        chosen = source.get(context)
        if chosen is None:
            raise ConfigError("the kubeconfig has no current context")
        # A kubeconfig may have no user, for a server that accepts anonymous requests; lightkube requires one.
        if chosen.user is None:
            chosen = chosen._replace(user=User())
        # trust_env=False: proxy variables of the pod must not redirect requests that carry a token.
        trusted = verify_cluster(chosen.cluster, chosen.user or User(), chosen.abs_file, trust_env=False)
        transport = httpx.HTTPTransport(verify=trusted, trust_env=False, socket_options=_KEEPALIVE)
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        return GenericSyncClient(ConnectionParams(timeout=timeout, trust_env=False, transport=transport), chosen)
    except (*_CREDENTIAL_ERRORS, yaml.YAMLError, msgspec.MsgspecError) as exc:
        raise ClusterAccessError(
            f"no way to Kubernetes' API server: {_first_line(exc)}",
            hint="run in a pod with a service account, or name a file with --kubeconfig",
        ) from exc


def default_kubeconfig(named: Path | None, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the kubeconfig that kubectl would use: the named one, the first of KUBECONFIG, `~/.kube/config`; None: the pod's."""
    if named is not None:
        return named
    first = environment.get("KUBECONFIG", "").split(os.pathsep)[0]
    if first:
        return Path(first)
    own = Path(environment.get("HOME", "/"), ".kube", "config")
    return own if own.is_file() or "KUBERNETES_SERVICE_HOST" not in environment else None


class _RetryAfterError(ClusterUnavailableError):
    """The server named the time of the next attempt."""

    after_seconds: float = 0.0


def request_with_retries(send: Callable[[], _Answer], pause: Callable[[float], bool], tries: int = TRIES) -> _Answer:
    """Send a request until it is answered, at most `tries` times.

    Args:
        send: Sends the request; may be called repeatedly.
        pause: Waits so many seconds; returns True if the client is closed meanwhile, which ends the attempts.
        tries: At least 1.

    Raises:
        ClusterError: One of its subclasses.
    """
    for number in range(1, tries):
        try:
            return request_once(send)
        except ClusterUnavailableError as exc:
            after_seconds = exc.after_seconds if isinstance(exc, _RetryAfterError) else 0.0
            growing_seconds: float = FIRST_PAUSE_SECONDS * 2 ** (number - 1)
            # Clients that failed together would otherwise repeat together; a time that the server named is kept as it
            # is.
            spread = 1.0 if after_seconds else random.uniform(0.5, 1)  # noqa: S311 - spreads clients, keeps no secret
            if pause(min(after_seconds or growing_seconds, LONGEST_PAUSE_SECONDS) * spread):
                raise
    return request_once(send)


def request_once(send: Callable[[], _Answer]) -> _Answer:
    """Send a request once.

    Raises:
        ClusterError: One of its subclasses.
    """
    try:
        return send()
    except httpx.HTTPStatusError as exc:
        raise _translated(exc) from exc
    except httpx.HTTPError as exc:
        raise ClusterUnavailableError(f"Kubernetes' API server does not answer: {_first_line(exc)}") from exc
    except msgspec.MsgspecError as exc:
        raise ClusterError(f"Kubernetes' API server sends an invalid answer: {exc}") from exc
    except _CREDENTIAL_ERRORS as exc:
        raise ClusterAccessError(f"no credentials for Kubernetes' API server: {_first_line(exc)}") from exc


def _translated(exc: httpx.HTTPStatusError) -> ClusterError:
    status = exc.status if isinstance(exc, ApiError) else Status()
    code = int(status.code or exc.response.status_code)
    text = status.message or _first_line(exc)
    # A validation error may quote the whole object.
    if len(text) > _LONGEST_QUOTE:
        text = f"{text[:_LONGEST_QUOTE]}…"
    # Checked before the code: this error has status 500 and would be retried.
    if _UNKNOWN_FIELD in text:
        return ObjectRefusedError(f"Kubernetes' API server finds the object invalid ({code}): {text}")
    if code == _TOO_MANY_REQUESTS or code >= _SERVER_ERROR:
        later = _RetryAfterError(f"Kubernetes' API server cannot answer now ({code}): {text}")
        response = getattr(exc, "response", None)
        header = "" if response is None else response.headers.get("Retry-After", "")
        later.after_seconds = float(header) if header.isdigit() else 0.0
        return later
    kind, reason = _ERRORS.get(code, (ClusterError, "refuses"))
    return kind(f"Kubernetes' API server {reason} ({code}): {text}", hint=_HINTS.get(code))


def _first_line(exc: Exception) -> str:
    if isinstance(exc, KeyError):
        return f"there is no {exc}"
    return (str(exc) or type(exc).__name__).splitlines()[0]


_PREPARATION = threading.Lock()
_PREPARED: set[type[object]] = set()


def prepare_type(kind: type[object] = Status) -> None:
    """Make decoding of a kind, of lists of it, and of error statuses thread-safe; cheap when repeated.

    msgspec stores what it derives from a type in the type itself at the first use. A second thread that decodes the type
    meanwhile reads incomplete data and crashes: seen with msgspec 0.22 as a segmentation fault in the garbage collector, when the
    first answers of two threads were errors. So one thread uses each type first, with the collector off.
    """
    if kind in _PREPARED:
        return
    with _PREPARATION, _without_collector():
        for each in (Status, decoders.WatchEvent, kind):
            with contextlib.suppress(msgspec.ValidationError):  # `{}` lacks required fields; the type is known now
                msgspec.convert({}, each)
        # The list decoder builds another type around the kind.
        if issubclass(kind, Resource):
            decoders.decode_list(b'{"items": []}', kind)
        _PREPARED.add(kind)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    # The collector visits half-built type information of msgspec, which is where the crash was seen.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
