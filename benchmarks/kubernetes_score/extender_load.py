"""What one answer takes: the placer alone, the scorer, and the scorer asked over HTTP on loopback."""

import contextlib
import http.client
import json
import queue
import threading
import time
from collections.abc import Callable

import msgspec
import uvicorn
from benchmarks.kubernetes_score import fleet
from lightkube.models import core_v1, resource_v1

from pgpu.kubernetes.extender import scheduled_objects
from pgpu.kubernetes.extender.extender_server import ExtenderApp
from pgpu.kubernetes.extender.scheduled_objects import GpuClass, NodeCapacity, PublishedSlice, SharedGpu
from pgpu.kubernetes.extender.scorer import Scorer
from pgpu.units import GIB, MIB

ROUNDS = 400


def answers(nodes: int) -> dict[str, float]:
    """Return median milliseconds of an answer about so many nodes, within the process and over HTTP."""
    scorer = _crowded(nodes)
    names = [f"node-{number:05}" for number in range(nodes)]
    found = scheduled_objects.pod_of(msgspec.convert(fleet.pod(0), core_v1.Pod))
    if found is None:
        raise AssertionError("the pod has not ended")
    within = _median_ms(lambda: scorer.score(found, names))
    with _served(scorer) as port, contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as connection:
        body = json.dumps({"Pod": fleet.pod(0), "Nodes": None, "NodeNames": names}).encode()
        over_http = _median_ms(lambda: _asked(connection, body))
    return {"scorer_ms": within, "over_http_ms": over_http, "http_adds_ms": round(over_http - within, 3)}


def _crowded(nodes: int) -> Scorer:
    scorer = Scorer(time.monotonic)
    scorer.state.put_class("gpu.pgpu.io", GpuClass("gpu.pgpu.io", is_whole=False))
    for number in range(nodes):
        name = f"node-{number:05}"
        cards = tuple(SharedGpu(f"{name}-{card}", 80 * GIB, 4 * GIB, 256 * MIB) for card in range(fleet.GPUS))
        scorer.state.put_node(name, NodeCapacity(name, 64_000, 512 * GIB))
        scorer.state.put_slice(name, PublishedSlice(name, name, 1, name, cards))
    claim = scheduled_objects.claim_of(msgspec.convert(fleet.claim(0, 20), resource_v1.ResourceClaim))
    scorer.put_claim(claim.key, claim)
    return scorer


def _asked(connection: http.client.HTTPConnection, body: bytes) -> None:
    connection.request("POST", "/prioritize", body, {"Content-Type": "application/json"})
    connection.getresponse().read()


def _median_ms(ask: Callable[[], object]) -> float:
    seen = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        ask()
        seen.append(time.perf_counter() - start)
    return round(1e3 * sorted(seen)[ROUNDS // 2], 3)


@contextlib.contextmanager
def _served(scorer: Scorer):  # type: ignore[no-untyped-def] # noqa: ANN202 - a port
    """Serve as `pgpu kubernetes score` does."""
    ports: queue.Queue[int] = queue.Queue()

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self):  # type: ignore[no-untyped-def] # noqa: ANN202 - as in uvicorn
            yield

        async def startup(self, sockets=None) -> None:  # type: ignore[no-untyped-def] # noqa: ANN001 - as in uvicorn
            await super().startup(sockets)
            ports.put(self.servers[0].sockets[0].getsockname()[1])

    config = uvicorn.Config(
        ExtenderApp(scorer, lambda: True), host="127.0.0.1", port=0, lifespan="off", ws="none", log_level="critical",
        access_log=False, server_header=False,
    )  # fmt: skip
    server = Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield ports.get()
    finally:
        server.should_exit = True
        thread.join()
