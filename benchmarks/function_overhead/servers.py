"""The servers that are compared, each with a function that does nothing, written as its own documentation shows it."""

import json
from pathlib import Path

from benchmarks.function_overhead.server import Server

_UVICORN = """
import json

HEADERS = [(b"content-type", b"application/json")]


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    answer = json.dumps(json.loads(body)["x"]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS + [(b"content-length", b"%d" % len(answer))]})
    await send({"type": "http.response.body", "body": answer})
"""

_PGPU = """
class Noop:
    def __call__(self, x: int) -> int:
        return x
"""

_GATEWAY = """
import json, os, sys
from pathlib import Path
from tests.fakes.control_plane import FakeControlPlane
from pgpu.functions.gateway.gateway_server import GatewaySettings, run
from pgpu.model import Function, Share, Version, VersionState

root, port = Path("{directory}"), {port}
declaration = json.dumps({"public": True, "scale_to_zero_after": "1h"})
version = Version(
    "noop", 1, os.getuid(), f"{root}/app.py:Noop", "0", declaration, "process", None, None, VersionState.READY, None, 0.0
)
control_plane = FakeControlPlane(root)
control_plane.put(Function("noop", os.getuid(), 0.0, (version,), (Share(1, 100),)))
run(control_plane, GatewaySettings(root / "functions.sock", ("127.0.0.1", port), root))
"""

_FASTAPI = """
from fastapi import Body, FastAPI

app = FastAPI()


@app.post("/")
async def noop(x: int = Body(embed=True)) -> int:
    return x
"""

_LITSERVE = """
import litserve as ls


class Noop(ls.LitAPI):
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["x"]

    def predict(self, x):
        return x

    def encode_response(self, output):
        return output


if __name__ == "__main__":
    server = ls.LitServer(Noop(), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port={port}, num_api_servers=1, log_level="warning", generate_client_file=False)
"""

_MLSERVER = """
from mlserver import MLModel
from mlserver.codecs import decode_args
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Noop(MLModel):
    async def load(self):
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        output = ResponseOutput(name="y", shape=given.shape, datatype=given.datatype, data=given.data)
        return InferenceResponse(model_name=self.name, outputs=[output])
"""
_MLSERVER_BODY = json.dumps({"inputs": [{"name": "x", "shape": [1], "datatype": "INT64", "data": [1]}]})

_BENTOML = """
import bentoml


@bentoml.service
class Noop:
    @bentoml.api
    def run(self, x: int) -> int:
        return x
"""

_RAY = """
import signal

from ray import serve
from starlette.requests import Request


@serve.deployment
class Noop:
    async def __call__(self, request: Request):
        return (await request.json())["x"]


serve.start(http_options={"host": "127.0.0.1", "port": {port}})
serve.run(Noop.bind())
signal.pause()
"""

UVICORN = Server(
    "uvicorn, raw ASGI",
    (
        "-m",
        "uvicorn",
        "app:app",
        "--port",
        "{port}",
        "--http",
        "httptools",
        "--no-access-log",
        "--log-level",
        "warning",
    ),
    {"app.py": _UVICORN},
)
PGPU = Server(
    "pgpu, front and worker",
    (
        *("-m", "pgpu.functions.replica", "--app", "app.py:Noop", "--source", "{directory}"),
        *("--directory", "{directory}", "--http", "127.0.0.1:{port}"),
    ),
    {"app.py": _PGPU},
)
GATEWAY = Server(
    "pgpu-gateway, front and worker",
    ("gateway.py",),
    {"app.py": _PGPU, "gateway.py": _GATEWAY},
    path="/functions/noop",
    environment={"PYTHONPATH": str(Path(__file__).parents[2])},
)
"""A fake of the server starts its replica: the server takes no part in calls."""

FLOORS = tuple(
    Server(
        f"floor-{processes}, processes that do nothing",
        ("-m", "benchmarks.function_overhead.floor", "{port}", str(processes - 1)),
        environment={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    for processes in (1, 2, 3)
)
"""As many processes as uvicorn, front and worker, and those with a gateway have."""

PEERS = (
    Server(
        "fastapi",
        ("-m", "uvicorn", "app:app", "--port", "{port}", "--http", "httptools", "--no-access-log"),
        {"app.py": _FASTAPI},
        packages=("fastapi", "uvicorn", "httptools"),
    ),
    Server("litserve", ("app.py",), {"app.py": _LITSERVE}, path="/predict", packages=("litserve",)),
    Server(
        "mlserver",
        ("-c", "from mlserver.cli import main; main()", "start", "{directory}"),
        {
            "noop.py": _MLSERVER,
            "settings.json": '{"http_port": {port}, "grpc_port": 18081, "metrics_port": 18082, "host": "127.0.0.1", "debug": false}',
            "model-settings.json": '{"name": "noop", "implementation": "noop.Noop"}',
        },
        path="/v2/models/noop/infer",
        body=_MLSERVER_BODY,
        packages=("mlserver", "uvloop<0.22"),
    ),
    Server(
        "bentoml",
        ("-m", "bentoml", "serve", "service:Noop", "--host", "127.0.0.1", "--port", "{port}"),
        {"service.py": _BENTOML},
        path="/run",
        packages=("bentoml",),
        environment={"BENTOML_DO_NOT_TRACK": "True"},
    ),
    Server(
        "ray",
        ("app.py",),
        {"app.py": _RAY},
        packages=("ray[serve]",),
        environment={"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"},
    ),
)
