"""The user's callable: found, inspected, constructed and bound. Knows no HTTP.

Exceptions of the user's code pass through unchanged; the worker logs them. Parameters without an annotation accept anything.
"""

from pgpu.functions.handler.call_signature import REQUIRED, Parameter, Signature, signature_of
from pgpu.functions.handler.handler import Handler, Values
from pgpu.functions.handler.loader import Loaded, load

__all__ = ["REQUIRED", "Handler", "Loaded", "Parameter", "Signature", "Values", "load", "signature_of"]
