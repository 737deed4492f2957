"""Sends an event with the SDK of CloudEvents, in both of its forms: `events.py HOST:PORT`."""

import http.client
import json
import sys

from cloudevents.core.bindings.http import HTTPMessage, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

event = CloudEvent(
    {"type": "org.example.order", "source": "/shop", "specversion": "1.0", "datacontenttype": "application/json"},
    {"order": {"item": "cat", "count": 3}},
)


def sent(message: HTTPMessage) -> object:
    """Post a message as the SDK wrote it."""
    connection = http.client.HTTPConnection(sys.argv[1])
    connection.request("POST", "/", message.body, message.headers)
    reply = connection.getresponse()
    answer = json.loads(reply.read())
    assert reply.status == http.HTTPStatus.OK, answer
    return answer


expected = {"item": "cat", "count": 3, "type": "org.example.order"}
assert sent(to_binary_event(event)) == expected
assert sent(to_structured_event(event)) == expected
