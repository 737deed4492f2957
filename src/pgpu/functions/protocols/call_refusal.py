"""A refused or failed call: an HTTP status, a code for programs and a message for people.

The caller learns only its own mistake; `detail` is for the log.
"""

import msgspec

from pgpu.errors import RequestError
from pgpu.functions.ipc.call_messages import Reply

_HEADERS = {"content-type": "application/json"}
_LONGEST_ERROR = 400
_LEAST_DECLINED, _CLIENT_GONE = 400, 499
_encode = msgspec.json.Encoder().encode


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a call has no result."""

    status: int
    """HTTP status: 4xx for the caller's mistakes, 500 for the handler's."""

    code: str
    """For programs, such as `bad_json`."""

    error: str
    """One line for people; never a value of another caller, never a stack trace."""

    headers: dict[str, str] = {}
    """Names in lower case."""

    detail: str = ""
    """For the log only."""

    def reply(self, request_id: str) -> Reply:
        """Return the common form of all errors of a function: `{"error": …, "code": …, "request_id": …}`."""
        body = {"error": self.error, "code": self.code, "request_id": request_id}
        return Reply(self.status, {**_HEADERS, **self.headers}, _encode(body))


class RefusedError(RequestError):
    """Raised while a call is parsed or a result is written; carries the refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


def refusal_error(status: int, code: str, error: str, **headers: str) -> RefusedError:
    """Make the error of a refusal; an underscore in a header's name stands for its dash."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RefusedError(Refusal(status, code, _one_line(error), named))


def handler_refusal(error: BaseException) -> Refusal | None:
    """Return the refusal that a handler raised: an exception whose `pgpu_status` is 400 to 498, with its text for the caller.

    The attribute is pgpu's alone: exceptions of libraries may have a `status` of another service's response and a text that
    callers must not see.

    Returns:
        None: the exception has no such attribute and is a failure.
    """
    try:
        status, error_text = getattr(error, "pgpu_status", None), str(error)
    except Exception:  # noqa: BLE001 - the user's class may raise anything
        return None
    if type(status) is not int or not _LEAST_DECLINED <= status < _CLIENT_GONE:
        return None
    return Refusal(status, "refused", _one_line(error_text) or type(error).__name__)


def handler_error(error: BaseException, detail: str = "") -> Refusal:
    """Return the refusal of a call whose handler raised: the caller gets only the exception's type."""
    return Refusal(500, "handler_error", type(error).__name__, detail=detail)


def _one_line(error: str) -> str:
    # The text may quote the caller's input: JSON keys of any length and with any character.
    short = error if len(error) <= _LONGEST_ERROR else f"{error[:_LONGEST_ERROR]}…"
    return short if short.isprintable() else short.encode("unicode_escape").decode()
