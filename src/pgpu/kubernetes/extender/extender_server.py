"""The HTTP server of the scheduler extender: `POST /prioritize` for the scheduler, `GET /healthz` and `/readyz` for probes.

Verbs of an extender that filter or bind could stop a cluster and are not served. A request that cannot be parsed is answered with 400;
while the cluster's state is not current, all nodes score alike. Without TLS it listens on loopback only.

Source: k8s.io/kube-scheduler/extender/v1 (ExtenderArgs, HostPriorityList), whose JSON has the names of Go fields.
"""

import contextlib
import ipaddress
import logging
import signal
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import uvicorn
from lightkube.models import core_v1, meta_v1

from pgpu.errors import NodeError, RequestError
from pgpu.kubernetes.api import ClusterClient
from pgpu.kubernetes.extender.cluster_watch import watch_cluster
from pgpu.kubernetes.extender.scheduled_objects import PodState, pod_of
from pgpu.kubernetes.extender.scorer import NOT_AT_ALL, Scorer
from pgpu.structs import Struct

_log = logging.getLogger(__name__)

MOST_BODY_BYTES = 64 << 20
"""5,000 node names are 0.2 MB; 5,000 nodes as whole objects, which a scheduler may be configured to send, 50 MB."""

_GRACE_SECONDS = 5

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]

_OK, _BAD_REQUEST, _NOT_FOUND, _BAD_METHOD, _TOO_LARGE, _NOT_READY = 200, 400, 404, 405, 413, 503


class _Node(msgspec.Struct):
    metadata: meta_v1.ObjectMeta


class _Nodes(msgspec.Struct):
    items: list[_Node] | None = None


class _ExtenderArgs(msgspec.Struct, rename="pascal"):
    pod: core_v1.Pod
    nodes: _Nodes | None = None
    node_names: list[str] | None = None


class _HostPriority(msgspec.Struct, rename="pascal"):
    host: str
    score: int


class PrioritizeArgs(NamedTuple):
    """One request of the scheduler."""

    pod: PodState | None
    """None: it has ended."""

    nodes: list[str]


_ARGS = msgspec.json.Decoder(_ExtenderArgs)


def parse_prioritize_args(body: bytes) -> PrioritizeArgs:
    """Parse ExtenderArgs.

    Raises:
        RequestError: It is no JSON of these types, or an amount in it is no quantity.
    """
    try:
        args = _ARGS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise RequestError(f"these are no ExtenderArgs: {exc}") from exc
    names = args.node_names
    if names is None:
        names = [one.metadata.name or "" for one in (args.nodes and args.nodes.items) or ()]
    return PrioritizeArgs(pod_of(args.pod), names)


class ExtenderApp:
    """An ASGI application."""

    def __init__(self, scorer: Scorer, is_current: Callable[[], bool]) -> None:
        """Answer by a scorer; `is_current` returns whether its state is the cluster's."""
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
        path, method = scope["path"], scope["method"]
        if path == "/prioritize":
            return await self._prioritize(receive) if method == "POST" else (_BAD_METHOD, b"POST ExtenderArgs here\n")
        if path not in {"/healthz", "/readyz"}:
            return _NOT_FOUND, b"there are /prioritize, /healthz and /readyz here\n"
        if method not in {"GET", "HEAD"}:
            return _BAD_METHOD, b"GET this\n"
        if path == "/readyz" and not self._is_current():
            return _NOT_READY, b"the cluster is not known: is the API server there, and does it allow to look?\n"
        return _OK, b"ok\n"

    async def _prioritize(self, receive: _Receive) -> tuple[int, bytes]:
        body = await _read_body(receive)
        if body is None:
            return _TOO_LARGE, _error(f"more than {MOST_BODY_BYTES >> 20} MiB")
        try:
            args = parse_prioritize_args(body)
        except RequestError as error:
            return _BAD_REQUEST, _error(str(error))
        # Equal scores leave the decision to the scheduler's other plugins.
        scores = [NOT_AT_ALL] * len(args.nodes)
        if args.pod is not None and self._is_current():
            scores = self._scorer.score(args.pod, args.nodes)
        return _OK, msgspec.json.encode(list(map(_HostPriority, args.nodes, scores)))


async def _read_body(receive: _Receive) -> bytes | None:
    """Read a body; None: it is too large."""
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


class ListenOptions(Struct, frozen=True):
    """Address and TLS of the server."""

    host: str
    port: int
    certificate: Path | None = None
    """Certificate chain; None: without TLS."""

    key: Path | None = None
    client_authority: Path | None = None
    """Clients need a certificate of this authority; None: no client certificate."""

    def check(self) -> None:
        """Check that the options belong together and are safe.

        Raises:
            RequestError: Another address than loopback without TLS, or incomplete TLS options.
        """
        if (self.certificate is None) != (self.key is None):
            raise RequestError("a certificate and its key belong together", hint="name --tls-cert and --tls-key")
        if self.client_authority is not None and self.certificate is None:
            raise RequestError("certificates of clients need TLS", hint="name --tls-cert and --tls-key, too")
        try:
            is_loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            is_loopback = self.host == "localhost"
        if self.certificate is None and not is_loopback:
            raise RequestError(
                f"{self.host} can be reached from other machines, and this is not encrypted",
                hint="name --tls-cert and --tls-key, or listen at 127.0.0.1 beside the scheduler",
            )


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_listening: Callable[[int], None]) -> None:
        super().__init__(config)
        self._on_listening = on_listening

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Exit normally after a signal: uvicorn would raise the signal again at the end."""
        former = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and report the port."""
        await super().startup(sockets)
        if self.started:
            self._on_listening(self.servers[0].sockets[0].getsockname()[1])


def serve(app: Any, options: ListenOptions, on_listening: Callable[[int], None]) -> None:
    """Serve an ASGI application until SIGTERM or SIGINT.

    Args:
        app: Of ASGI.
        options: Address and TLS.
        on_listening: Called with the port once it listens.

    Raises:
        RequestError: The options are unsafe or incomplete.
        NodeError: The address cannot be listened on, or the certificate cannot be used.
    """
    options.check()
    try:
        config = uvicorn.Config(
            app, host=options.host, port=options.port, lifespan="off", ws="none", log_level="critical",
            access_log=False, server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=_GRACE_SECONDS,
            ssl_certfile=options.certificate, ssl_keyfile=options.key,
            ssl_ca_certs=None if options.client_authority is None else str(options.client_authority),
            ssl_cert_reqs=ssl.CERT_NONE if options.client_authority is None else ssl.CERT_REQUIRED,
        )  # fmt: skip
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise NodeError(f"the certificate cannot be used: {error}") from error
    server = _Server(config, on_listening)
    try:
        server.run()
    except SystemExit as exit_:  # uvicorn exits if it cannot listen
        raise NodeError(
            f"{options.host}:{options.port} cannot be listened on", hint="is something there already?"
        ) from exit_


def run(kubeconfig: Path | None, options: ListenOptions) -> None:
    """Score nodes for a scheduler until SIGTERM or SIGINT.

    Args:
        kubeconfig: Credentials for the API server; None: the pod's service account.
        options: Address and TLS.

    Raises:
        RequestError: The options are unsafe or incomplete.
        NodeError: The address cannot be listened on, or there are no credentials.
    """
    options.check()
    scorer = Scorer(time.monotonic)
    cluster = ClusterClient.at(kubeconfig)
    watch = watch_cluster(cluster, scorer, time.monotonic)
    # Serving begins before the state is complete: /readyz is false until then, and scores are equal.
    watch.start()
    host = f"[{options.host}]" if ":" in options.host else options.host
    scheme = "http" if options.certificate is None else "https"
    try:
        serve(
            ExtenderApp(scorer, watch.is_current),
            options,
            lambda port: _log.info("nodes are scored at %s://%s:%d/prioritize", scheme, host, port),
        )
    finally:
        watch.stop()
        cluster.close()
