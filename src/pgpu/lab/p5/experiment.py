"""P5: a function that loads its model in each call, and the callable object that loads it once.

Both are served by the same replica and worker, so only their structure differs; a process for each request is measured beside
them. A response time is measured over the function's Unix socket and one persistent connection, from the first byte of the request
to the last of the response. The GPU function runs on a simulated GPU only, where kernels take modelled time: its times are in a
table of their own, and no ratio is computed from them.

P5: Hwang and others, KETI, 2019, on Kubernetes.
"""

import http.client
import os
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import linear_regression
from typing import BinaryIO, Literal

from pgpu.errors import NodeError
from pgpu.functions.dev.dev_session import DevReplica, replica_command, socket_directory
from pgpu.lab import report
from pgpu.lab.outcomes import last_line
from pgpu.lab.p5 import network
from pgpu.lab.p5.network import SHAPES, DetectorShape
from pgpu.lab.report import Cell, Report, Table
from pgpu.lab.testbed import Testbed
from pgpu.palette import LIGHT
from pgpu.structs import Struct, to_builtins
from pgpu.units import GIB, MIB


class P5Row(Struct, frozen=True):
    """Response time of 100 requests to an SSD detector in TensorFlow, as one kind of function."""

    kind: Literal["cpu", "gpu"]
    before_seconds: float
    """Mean, where each call declared the model and loaded its weights."""

    before_deviation_seconds: float
    after_seconds: float
    """Mean of the callable object, which does so once."""

    after_deviation_seconds: float


# Source: P5.
P5_TABLE = (
    P5Row("cpu", 1.87, 1.062, 0.26, 0.012),
    P5Row("gpu", 56.55, 150.710, 0.02, 0.001),
)


# Requests before the first measured one.
WARM_REQUESTS = 3

# P5's CPU function: 1.87 s before, 0.26 s after.
WANTED_RATIO = 7.0

# P5's CPU function after: 0.012 of 0.26 s.
WANTED_DEVIATION = 0.05

_BEFORE, _AFTER, _PROCESS = "load in each call", "callable object", "process for each request"
_PACKAGE = "pgpu.lab.p5"
_SLICE_BYTES = 2 * GIB
_NEVER = threading.Event()


_DEADLINE_SECONDS = 120.0
_POLL_SECONDS = 0.02


class P5Plan(Struct, frozen=True):
    requests: int = 100
    """Measured requests of each kind."""

    networks: tuple[str, ...] = ("wide",)
    """Names in `SHAPES`; the GPU function uses the first."""

    seed: int = network.SEED
    """Of the weights and of the image."""

    with_gpu: bool = True

    rest_seconds: float = 0.01
    """Pause between two requests: the kernel throttles a process that never idles, even a real-time one."""


class Measured(Struct, frozen=True):
    """Measured requests to one function in one structure."""

    kind: str
    """`cpu` or `gpu`."""

    shape: DetectorShape
    structure: str
    seconds: tuple[float, ...]
    """Response times."""

    whole_seconds: float
    """From the start of its replica, or of its first process, to the last response: warm requests and pauses included."""

    start_up_seconds: float | None
    """From the start of its replica until it is ready for requests, its constructor included; None for processes, whose response
    times contain it."""

    @property
    def mean_seconds(self) -> float:
        return statistics.fmean(self.seconds)

    @property
    def deviation_seconds(self) -> float:
        """Standard deviation of a sample."""
        return statistics.stdev(self.seconds)

    @property
    def deviation_of_mean(self) -> float:
        """Standard deviation as a part of the mean."""
        return self.deviation_seconds / self.mean_seconds


class Served(Struct, frozen=True):
    """A function and the command that serves it."""

    app: str
    """`MODULE:ATTRIBUTE`."""

    arguments: Mapping[str, str]
    """Of its constructor."""

    prefix: tuple[str, ...] = ()
    """Words before the replica's command, such as `pgpu run`."""

    environment: Mapping[str, str] | None = None
    """None for this process's own."""

    def start(self, log: BinaryIO) -> DevReplica:
        """Start its replica, which writes to a log."""
        directory = socket_directory()
        front = replica_command(self.app, directory, directory, {"arguments": dict(self.arguments)})
        process = subprocess.Popen(
            (*self.prefix, *front), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        return DevReplica(process, directory)


class FunctionConnection:
    """One connection to a function."""

    def __init__(self, path: Path) -> None:
        # `http.client` has no Unix sockets, but uses a socket that is connected already.
        self._connection = http.client.HTTPConnection("localhost")
        self._connection.sock = socket.socket(socket.AF_UNIX)
        self._connection.sock.settimeout(_DEADLINE_SECONDS)
        self._connection.sock.connect(str(path))

    def seconds_of(self, body: bytes) -> float:
        """Send a request and return the time until the last byte of its response.

        Raises:
            NodeError: The call failed.
        """
        headers = {"Content-Type": "application/octet-stream"}
        began_seconds = time.perf_counter()
        self._connection.request("POST", "/", body, headers)
        reply = self._connection.getresponse()
        answer = reply.read()
        seconds = time.perf_counter() - began_seconds
        if reply.status != http.HTTPStatus.OK:
            raise NodeError(f"a function answered {reply.status}: {answer[:200].decode(errors='replace')}")
        return seconds

    def close(self) -> None:
        self._connection.close()


@contextmanager
def serve(served: Served) -> Iterator[FunctionConnection]:
    """Start a replica, wait until it is ready, and end it with the block.

    Raises:
        NodeError: It did not become ready.
    """
    with tempfile.TemporaryFile() as log:
        replica = served.start(log)
        try:
            deadline_seconds = time.monotonic() + _DEADLINE_SECONDS
            while not replica.is_ready():
                if replica.is_failed or time.monotonic() > deadline_seconds:
                    log.seek(0)
                    line = last_line(log.read().decode(errors="replace"))
                    raise NodeError(f"a function did not become ready: {line or 'no output'}")
                time.sleep(_POLL_SECONDS)  # noqa: TID251 - a replica sends no event that it is ready
            with closing(FunctionConnection(replica.http_socket)) as caller:
                yield caller
        finally:
            replica.end()


def seconds_of_process(
    module: str, words: Sequence[str], body: bytes, environment: Mapping[str, str] | None = None
) -> float:
    """Start a process for one request and return its run time.

    Raises:
        NodeError: It failed.
    """
    began_seconds = time.perf_counter()
    done = subprocess.run(
        (sys.executable, "-m", module, *words),
        env=environment or os.environ,
        input=body,
        capture_output=True,
        check=False,
    )
    seconds = time.perf_counter() - began_seconds
    if done.returncode != 0:
        raise NodeError(f"a process for one request failed: {last_line(done.stderr.decode(errors='replace'))}")
    return seconds


def run(bed: Testbed, plan: P5Plan, directory: Path) -> Report:
    """Measure all functions and write tables and figures.

    Raises:
        NodeError: onnx, ONNX Runtime or matplotlib is missing, or a function failed.
    """
    report.require_plotting()
    network.require_onnx()
    with tempfile.TemporaryDirectory(prefix="pgpu-p5-") as place:
        cpu = [each for name in plan.networks for each in _measure_cpu(bed, plan, SHAPES[name], Path(place))]
        gpu = _measure_gpu(bed, plan, SHAPES[plan.networks[0]], Path(place))
    return _report(bed, plan, directory, cpu, gpu)


def _measure_cpu(bed: Testbed, plan: P5Plan, shape: DetectorShape, place: Path) -> list[Measured]:
    weights = network.write(shape, place / f"{shape.name}.onnx", seed=plan.seed)
    arguments = {"weights": str(weights)}
    image = _image(plan, shape)
    found = []
    for structure, name in ((_AFTER, "Detector"), (_BEFORE, "DetectorBefore")):
        served = Served(f"{_PACKAGE}.detector:{name}", arguments)
        bed.progress(f"cpu, {shape.name}: {structure}, {plan.requests} requests")
        found.append(Measured("cpu", shape, structure, *_measure(served, image, plan)))
    bed.progress(f"cpu, {shape.name}: {_PROCESS}")
    alone = _measure_processes(lambda: seconds_of_process(f"{_PACKAGE}.detector", (str(weights),), image), plan)
    return [found[1], Measured("cpu", shape, _PROCESS, *alone), found[0]]


def _measure_gpu(bed: Testbed, plan: P5Plan, shape: DetectorShape, place: Path) -> list[Measured]:
    """Measure the simulated GPU function, in a slice; empty on a real GPU."""
    if not (plan.with_gpu and bed.is_simulated):
        return []
    layers = str(network.write_layers(shape, place / f"{shape.name}.json"))
    arguments = {"weights": str(place / f"{shape.name}.onnx"), "layers": layers}
    prefix = bed.pgpu_command(("run", "--memory", f"{_SLICE_BYTES // MIB}MiB", "--"))
    image = _image(plan, shape)
    found = []
    for structure, name in ((_AFTER, "GpuDetector"), (_BEFORE, "GpuDetectorBefore")):
        served = Served(f"{_PACKAGE}.gpu_detector:{name}", arguments, prefix, bed.pgpu_environment())
        bed.progress(f"gpu (simulated), {shape.name}: {structure}, {plan.requests} requests")
        found.append(Measured("gpu", shape, structure, *_measure(served, image, plan)))
    bed.progress(f"gpu (simulated), {shape.name}: {_PROCESS}")
    module, words = f"{_PACKAGE}.gpu_detector", tuple(arguments.values())
    alone = _measure_processes(lambda: seconds_of_process(module, words, image, bed.bare_environment()), plan)
    return [found[1], Measured("gpu", shape, _PROCESS, *alone), found[0]]


def _image(plan: P5Plan, shape: DetectorShape) -> bytes:
    return random.Random(plan.seed).randbytes(shape.pixels**2 * 3)  # noqa: S311 - any picture will do


def _measure(served: Served, image: bytes, plan: P5Plan) -> tuple[tuple[float, ...], float, float]:
    """Return the response times of a function, its whole time and its start-up."""
    began_seconds = time.monotonic()
    with serve(served) as caller:
        start_up_seconds = time.monotonic() - began_seconds
        seconds = _times(lambda: caller.seconds_of(image), plan)
        return seconds, time.monotonic() - began_seconds, start_up_seconds


def _measure_processes(send: Callable[[], float], plan: P5Plan) -> tuple[tuple[float, ...], float, None]:
    """Return the response times of processes, a request each, and their whole time."""
    began_seconds = time.monotonic()
    seconds = _times(send, plan)
    return seconds, time.monotonic() - began_seconds, None


def _times(send: Callable[[], float], plan: P5Plan) -> tuple[float, ...]:
    for _ in range(WARM_REQUESTS):
        send()
    seconds = []
    for _ in range(plan.requests):
        _NEVER.wait(plan.rest_seconds)
        seconds.append(send())
    return tuple(seconds)


def _report(bed: Testbed, plan: P5Plan, directory: Path, cpu: Sequence[Measured], gpu: Sequence[Measured]) -> Report:
    table = Table(
        f"P5: CPU function, {plan.requests} requests", _COLUMNS, tuple(comparison_rows(cpu, is_compared=True))
    )
    title = f"P5: GPU function on a simulated GPU, {plan.requests} requests: no ratio is drawn"
    further = (Table(title, _COLUMNS, tuple(comparison_rows(gpu, is_compared=False))),) if gpu else ()
    return Report(
        experiment="p5",
        device=bed.device_name,
        is_simulated=bed.is_simulated,
        runtime=bed.runtime,
        settings={**to_builtins(plan), "cpu": _processor(), "cores": os.cpu_count()},
        table=table,
        findings=tuple(findings(cpu, gpu)),
        files=tuple(_files(bed, directory, (table, *further), [*cpu, *gpu])),
        further=further,
    )


_COLUMNS = (
    *("network", "weights MB", "structure", "P5 mean s", "P5 sd s", "mean s", "sd s", "sd % of mean"),
    *("start-up s", "whole s", "before / this"),
)


def comparison_rows(all_measured: Sequence[Measured], *, is_compared: bool) -> Iterator[tuple[Cell, ...]]:
    """Yield a row of the table for each; with `is_compared`, with the ratio to the structure before."""
    for each in all_measured:
        row = next(row for row in P5_TABLE if row.kind == each.kind)
        figures: dict[str, tuple[Cell, Cell]] = {
            _BEFORE: (row.before_seconds, row.before_deviation_seconds),
            _AFTER: (row.after_seconds, row.after_deviation_seconds),
        }
        of_paper = figures.get(each.structure, (None, None))
        yield (
            *(each.shape.name, round(each.shape.weights_bytes / 1e6), each.structure, *of_paper),
            *(round(each.mean_seconds, 5), round(each.deviation_seconds, 5), round(each.deviation_of_mean * 100, 1)),
            *map(report.rounded, (each.start_up_seconds, each.whole_seconds)),
            round(_before(each, all_measured).mean_seconds / each.mean_seconds, 1) if is_compared else None,
        )


def _before(one: Measured, all_measured: Sequence[Measured]) -> Measured:
    return next(each for each in all_measured if each.shape == one.shape and each.structure == _BEFORE)


def findings(cpu: Sequence[Measured], gpu: Sequence[Measured]) -> Iterator[str]:
    for each in cpu:
        if each.structure == _AFTER:
            ratio = _before(each, cpu).mean_seconds / each.mean_seconds
            yield (
                f"cpu, {each.shape.name}: the callable object is {ratio:.1f} times faster (P5: 7.2; wanted: "
                f"{WANTED_RATIO:g}), its standard deviation is {each.deviation_of_mean:.1%} of its mean "
                f"(P5: 4.6 %; wanted: {WANTED_DEVIATION:.0%} or less)"
            )
    yield ("the ratio is one more than loading takes in calls: it is large where weights are many and a call is short")
    if gpu:
        yield "gpu: real bytes of the weights, modelled kernels and copies; these times are no measurement of a GPU"


def _processor() -> str:
    """Return the name of the CPU that the CPU function ran on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _files(bed: Testbed, directory: Path, tables: Sequence[Table], all_measured: Sequence[Measured]) -> Iterator[Path]:
    for name, table in zip(("p5-table.csv", "p5-gpu-table.csv"), tables, strict=False):
        yield report.write_table(table, directory / name)
    rows = tuple(
        (each.kind, each.shape.name, each.structure, number, round(seconds, 6))
        for each in all_measured
        for number, seconds in enumerate(each.seconds, start=1)
    )
    columns = ("function", "network", "structure", "request", "seconds")
    yield report.write_table(Table("requests", columns, rows), directory / "p5-requests.csv")
    for kind, shape in dict.fromkeys((each.kind, each.shape) for each in all_measured):
        series = [(each.structure, each.seconds) for each in all_measured if (each.kind, each.shape) == (kind, shape)]
        note = _processor() if kind == "cpu" else report.caption(bed)
        row = next(row for row in P5_TABLE if row.kind == kind)
        paper = [("P5's mean before", row.before_seconds), ("P5's mean after", row.after_seconds)]
        title = f"P5: response time of each request, {kind.upper()} function, {shape.name}\n{note}"
        yield _draw_response_times(series, paper, directory / f"p5-{kind}-{shape.name}.png", title)


def _draw_response_times(
    series: Sequence[tuple[str, Sequence[float]]], paper: Sequence[tuple[str, float]], path: Path, title: str
) -> Path:
    """Draw P5's figure: response time of each request with its trend, beside the paper's means."""
    with report.open_figure(path, title, "request", "seconds") as axes:
        for name, seconds in series:
            places = range(1, len(seconds) + 1)
            (line,) = axes.plot(places, seconds, "o", markersize=3, label=name)
            slope, first = linear_regression(places, seconds)
            axes.plot(places, [first + slope * place for place in places], "--", color=line.get_color())
        for name, mean in paper:
            axes.axhline(mean, color=LIGHT.muted, linestyle=":")
            axes.annotate(name, (1, mean), color=LIGHT.muted, va="bottom")
        axes.set_yscale("log")
    return path
