"""What can never be served, said when it is deployed. Pure; whether it fits onto this machine the engine says.

It refuses in one line that names the word, and returns the words in the plain form that the ledger keeps.
"""

import json
import re
from dataclasses import replace

from pgpu.errors import RequestError
from pgpu.functions.api import check_name, dump_declaration, parse_declaration
from pgpu.model import Deployment
from pgpu.units import KIB, quoted

_APP = re.compile(r"[\w./-]{1,256}(:[\w.]{1,256})?")
_MOST_REQUIREMENTS_BYTES = 256 * KIB
_MOST_DECLARATION_BYTES = 64 * KIB
_MOST_IMAGE = 512


def validate_deployment(asked: Deployment) -> Deployment:
    """Return a deployment in plain words.

    Raises:
        RequestError: It can never be served.
    """
    check_name(asked.function)
    _check_app(asked.app)
    _check_runtime(asked)
    _check_requirements(asked.requirements)
    return replace(asked, declaration=_plain(asked.declaration))


def _check_app(app: str) -> None:
    place = app.partition(":")[0]
    if not _APP.fullmatch(app) or app.startswith(("/", "-")) or ".." in place.split("/"):
        raise RequestError(f"{quoted(app)} names no callable", hint="write it like app.py:Detector")


def _check_runtime(asked: Deployment) -> None:
    if (asked.runtime == "docker") != (asked.image is not None):
        raise RequestError("the runtime docker needs an image, and no other takes one")
    if asked.image is not None and len(asked.image) > _MOST_IMAGE:
        raise RequestError("the image's name is too long")


def _check_requirements(text: str | None) -> None:
    if text is None:
        return
    if len(text.encode("utf-8", "replace")) > _MOST_REQUIREMENTS_BYTES or "\0" in text:
        raise RequestError(f"requirements are text of at most {_MOST_REQUIREMENTS_BYTES // KIB} KiB")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise RequestError("the requirements are not UTF-8") from exc


def _plain(declaration: str) -> str:
    try:
        words = json.loads(declaration)
    except (ValueError, RecursionError) as exc:
        raise RequestError(f"the declaration is no JSON: {exc}") from exc
    if not isinstance(words, dict) or len(declaration) > _MOST_DECLARATION_BYTES:
        raise RequestError(f"a declaration is an object of at most {_MOST_DECLARATION_BYTES // KIB} KiB")
    try:
        return json.dumps(dump_declaration(parse_declaration(words)), sort_keys=True)
    except (OverflowError, RecursionError) as exc:
        raise RequestError("the declaration holds a number that nothing can have") from exc
