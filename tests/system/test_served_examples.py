"""The examples answer over HTTP, each behind a front and a worker."""

import http.client
import json
import socket
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tests.waiting import until

from pgpu.functions.dev.dev_session import DevReplica, replica_command, socket_directory
from pgpu.lab.p5 import network
from pgpu.lab.p5.network import SMALL

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@contextmanager
def served(example: str, attribute: str, **arguments: str) -> Iterator[DevReplica]:
    directory = socket_directory()
    command = replica_command(f"app.py:{attribute}", EXAMPLES / example, directory, {"arguments": arguments})
    replica = DevReplica(subprocess.Popen((*command, "--name", example)), directory)
    try:
        until(replica.is_ready, lambda: replica.health)
        yield replica
    finally:
        assert replica.end() == 0


def ask(replica: DevReplica, body: object, path: str = "/", headers: Mapping[str, str] | None = None) -> bytes:
    connection = http.client.HTTPConnection("localhost")
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(str(replica.http_socket))
        connection.sock = ours
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        reply = connection.getresponse()
        answer = reply.read()
    assert reply.status == 200, answer
    return answer


def test_the_detector_answers_in_plain_json_and_as_a_model_of_v2(tmp_path: Path) -> None:
    image = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)
    weights = network.write(SMALL, tmp_path / "ssd.onnx")
    with served("detector", "Detector", weights=str(weights)) as replica:
        boxes = json.loads(ask(replica, {"image": image.tolist(), "top_k": 2}))
        assert 1 <= len(boxes) <= 2
        assert set(boxes[0]) == {"label", "score", "left", "top", "right", "bottom"}
        tensors = [{"name": "image", "datatype": "UINT8", "shape": [64, 64, 3], "data": image.ravel().tolist()}]
        answer = json.loads(ask(replica, {"inputs": tensors}, "/v2/models/detector/infer"))
        assert answer["model_name"] == "detector"
        assert answer["outputs"]


def test_the_embedding_answers_for_every_text(tmp_path: Path) -> None:
    lot = np.random.default_rng(1)
    np.savez(tmp_path / "weights.npz", table=lot.standard_normal((512, 16)), layer=lot.standard_normal((16, 16)))
    with served("embedding", "Embedding", weights=str(tmp_path / "weights.npz")) as replica:
        vectors = json.loads(ask(replica, {"texts": ["one", "two", "one"]}))
    assert np.shape(vectors) == (3, 16)
    assert vectors[0] == vectors[2] != vectors[1]


def test_the_writer_streams_lines_of_json_and_server_sent_events() -> None:
    with served("streaming", "Writer") as replica:
        lines = ask(replica, {"words": 4}, headers={"Accept": "application/x-ndjson"}).splitlines()
        events = ask(replica, {"words": 4}, headers={"Accept": "text/event-stream"})
    words = [json.loads(line) for line in lines]
    assert len(words) == 4
    assert all(word.encode() in events for word in words)
    assert events.count(b"data:") >= len(words)


def test_the_batcher_gives_everybody_their_own_result() -> None:
    def unit(place: int) -> list[float]:
        return [float(index == place) for index in range(512)]

    def project(place: int) -> Any:
        return json.loads(ask(replica, {"vector": unit(place)}))

    with served("batcher", "Projection") as replica:
        alone = [project(place) for place in range(4)]
        with ThreadPoolExecutor(8) as callers:
            together = list(callers.map(project, [0, 1, 2, 3] * 4))
    assert together == alone * 4
    assert len({tuple(each) for each in alone}) == 4
