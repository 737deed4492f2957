"""The user's callable: found, read, constructed and called.

It refuses to know HTTP, to catch what the user's code raises and to guess: what an annotation does not say, nobody does.
"""

from pgpu.functions.handler.call_signature import REQUIRED, Parameter, Signature, signature_of
from pgpu.functions.handler.handler import Handler, Values
from pgpu.functions.handler.loader import Loaded, load

__all__ = ["REQUIRED", "Handler", "Loaded", "Parameter", "Signature", "Values", "load", "signature_of"]
