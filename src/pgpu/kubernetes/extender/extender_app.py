"""The scheduler's question over HTTP: `POST /prioritize`, and `GET /healthz` and `/readyz` for whoever looks after it.

A question that cannot be read is answered 400 and changes nothing; while the cluster is not known, all nodes score alike.
It refuses every other verb of an extender: an extender that filters or binds can stop a cluster.

Source: k8s.io/kube-scheduler/extender/v1 (ExtenderArgs, HostPriorityList), whose JSON has Go's own names.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

import msgspec
from lightkube.models import core_v1, meta_v1

from pgpu.errors import RequestError
from pgpu.kubernetes.extender.object_decoding import pod_of
from pgpu.kubernetes.extender.scheduled_objects import PodState
from pgpu.kubernetes.extender.scorer import NOT_AT_ALL, Scorer

MOST_BODY_BYTES = 64 << 20
"""5,000 nodes' names are 0.2 MB; 5,000 nodes as a whole, from a scheduler that was told to send them, 50 MB."""

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_OK, _WRONG, _UNKNOWN, _NOT_SO, _TOO_MUCH, _NOT_READY = 200, 400, 404, 405, 413, 503


class _Node(msgspec.Struct):
    metadata: meta_v1.ObjectMeta


class _Nodes(msgspec.Struct):
    items: list[_Node] | None = None


class _Question(msgspec.Struct, rename="pascal"):
    """ExtenderArgs."""

    pod: core_v1.Pod
    nodes: _Nodes | None = None
    node_names: list[str] | None = None


class _Score(msgspec.Struct, rename="pascal"):
    """HostPriority."""

    host: str
    score: int


class PrioritizeArgs(NamedTuple):
    """One question."""

    pod: PodState | None
    """None of one that has ended."""

    nodes: list[str]


_QUESTIONS = msgspec.json.Decoder(_Question)


def parse_prioritize_args(body: bytes) -> PrioritizeArgs:
    """Read ExtenderArgs.

    Raises:
        RequestError: It is not JSON, not of these types, or says an amount that is no quantity.
    """
    try:
        question = _QUESTIONS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestError(f"these are no ExtenderArgs: {exc}") from exc
    names = question.node_names
    if names is None:
        names = [one.metadata.name or "" for one in (question.nodes and question.nodes.items) or ()]
    return PrioritizeArgs(pod_of(question.pod), names)


class ExtenderApp:
    """An ASGI application of three addresses."""

    def __init__(self, scorer: Scorer, is_current: Callable[[], bool]) -> None:
        """Answer by a scorer; `is_current` says whether it knows the cluster as it is."""
        self._scorer = scorer
        self._is_current = is_current

    async def __call__(self, scope: MutableMapping[str, Any], receive: _Receive, send: _Send) -> None:
        """Answer one request."""
        status, body = await self._answer(scope, receive)
        kind = b"application/json" if body.startswith((b"[", b"{")) else b"text/plain; charset=utf-8"
        headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: MutableMapping[str, Any], receive: _Receive) -> tuple[int, bytes]:
        wanted, method = scope["path"], scope["method"]
        if wanted == "/prioritize":
            return await self._prioritize(receive) if method == "POST" else (_NOT_SO, b"POST ExtenderArgs here\n")
        if wanted not in {"/healthz", "/readyz"}:
            return _UNKNOWN, b"there are /prioritize, /healthz and /readyz here\n"
        if method not in {"GET", "HEAD"}:
            return _NOT_SO, b"GET this\n"
        if wanted == "/readyz" and not self._is_current():
            return _NOT_READY, b"the cluster is not known: is the API server there, and does it allow to look?\n"
        return _OK, b"ok\n"

    async def _prioritize(self, receive: _Receive) -> tuple[int, bytes]:
        body = await _body(receive)
        if body is None:
            return _TOO_MUCH, _error(f"more than {MOST_BODY_BYTES >> 20} MiB")
        try:
            asked = parse_prioritize_args(body)
        except RequestError as error:
            return _WRONG, _error(str(error))
        return _OK, msgspec.json.encode(list(map(_Score, asked.nodes, self._scores(asked))))

    def _scores(self, asked: PrioritizeArgs) -> list[int]:
        if asked.pod is None or not self._is_current():
            return [NOT_AT_ALL] * len(asked.nodes)
        return self._scorer.score(asked.pod, asked.nodes)


async def _body(receive: _Receive) -> bytes | None:
    """Read a body; None of one that is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


def _error(text: str) -> bytes:
    return msgspec.json.encode({"error": text})
