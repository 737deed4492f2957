"""A function from deploying to its answer through `pgpu serve`: nothing here is a fake."""

import json
import os
import signal
import tempfile
from pathlib import Path

import psutil
from tests.clearing import clear
from tests.served import ServerProcess, serving
from tests.system.functions.gateways import PHASES, free_port
from tests.system.functions.replicas import JSON, Answer, Connection, answer_of
from tests.system.functions.test_control_planes import NAME, deploy
from tests.waiting import until

from pgpu.app.client_factory import open_functions
from pgpu.app.settings import Settings
from pgpu.client.remote_service import HttpFunctions


def call(server: ServerProcess, x: int, **headers: str) -> Answer:
    connection = Connection(server.socket.with_name("functions.sock"))
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    connection.request("POST", f"/functions/{NAME}", json.dumps({"x": x}), {**JSON, **named})
    answer = answer_of(connection)
    connection.close()
    return answer


def gateway_of(server: ServerProcess) -> psutil.Process:
    found = psutil.Process(server.process.pid).children(recursive=True)
    return next(each for each in found if "pgpu.functions.gateway" in each.cmdline())


def answers(server: ServerProcess) -> bool:
    try:
        return call(server, 1).status == 200
    except OSError:
        return False


def test_a_function_is_deployed_called_and_survives_its_gateway_and_its_server() -> None:
    root = Path(tempfile.mkdtemp(prefix="pgpu-s-", dir="/dev/shm"))
    with serving(root, "--gateway", f"127.0.0.1:{free_port()}") as server:
        functions = open_functions(Settings(host=server.host))
        assert isinstance(functions, HttpFunctions)
        deploy(functions)
        until((root / "functions.sock").exists)
        until(lambda: answers(server))
        first = call(server, 1)
        start = until(lambda: functions.cold_starts(NAME))[0]
        assert [phase for phase, _ in start.phases] == PHASES

        gateway = gateway_of(server)
        gateway.send_signal(signal.SIGKILL)
        gateway.wait()
        until(lambda: answers(server))
        assert call(server, 1).value["pid"] == first.value["pid"]

        server.end(signal.SIGKILL)
        server.start()
        until(lambda: answers(server))
        assert call(server, 2).value == {"x": 2, "pid": first.value["pid"]}
        assert len(functions.replicas(NAME)) == 1
        functions.undeploy(NAME)
        until(lambda: call(server, 1).status == 404)
        until(lambda: not psutil.pid_exists(first.value["pid"]))
        assert os.listdir(root / "state" / "functions" / "calls")  # noqa: PTH208 - it is one that is there
        server.end()
        assert not (root / "functions.sock").exists()
    clear(root)
