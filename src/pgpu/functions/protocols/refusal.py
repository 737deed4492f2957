"""Why a call is not answered with a result: a status, a word for programs and a sentence for people.

It refuses to tell a caller more than its own mistake: `detail` is for the log.
"""

import msgspec

from pgpu.errors import RequestError
from pgpu.functions.calls.messages import Reply

_HEADERS = {"content-type": "application/json"}
_LONGEST_ERROR = 400
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


def refused(status: int, code: str, error: str, **headers: str) -> RefusedError:
    """Make the error of a refusal; an underscore in a header's name stands for its dash."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return RefusedError(Refusal(status, code, _one_line(error), named))


def _one_line(error: str) -> str:
    """A caller's own words may be in it: keys of its JSON, of any length and with any character."""
    short = error if len(error) <= _LONGEST_ERROR else f"{error[:_LONGEST_ERROR]}…"
    return short if short.isprintable() else short.encode("unicode_escape").decode()


def handler_failed(error: BaseException, detail: str = "") -> Refusal:
    """Refuse a call whose handler raised: the caller learns the error's type and nothing else."""
    return Refusal(500, "handler_error", type(error).__name__, detail=detail)
