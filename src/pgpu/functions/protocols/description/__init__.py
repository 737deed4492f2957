"""What a function says about itself to programs: OpenAPI 3.1, and V2's metadata, as pages that never change.

They are written once, where the annotations are known, and served by the front, which never runs the user's code. It
refuses to promise more than annotations say.
"""

from typing import Any

import msgspec

from pgpu.functions.api import Declaration
from pgpu.functions.handler import Signature
from pgpu.functions.protocols.description.example_request import example_body
from pgpu.functions.protocols.description.openapi import openapi
from pgpu.functions.protocols.inference import model_metadata

__all__ = ["example_body", "openapi", "pages"]

_EXTENSIONS = ["binary_tensor_data"]


def pages(name: str, signature: Signature, declaration: Declaration, version: str = "1") -> dict[str, bytes]:
    """Write the pages of a function that depend on nothing but its code.

    Returns:
        JSON by path: `/openapi.json`, `/v2`, `/v2/models/NAME` and `/v2/models/NAME/versions/VERSION`. None of an ASGI
        application, which has pages of its own.
    """
    if declaration.is_asgi:
        return {}
    model = _json(model_metadata(name, version, signature))
    return {
        "/openapi.json": _json(openapi(name, signature, declaration, version)),
        "/v2": _json({"name": "pgpu", "version": version, "extensions": _EXTENSIONS}),
        f"/v2/models/{name}": model,
        f"/v2/models/{name}/versions/{version}": model,
    }


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)
