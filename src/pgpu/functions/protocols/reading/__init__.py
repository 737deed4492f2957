"""Bodies into arguments: JSON, msgpack, text, raw bytes, and the events that carry one of them.

It refuses what the handler's annotations do not allow, and never names a value that the caller did not send itself.
"""

from pgpu.functions.protocols.reading.bodies import BodyReader
from pgpu.functions.protocols.reading.events import Event, event_in
from pgpu.functions.protocols.reading.keyed import Buffer

__all__ = ["BodyReader", "Buffer", "Event", "event_in"]
