"""Names and labels that Kubernetes takes, and names that change with what they name.

Templates and sources never change under a name: a pod that is started again must find what it was started with. So their
names end with a digest, and a new one is a new version of the pod. It refuses to mend a name: who asks, says another.
"""

import hashlib
import json
import re
from typing import Any

from pgpu.errors import RequestError
from pgpu.units import quoted

Manifest = dict[str, Any]
"""An object of Kubernetes, as JSON."""

FUNCTION_LABEL = "pgpu.io/function"
MANAGER_LABEL = "app.kubernetes.io/managed-by"
APP_ANNOTATION = "pgpu.io/app"
SLICE_ANNOTATION = "pgpu.io/slice"
"""For people: the claim's template has the amounts."""

MANAGER = "pgpu"
"""The value of that label, and the field manager of server-side apply."""

_SERVICE_NAME = re.compile(r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DIGEST_DIGITS = 10


def check_function_name(name: str) -> str:
    """Return a function's name as it is.

    Raises:
        RequestError: No Service can have it. Source: RFC 1035, as Kubernetes validates names of Services.
    """
    if not _SERVICE_NAME.fullmatch(name):
        raise RequestError(
            f"{quoted(name)} cannot be the name of a Service",
            hint="small letters, digits and -, a letter first and no - at the end, 63 at most: --name",
        )
    return name


def check_namespace(namespace: str) -> str:
    """Return a namespace's name as it is.

    Raises:
        RequestError: It is none. Source: RFC 1123, as Kubernetes validates names of namespaces.
    """
    if not _LABEL.fullmatch(namespace):
        raise RequestError(
            f"{quoted(namespace)} is no name of a namespace", hint="small letters, digits and -, 63 at most"
        )
    return namespace


def labels(name: str) -> dict[str, str]:
    """Return the labels of everything that is made for a function."""
    return {
        "app.kubernetes.io/name": name,
        "app.kubernetes.io/component": "function",
        MANAGER_LABEL: MANAGER,
        FUNCTION_LABEL: name,
    }


def selector(name: str) -> str:
    """Return the query for everything that pgpu made for a function; for all functions with an empty name."""
    return f"{MANAGER_LABEL}={MANAGER},{FUNCTION_LABEL}" + (f"={name}" if name else "")


def metadata(name: str, function: str, namespace: str | None) -> Manifest:
    """Return the metadata of an object of a function."""
    placed = {} if namespace is None else {"namespace": namespace}
    return {"name": name, **placed, "labels": labels(function)}


def named_by_content(function: str, word: str, content: object) -> str:
    """Return a name that only this content has: `detector-source-1f3a…`."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return f"{function}-{word}-{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_DIGITS]}"
