"""One question to the API server, asked again where that may help, and its errors made pgpu's own.

Asked again, with growing pauses: what the server says it has no time for (429, 5xx), and what never reached it. A pause
ends at once when the asker is closed. No error text holds a header, so none holds a token.
"""

import random
from collections.abc import Callable
from typing import TypeVar

import httpx2 as httpx
import msgspec
from lightkube.core.exceptions import ApiError, ConfigError

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

TRIES = 4
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0
"""Four tries and their pauses last less than 2 s where the server refuses at once: the kubelet, too, asks again."""

_ERRORS: dict[int, tuple[type[ClusterError], str]] = {
    400: (ObjectRefusedError, "refuses what it was asked"),
    401: (ClusterAccessError, "does not know who asks"),
    403: (ClusterAccessError, "does not allow this"),
    404: (ObjectNotFoundError, "has no such object"),
    409: (ObjectConflictError, "says that somebody was first"),
    410: (HistoryGoneError, "has forgotten that version"),
    422: (ObjectRefusedError, "finds the object wrong"),
}
_HINTS: dict[int, str] = {
    401: "is the token of the service account mounted, or the kubeconfig's user right?",
    403: "the ClusterRole or the admission policy of deploy/kubernetes is missing or older than this pgpu",
}
NO_CREDENTIALS = (
    ConfigError,
    httpx.InvalidURL,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    AssertionError,
)
"""What reading a kubeconfig, a token or the answer of a program that makes tokens may raise: files of others, of any content."""

_TOO_MUCH = 429
_FAULT = 500
_UNKNOWN_FIELD = "field not declared in schema"
"""What server-side apply says of a field that a kind does not have; it calls that a fault of its own (500), and always will."""

_LONGEST_QUOTE = 400


def request_with_retries(
    question: Callable[[], _Answer], pause: Callable[[float], bool], tries: int = TRIES
) -> _Answer:
    """Ask until there is an answer, at most `tries` times.

    Args:
        question: One request; may be asked again.
        pause: Waits that many seconds; true where the asker ends meanwhile, so that nothing is asked again.
        tries: At least 1.

    Raises:
        ClusterError: One of its kinds.
    """
    for number in range(1, tries):
        try:
            return request_once(question)
        except ClusterUnavailableError as exc:
            if pause(_pause_seconds(number, exc)):
                raise
    return request_once(question)


def request_once(question: Callable[[], _Answer]) -> _Answer:
    """Ask once.

    Raises:
        ClusterError: One of its kinds.
    """
    try:
        return question()
    except httpx.HTTPStatusError as exc:
        raise _refusal(exc) from exc
    except httpx.HTTPError as exc:
        raise ClusterUnavailableError(f"Kubernetes' API server does not answer: {first_line(exc)}") from exc
    except msgspec.MsgspecError as exc:
        raise ClusterError(f"Kubernetes' API server answers what it should not: {exc}") from exc
    except NO_CREDENTIALS as exc:
        raise ClusterAccessError(f"no credentials for Kubernetes' API server: {first_line(exc)}") from exc


class _LaterError(ClusterUnavailableError):
    """The server itself said when to ask again."""

    after_seconds: float = 0.0


def _pause_seconds(number: int, error: ClusterUnavailableError) -> float:
    if isinstance(error, _LaterError) and error.after_seconds:
        return min(error.after_seconds, LONGEST_PAUSE_SECONDS)
    growing: float = FIRST_PAUSE_SECONDS * 2 ** (number - 1)
    return min(growing, LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1)  # noqa: S311 - spreads askers, keeps no secret


def _refusal(exc: httpx.HTTPStatusError) -> ClusterError:
    code = _code(exc)
    said = _said(exc)
    if _UNKNOWN_FIELD in said:
        return ObjectRefusedError(f"Kubernetes' API server finds the object wrong ({code}): {said}")
    if code == _TOO_MUCH or code >= _FAULT:
        later = _LaterError(f"Kubernetes' API server cannot answer now ({code}): {said}")
        later.after_seconds = _after_seconds(exc)
        return later
    kind, words = _ERRORS.get(code, (ClusterError, "refuses"))
    return kind(f"Kubernetes' API server {words} ({code}): {said}", hint=_HINTS.get(code))


def _code(exc: httpx.HTTPStatusError) -> int:
    if isinstance(exc, ApiError) and exc.status.code:
        return int(exc.status.code)
    return exc.response.status_code


def _said(exc: httpx.HTTPStatusError) -> str:
    text = (exc.status.message if isinstance(exc, ApiError) else None) or first_line(exc)
    return text if len(text) <= _LONGEST_QUOTE else f"{text[:_LONGEST_QUOTE]}…"


def _after_seconds(exc: httpx.HTTPStatusError) -> float:
    response = getattr(exc, "response", None)
    wanted = "" if response is None else response.headers.get("Retry-After", "")
    return float(wanted) if wanted.isdigit() else 0.0


def first_line(exc: Exception) -> str:
    """Return an error's first line; of a lookup, what was looked for."""
    if isinstance(exc, KeyError):
        return f"it says nothing of {exc}"
    return (str(exc) or type(exc).__name__).splitlines()[0]
