"""What a driver of this machine tells, asked over HTTP. For the command line: it loads neither gRPC nor an engine."""

import dataclasses
import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pgpu.errors import NodeError, RequestError
from pgpu.kubernetes.pod_shares import Share

_ANSWER_SECONDS = 30.0
_MOST_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class SeenShare:
    """A slice with the container that has it, and the name of its GPU."""

    share: Share
    gpu: str | None
    """Index and product name; None where the GPU is gone."""


def shares_at(address: str) -> Sequence[SeenShare]:
    """Return the slices that a driver tells of.

    Args:
        address: HOST:PORT of its metrics.

    Raises:
        RequestError: That is no address.
        NodeError: No driver answers there, or it does not know the node's pods.
    """
    status, body = _asked(address, "/pods")
    try:
        told: Mapping[str, Any] = json.loads(body)
        if "error" in told:
            raise NodeError(f"the driver does not know: {told['error']['message']}", hint=told["error"]["hint"])
        return tuple(_read(each) for each in told["shares"])
    except (ValueError, KeyError, TypeError) as exc:
        raise NodeError(f"what answers at {address} is no driver of pgpu: HTTP {status}") from exc


def _asked(address: str, path: str) -> tuple[int, bytes]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise RequestError(f"{address!r} is not HOST:PORT", hint="write it like 127.0.0.1:9410")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read(_MOST_BYTES)
    except (OSError, http.client.HTTPException) as exc:
        raise NodeError(
            f"no driver answers at {address}: {exc}",
            hint="ask in the driver's pod: kubectl exec -n pgpu-system POD -- pgpu ps --kubernetes",
        ) from exc
    finally:
        connection.close()


def _read(told: dict[str, Any]) -> SeenShare:
    names = {each.name for each in dataclasses.fields(Share)}
    return SeenShare(Share(**{name: value for name, value in told.items() if name in names}), told["gpu"])
