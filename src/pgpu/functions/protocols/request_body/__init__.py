"""Bodies into arguments: JSON, msgpack, text, raw bytes, and the events that carry one of them.

It refuses what the handler's annotations do not allow, and never names a value that the caller did not send itself.
"""

from pgpu.functions.protocols.request_body.body_reader import BodyReader
from pgpu.functions.protocols.request_body.cloud_events import CloudEvent, find_event
from pgpu.functions.protocols.request_body.keyed_reader import Buffer

__all__ = ["BodyReader", "Buffer", "CloudEvent", "find_event"]
