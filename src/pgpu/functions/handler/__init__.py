"""The user's callable: found, read, constructed and called.

It refuses to know HTTP, to catch what the user's code raises and to guess: what an annotation does not say, nobody does.
"""

from pgpu.functions.handler.handler import Handler, Values
from pgpu.functions.handler.loading import Loaded, load
from pgpu.functions.handler.signature import REQUIRED, Parameter, Signature, signature_of

__all__ = ["REQUIRED", "Handler", "Loaded", "Parameter", "Signature", "Values", "load", "signature_of"]
