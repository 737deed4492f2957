"""Results into replies: which form the caller accepts, whole answers, and streams.

It refuses to drop what it cannot write: such a result is an error of the handler, never an empty answer.
"""

from pgpu.functions.protocols.results.plain_results import PlainWriter, accepted_types, plain_writer, unwritable

__all__ = ["PlainWriter", "accepted_types", "plain_writer", "unwritable"]
