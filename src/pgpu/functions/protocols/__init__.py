"""What callers speak, as pure translation: plain HTTP, the Open Inference Protocol V2, CloudEvents, OpenAPI.

Bytes in, values out, and back. It refuses to touch a socket or to call a handler.
"""

from pgpu.functions.protocols.asked import Asked, Form, Streaming
from pgpu.functions.protocols.describing import example, openapi, pages
from pgpu.functions.protocols.interpreter import Interpreter
from pgpu.functions.protocols.refusal import Refusal, RefusedError, declined, handler_failed

__all__ = [
    "Asked",
    "Form",
    "Interpreter",
    "Refusal",
    "RefusedError",
    "Streaming",
    "declined",
    "example",
    "handler_failed",
    "openapi",
    "pages",
]
