"""Why a call is not answered with a result: a status, a word for programs and a sentence for people.

It refuses to tell a caller more than its own mistake: `detail` is for the log.
"""

import msgspec

from pgpu.errors import RequestError
from pgpu.functions.ipc.messages import Reply

_HEADERS = {"content-type": "application/json"}
_LONGEST_ERROR = 400
_LEAST_DECLINED, _CLIENT_GONE = 400, 499
_encode = msgspec.json.Encoder().encode


class Refusal(msgspec.Struct, frozen=True):
    """The reason that a call has no result."""

    status: int
    """HTTP's: 4xx, the caller's to mend; 500, the handler's."""

    code: str
    """A word that programs compare, such as `bad_json`."""

    error: str
    """One line for people; never a value of another caller, never a stack trace."""

    headers: dict[str, str] = {}
    """Names in lower case."""

    detail: str = ""
    """What only the log gets."""

    def reply(self, request_id: str) -> Reply:
        """Write it as every error of a function looks: `{"error": …, "code": …, "request_id": …}`."""
        body = {"error": self.error, "code": self.code, "request_id": request_id}
        return Reply(self.status, {**_HEADERS, **self.headers}, _encode(body))


class RefusedError(RequestError):
    """A call cannot be understood; it carries the refusal out of the depths of a reader."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.error)
        self.refusal = refusal


def refusal_error(status: int, code: str, error: str, **headers: str) -> RefusedError:
    """Make the error of a refusal; an underscore in a header's name stands for its dash."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RefusedError(Refusal(status, code, _one_line(error), named))


def _one_line(error: str) -> str:
    """A caller's own words may be in it: keys of its JSON, of any length and with any character."""
    short = error if len(error) <= _LONGEST_ERROR else f"{error[:_LONGEST_ERROR]}…"
    return short if short.isprintable() else short.encode("unicode_escape").decode()


def handler_refusal(error: BaseException) -> Refusal | None:
    """Read a handler's own refusal: an exception whose `pgpu_status` is 400 to 498, and whose text is for the caller.

    The attribute's name is ours alone on purpose: libraries raise exceptions with a `status` of somebody else's answer, and
    with texts that no caller may see.

    Returns:
        None: the error says nothing of the kind, and is a failure.
    """
    try:
        status, error_text = getattr(error, "pgpu_status", None), str(error)
    except Exception:  # noqa: BLE001 - it is the user's class, and may raise anything when it is asked
        return None
    if type(status) is not int or not _LEAST_DECLINED <= status < _CLIENT_GONE:
        return None
    return Refusal(status, "refused", _one_line(error_text) or type(error).__name__)


def handler_error(error: BaseException, detail: str = "") -> Refusal:
    """Refuse a call whose handler raised: the caller learns the error's type and nothing else."""
    return Refusal(500, "handler_error", type(error).__name__, detail=detail)
