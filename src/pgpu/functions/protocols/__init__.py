"""The protocols of a function's callers, as pure translation: plain HTTP, Open Inference Protocol V2, CloudEvents, OpenAPI.

Request bodies become arguments, results become response bodies. No sockets here, and the handler is not called.
"""

from pgpu.functions.protocols.call_refusal import Refusal, RefusedError, handler_error, handler_refusal
from pgpu.functions.protocols.interpreter import Interpreter, ParsedCall
from pgpu.functions.protocols.openapi import example_body, openapi, pages
from pgpu.functions.protocols.results import ResultWriter, StreamWriter

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
