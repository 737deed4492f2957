"""What reading a call and writing its answer takes, no process and no socket (`python -m benchmarks.function_protocols`).

A call of two arguments in JSON beside bare msgspec and beside pydantic, which FastAPI binds with; and a tensor of 300 × 300 × 3 float32
through the Open Inference Protocol, as JSON and with the binary extension, beside the standard library. The best of some rounds
counts, taken in turns. Writes one JSON file and prints a table.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pydantic
from benchmarks.shim_overhead import RESULTS, circumstances

from pgpu.functions.handler import signature_of
from pgpu.functions.ipc.call_messages import Call
from pgpu.functions.protocols import Interpreter, ParsedCall

SIDE, CHANNELS = 300, 3
PATH = "/v2/models/it/infer"
_JSON = {"content-type": "application/json", "accept": "*/*"}


class _Struct(msgspec.Struct):
    x: int
    y: str = "a"


class _Model(pydantic.BaseModel):
    x: int
    y: str = "a"


def noop(x: int, y: str = "a") -> dict[str, int]:
    """Take two arguments."""
    return {"x": x, "y": len(y)}


def image(it: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Take a tensor."""
    return it


def interpreted(handler: Callable[..., Any], body: bytes, path: str = "/", **headers: str) -> Callable[[], object]:
    """Read a call and write its answer, the handler's own time left out."""
    interpreter = Interpreter(signature_of(handler), "it")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    call = Call("id", "POST", path, "", {**_JSON, **named}, 1.0)
    first = interpreter.read(call, body)
    if not isinstance(first, ParsedCall):
        raise SystemExit(first.error)
    result = handler(*first.values)

    def serve() -> object:
        asked = interpreter.read(call, body)
        return asked.form.write(result) if isinstance(asked, ParsedCall) else None

    return serve


def contestants() -> dict[str, Callable[[], object]]:
    """Return what is measured, by name; those that belong together begin with the same word."""
    body = b'{"x": 1, "y": "abc"}'
    decode, encode = msgspec.json.Decoder(_Struct).decode, msgspec.json.Encoder().encode
    tensor = np.random.default_rng(1).random((SIDE, SIDE, CHANNELS), np.float32)
    described = {"name": "it", "shape": list(tensor.shape), "datatype": "FP32"}
    plain = json.dumps({"inputs": [{**described, "data": tensor.ravel().tolist()}]}).encode()
    head = json.dumps(
        {
            "inputs": [{**described, "parameters": {"binary_data_size": tensor.nbytes}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    length = {"inference_header_content_length": str(len(head))}
    return {
        "call: pgpu": interpreted(noop, body),
        "call: msgspec alone": lambda: encode(noop(decode(body).x)),
        "call: pydantic alone": lambda: _Model.model_validate_json(body).model_dump_json(),
        "tensor: pgpu, JSON": interpreted(image, plain, PATH),
        "tensor: json and numpy": lambda: json.dumps(
            np.array(json.loads(plain)["inputs"][0]["data"], np.float32).tolist()
        ),
        "tensor: pgpu, binary": interpreted(image, head + tensor.tobytes(), PATH, **length),
    }


def best_seconds(work: Callable[[], object], at_least_seconds: float) -> float:
    """Return the best time of one piece of work, in as many goes as the time allows."""
    best, end = float("inf"), time.perf_counter() + at_least_seconds
    while time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(10):
            work()
        best = min(best, (time.perf_counter() - began) / 10)
    return best


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="through all of them, in turns")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the JSON file")
    words = parser.parse_args()
    them = contestants()
    rounds = [{name: best_seconds(work, 0.5) for name, work in them.items()} for _ in range(words.rounds)]
    microseconds = {name: round(min(each[name] for each in rounds) * 1e6, 2) for name in them}
    report = {**circumstances(), "driver": None, "microseconds": microseconds}
    path = words.output / f"function-protocols-{report['date']}.json"
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    for name, each in microseconds.items():
        print(f"{name:24} {each:12.2f} µs")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
