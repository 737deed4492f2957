"""Results into replies: which form the caller accepts, whole answers, and streams.

It refuses to drop what it cannot write: such a result is an error of the handler, never an empty answer.
"""

from pgpu.functions.protocols.writing.plain import PlainForm, accepted_types, form_for, unwritable

__all__ = ["PlainForm", "accepted_types", "form_for", "unwritable"]
