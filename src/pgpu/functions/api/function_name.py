"""Names of functions: parts of URLs, of metrics and of container names, so they are short and plain.

It refuses to invent: who gives no name gets that of the callable.
"""

import re

from pgpu.errors import RequestError
from pgpu.units import quoted

_NAME = re.compile(r"[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?")
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def check_name(name: str) -> str:
    """Return a function's name as it is.

    Raises:
        RequestError: It is no name of a function.
    """
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"{quoted(name)} is not a name of a function",
            hint="up to 63 small letters, digits, - and _, with a letter or digit at both ends",
        )
    return name


def default_name(attribute: str) -> str:
    """Make a name from that of a callable: `TextEmbedding` is called `text-embedding`.

    Raises:
        RequestError: No name can be made of it.
    """
    words = _WORD_STARTS.sub("-", attribute.rpartition(".")[2])
    return check_name(words.lower().strip("_-"))
