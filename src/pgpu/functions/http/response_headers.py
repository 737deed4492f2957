"""Answers as HTTP writes them: headers that every reply of a function has, and its times.

It refuses a header that would end early: what a worker says is not trusted to be one line.
"""

from pgpu.functions.http.request_handler import ReplicaInfo
from pgpu.functions.ipc.messages import Reply
from pgpu.functions.requests.pending_request import PendingRequest


def server_timing(warm: ReplicaInfo, ticket: PendingRequest, reply: Reply) -> str:
    """Write how long the request waited, for a worker, for its constructor, for its turn, and ran; in milliseconds."""
    admitted, started = ticket.admitted_seconds, reply.started_seconds
    if not started:
        return ""
    exec_ms = reply.exec_seconds * 1e3
    if admitted >= warm.hot_since_seconds:
        return f"queue;dur={(started - admitted) * 1e3:.3f}, cold;dur=0, load;dur=0, exec;dur={exec_ms:.3f}"
    start = warm.hot_since_seconds - admitted
    load = min(warm.load_seconds, start)
    queue = max(0.0, started - warm.hot_since_seconds)
    return (
        f"queue;dur={queue * 1e3:.3f}, cold;dur={(start - load) * 1e3:.3f},"
        f" load;dur={load * 1e3:.3f}, exec;dur={exec_ms:.3f}"
    )


def header_lines(reply: Reply, ticket: PendingRequest, timing: str) -> str:
    """Write the headers of a reply, one a line.

    Raises:
        ValueError: One of them is not one line.
    """
    headers = reply.headers
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header of more than one line")
    timed = f"server-timing: {timing}\r\n" if timing else ""
    trace = ticket.headers.get("traceparent")
    traced = "" if trace is None else f"traceparent: {trace}\r\n"
    return f"{lines}x-request-id: {ticket.request_id}\r\n{timed}{traced}"


def header_pairs(reply: Reply, ticket: PendingRequest, timing: str) -> list[tuple[bytes, bytes]]:
    """Write the headers of a reply as ASGI wants them; uvicorn looks at each of them."""
    headers = _headers(reply, ticket, timing)
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def _headers(reply: Reply, ticket: PendingRequest, timing: str) -> dict[str, str]:
    headers = {**reply.headers, "x-request-id": ticket.request_id}
    if timing:
        headers["server-timing"] = timing
    if (trace := ticket.headers.get("traceparent")) is not None:
        headers["traceparent"] = trace
    return headers
