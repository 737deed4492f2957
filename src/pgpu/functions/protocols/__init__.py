"""What callers speak, as pure translation: plain HTTP, the Open Inference Protocol V2, CloudEvents, OpenAPI.

Bytes in, values out, and back. It refuses to touch a socket or to call a handler.
"""

from pgpu.functions.protocols.call_refusal import Refusal, RefusedError, handler_error, handler_refusal
from pgpu.functions.protocols.description import example_body, openapi, pages
from pgpu.functions.protocols.interpreter import Interpreter
from pgpu.functions.protocols.parsed_call import ParsedCall, ResultWriter, StreamWriter

__all__ = [
    "Interpreter",
    "ParsedCall",
    "Refusal",
    "RefusedError",
    "ResultWriter",
    "StreamWriter",
    "example_body",
    "handler_error",
    "handler_refusal",
    "openapi",
    "pages",
]
