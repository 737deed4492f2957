"""PyTorch, TensorFlow and JAX from PyPI, unmodified, in a slice of the simulated GPU.

Kernels compute nothing there, so only memory, copies, streams and errors are looked at. NVIDIA's CUDA runtime refuses a
simulated driver; a small one of our own (native/tests/cudart) stands in for it, before which nothing else changes.
`make test-frameworks` records the figures that the tests saw.
"""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.native_clients import client_path, framework_python
from tests.nvml_world import MIB
from tests.plain_slice import CONTEXT_BYTES, PlainSlice

LIMIT_BYTES = 2048 * MIB

Record = Callable[[str], None]

TORCH = """
import json, sys, torch

BLOCK = 64 << 20
free_before, total = torch.cuda.mem_get_info()
held, message = [], None
while message is None:
    try:
        held.append(torch.empty(BLOCK, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        message = str(error)
count = len(held)
free_full = torch.cuda.mem_get_info()[0]
held.clear()
torch.cuda.empty_cache()
free_after = torch.cuda.mem_get_info()[0]
numbers = torch.arange(1 << 20)
is_same = bool((numbers.cuda().cpu() == numbers).all())
layer = torch.nn.Embedding(1000, 64).cuda()
optimizer = torch.optim.Adam(layer.parameters())
stream, event = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True)
with torch.cuda.stream(stream):
    layer(torch.zeros(4, dtype=torch.long, device="cuda")).sum().backward()
    optimizer.step()
    event.record()
event.synchronize()
again = torch.empty(BLOCK, dtype=torch.uint8, device="cuda").nbytes
print(json.dumps({
    "version": torch.__version__, "name": torch.cuda.get_device_name(0), "count": count, "total": total,
    "properties_total": torch.cuda.get_device_properties(0).total_memory, "message": message,
    "free": [free_before, free_full, free_after], "is_same": is_same, "again": again,
    "allocator": torch.cuda.get_allocator_backend(), "block": BLOCK,
}))
"""

TENSORFLOW = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy, tensorflow
gpus = tensorflow.config.list_physical_devices("GPU")
if sys.argv[1] == "growth":
    tensorflow.config.experimental.set_memory_growth(gpus[0], True)
BLOCK = 64 << 20
numbers = numpy.arange(1 << 20, dtype=numpy.float32)
with tensorflow.device("/GPU:0"):
    first = tensorflow.constant(numbers)
    is_same = bool((first.numpy() == numbers).all())
    print("first", flush=True)
    sys.stdin.readline()
    held, message = [], None
    block = numpy.zeros(BLOCK, dtype=numpy.uint8)
    while message is None:
        try:
            held.append(tensorflow.identity(tensorflow.constant(block)))
        except (tensorflow.errors.ResourceExhaustedError, tensorflow.errors.InternalError) as error:
            message = type(error).__name__
    count = len(held)
    held.clear()
    again = tensorflow.constant(block).numpy().nbytes
print(json.dumps({
    "version": tensorflow.__version__, "gpus": len(gpus), "is_same": is_same, "count": count, "message": message,
    "again": again, "block": BLOCK,
}))
"""

JAX = """
import json, sys
import jax, numpy
numbers = numpy.arange(1 << 20, dtype=numpy.float32)
first = jax.device_put(numbers)
is_same = bool((numpy.asarray(first) == numbers).all())
pool_bytes = jax.devices()[0].memory_stats()["bytes_limit"]
print("first", flush=True)
sys.stdin.readline()
BLOCK = 64 << 20
block = numpy.zeros(BLOCK, dtype=numpy.uint8)
held, message = [], None
while message is None:
    try:
        held.append(jax.device_put(block).block_until_ready())
    except jax.errors.JaxRuntimeError as error:
        message = str(error)
count = len(held)
held.clear()
again = jax.device_put(block).block_until_ready().nbytes
print(json.dumps({
    "version": jax.__version__, "platform": jax.devices()[0].platform, "is_same": is_same, "count": count,
    "message": message, "pool": pool_bytes, "again": again, "block": BLOCK,
}))
"""

WITH_DEVICE_NODE = """
set -e
new=$(mktemp -d)
mount -t tmpfs tmpfs "$new"
for node in null zero full random urandom tty; do touch "$new/$node"; mount --bind "/dev/$node" "$new/$node"; done
for folder in shm pts; do mkdir "$new/$folder"; mount --bind "/dev/$folder" "$new/$folder"; done
ln -s /proc/self/fd "$new/fd"
touch "$new/nvidiactl" "$new/nvidia0"
mount --move "$new" /dev
exec "$@"
"""
"""JAX looks whether /dev/nvidia* exists before it tries CUDA; a container with a GPU has them, this machine does not."""


@pytest.fixture
def slice_() -> Iterator[PlainSlice]:
    directory = Path(tempfile.mkdtemp(prefix="pgpu-test-frameworks-", dir="/dev/shm"))
    yield PlainSlice(directory, limit_bytes=LIMIT_BYTES)
    shutil.rmtree(directory)


@pytest.fixture
def record() -> Record:
    """Keep a line of figures for the record that `make test-frameworks` writes."""
    path = os.environ.get("PGPU_FRAMEWORKS_RECORD")

    def append(line: str) -> None:
        if path is not None:
            with Path(path).open("a") as file:
                file.write(f"{line}\n")

    return append


class Framework:
    """One framework in a slice, which stops once after its first use of the GPU."""

    def __init__(self, slice_: PlainSlice, name: str, code: str, *words: str, runtime: str, **environment: str) -> None:
        self._slice = slice_
        preloads = (slice_.cuda_library, slice_.library, client_path("cudart", runtime))
        command = [str(framework_python(name)), "-c", code, *words]
        if name == "jax":
            as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
            command = ["unshare", *as_root, "--mount", "sh", "-c", WITH_DEVICE_NODE, "sh", *command]
        self._process = subprocess.Popen(
            command,
            env={**slice_.environment, "LD_PRELOAD": ":".join(map(str, preloads)), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def used_after_first_use(self) -> int:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line != "first\n":
            pytest.fail(self._process.communicate()[1])
        return self._slice.used_bytes()[0]

    def result(self) -> dict[str, Any]:
        standard_output, standard_error = self._process.communicate("\n")
        assert self._process.returncode == 0, standard_error
        result: dict[str, Any] = json.loads(standard_output.splitlines()[-1])
        return result


@pytest.mark.frameworks("torch")
@pytest.mark.parametrize(
    ("configuration", "backend", "lost_bytes"),
    [
        ("", "native", 0),
        ("expandable_segments:True", "native", 20 * MIB),
        ("backend:cudaMallocAsync", "cudaMallocAsync", 0),
    ],
    ids=["default", "expandable-segments", "cuda-malloc-async"],
)
def test_pytorch_fills_its_slice_is_refused_and_works_on(
    slice_: PlainSlice, record: Record, configuration: str, backend: str, lost_bytes: int
) -> None:
    framework = Framework(slice_, "torch", TORCH, runtime="libcudart.so.13", PYTORCH_ALLOC_CONF=configuration)
    report = framework.result()
    assert report["allocator"] == backend
    room = LIMIT_BYTES - CONTEXT_BYTES
    fitting = room // report["block"]
    assert fitting - 1 <= report["count"] <= fitting
    assert report["count"] * report["block"] >= room - report["block"] - lost_bytes
    assert (report["total"], report["properties_total"]) == (LIMIT_BYTES, LIMIT_BYTES)
    assert "out of memory" in report["message"]
    if backend == "native":
        assert "total capacity of 2.00 GiB" in report["message"]
    assert (report["free"][0], report["free"][2]) == (room, room)
    assert report["free"][1] < report["block"] + lost_bytes
    assert (report["is_same"], report["again"]) == (True, report["block"])
    assert slice_.peak_bytes()[0] <= LIMIT_BYTES
    assert slice_.used_bytes() == [0]
    record(f"PyTorch {report['version']}, {configuration or 'default'}: {show(slice_, report)}")


@pytest.mark.frameworks("torch")
def test_a_pytorch_program_leaves_a_neighbour_s_slice_alone(slice_: PlainSlice) -> None:
    with slice_.gpus.held(0, 20_000 * MIB):
        report = Framework(slice_, "torch", TORCH, runtime="libcudart.so.13").result()
    assert report["count"] == (LIMIT_BYTES - CONTEXT_BYTES) // report["block"]


@pytest.mark.frameworks("tensorflow")
def test_tensorflow_takes_what_its_own_rule_leaves_of_the_slice(slice_: PlainSlice, record: Record) -> None:
    framework = tensorflow(slice_, "default")
    used = framework.used_after_first_use()
    # gpu_device.cc: below 2 GiB free it leaves 225 MiB, and takes the rest.
    assert used == pytest.approx(LIMIT_BYTES - 225 * MIB, abs=8 * MIB)
    report = framework.result()
    check_refused_and_working_on(slice_, report)
    record(f"TensorFlow {report['version']}, take-all default: first use {used // MIB} MiB; {show(slice_, report)}")


@pytest.mark.frameworks("tensorflow")
def test_tensorflow_with_memory_growth_begins_small_and_ends_at_the_slice(slice_: PlainSlice, record: Record) -> None:
    framework = tensorflow(slice_, "growth")
    used = framework.used_after_first_use()
    assert used < CONTEXT_BYTES + 64 * MIB
    report = framework.result()
    check_refused_and_working_on(slice_, report)
    record(f"TensorFlow {report['version']}, memory growth: first use {used // MIB} MiB; {show(slice_, report)}")


@pytest.mark.frameworks("jax")
@pytest.mark.userns
def test_jax_takes_three_quarters_of_the_slice(slice_: PlainSlice, record: Record) -> None:
    framework = Framework(slice_, "jax", JAX, runtime="libcudart.so.12", JAX_PLATFORMS="cuda")
    used = framework.used_after_first_use()
    report = framework.result()
    assert report["platform"] == "gpu"
    assert report["pool"] == pytest.approx(LIMIT_BYTES * 3 // 4, abs=2 * MIB)
    assert used >= CONTEXT_BYTES + report["pool"]
    assert "RESOURCE_EXHAUSTED" in report["message"]
    check_refused_and_working_on(slice_, report)
    record(f"JAX {report['version']}, take 75 % default: first use {used // MIB} MiB; {show(slice_, report)}")


def tensorflow(slice_: PlainSlice, mode: str) -> Framework:
    # TensorFlow opens NVIDIA's libraries by name; its wheels put them where the linker does not look.
    site = next(framework_python("tensorflow").parents[1].glob("lib/python*/site-packages"))
    libraries = ":".join(str(path) for path in sorted(site.glob("nvidia/*/lib")))
    return Framework(slice_, "tensorflow", TENSORFLOW, mode, runtime="libcudart.so.12", LD_LIBRARY_PATH=libraries)


def check_refused_and_working_on(slice_: PlainSlice, report: dict[str, Any]) -> None:
    assert report["is_same"] is True
    assert report["message"] is not None
    assert 0 < report["count"] * report["block"] <= LIMIT_BYTES - CONTEXT_BYTES
    assert report["again"] == report["block"]
    assert slice_.peak_bytes()[0] <= LIMIT_BYTES
    assert slice_.used_bytes() == [0]


def show(slice_: PlainSlice, report: dict[str, Any]) -> str:
    held = report["count"] * report["block"] // MIB
    peak = slice_.peak_bytes()[0] // MIB
    return f"slice {LIMIT_BYTES // MIB} MiB, held {held} MiB in blocks until refused, peak with context {peak} MiB"
