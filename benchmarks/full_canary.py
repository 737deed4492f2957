"""A canary of 10 % where only one version fits (`python -m benchmarks.full_canary`).

A real server with its gateway; a replica takes 16 GiB of a simulated RTX 3090, and a call 1 ms. Four callers call one after the
other, first one version alone, then two at 90 and 10 %. Bar: with the canary at least half as many answers a second. Writes one
JSON file; exits 1 where the bar is missed or a call failed.
"""

import argparse
import io
import json
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.function_crowd import until
from benchmarks.server_load import Connection
from benchmarks.shim_overhead import RESULTS, circumstances
from tests.clearing import clear
from tests.served import ServerProcess, serving

from pgpu.app.client_factory import open_functions
from pgpu.app.settings import Settings
from pgpu.functions.deploy.source_bundle import pack_tree
from pgpu.model import Deployment
from pgpu.services.messages import Rollout

CALLERS, LEAST_PART, CANARY_PERCENT = 4, 0.5, 10

CODE = """
import threading

from pgpu.workloads.cuda_driver import Device


class Model:
    def __init__(self, version: int) -> None:
        self.version, self.weights = version, Device().allocate(1 << 30)

    def __call__(self) -> int:
        threading.Event().wait(0.001)
        return self.version
"""


def call_for(server: ServerProcess, seconds: float) -> dict[str, Any]:
    """Call from several connections; return answers a second, statuses, and answers by version."""
    statuses: Counter[str] = Counter()
    versions: Counter[str] = Counter()
    end = time.monotonic() + seconds

    def call() -> None:
        connection = Connection(server.socket.with_name("functions.sock"))
        while time.monotonic() < end:
            connection.request("POST", "/functions/it", "{}", {"content-type": "application/json"})
            reply = connection.getresponse()
            body = reply.read().decode()
            statuses[str(reply.status)] += 1
            versions[body if reply.status == 200 else "none"] += 1

    threads = [threading.Thread(target=call) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "answers_per_second": round(statuses["200"] / seconds, 1), "answers": dict(statuses), "versions": dict(versions)
    }  # fmt: skip


def measure(seconds: float) -> dict[str, Any]:
    """Serve one version, then both."""
    root = Path(tempfile.mkdtemp(prefix="pgpu-canary-", dir="/dev/shm"))
    try:
        with serving(root, "--gateway", "127.0.0.1:0") as server, tempfile.TemporaryDirectory() as source:
            functions = open_functions(Settings(host=server.host))
            (Path(source) / "app.py").write_text(CODE, "utf-8")
            bundle = io.BytesIO()
            digest = pack_tree(Path(source), bundle).digest
            for number in (1, 2):
                bundle.seek(0)
                words = json.dumps({"memory": "16GiB", "arguments": {"version": number}})
                functions.deploy(Deployment("it", "app.py:Model", digest, words, rolls_out=number == 1), bundle)
            until(server.socket.with_name("functions.sock").exists)
            # Both have served before: otherwise the version without a replica is served by the other one until it has one.
            for number in (2, 1):
                functions.roll_out("it", Rollout(number, 100))
                call_for(server, 3.0)
            alone = call_for(server, 10.0)
            functions.roll_out("it", Rollout(2, CANARY_PERCENT))
            canary = call_for(server, seconds)
            starts = len(functions.cold_starts("it")) - 1
    finally:
        clear(root)
    return {"alone": alone, "canary": {**canary, "starts": starts}}


def main() -> int:
    """Call, print, write; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=100.0, help="with the canary; a period of its windows")
    parser.add_argument("--label", help="added to the file's name")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    found = measure(words.seconds)
    part = round(found["canary"]["answers_per_second"] / found["alone"]["answers_per_second"], 3)
    report = {**circumstances(), "driver": "simulated RTX 3090", **found, "part": part, "bar": LEAST_PART}
    print(json.dumps(report, indent=2))
    name = "-".join(filter(None, ("full-canary", words.label, report["date"])))
    (words.output / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n", "utf-8")
    return int(part < LEAST_PART or {*found["canary"]["answers"], *found["alone"]["answers"]} != {"200"})


if __name__ == "__main__":
    raise SystemExit(main())
