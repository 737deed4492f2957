"""P5: a function that loads its model in each call, and the callable object that loads it once.

Both are served by the same front and worker, so nothing but their structure differs; a process for each request stands
beside them. The GPU function is asked on a simulated GPU only, where kernels take modelled time: its times stand in a
table of their own and this module refuses to draw a ratio from them.
"""

import os
import platform
import random
import statistics
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pgpu.lab import plots, report
from pgpu.lab.p5 import network
from pgpu.lab.p5.response_times import Served, asked, seconds_of_process
from pgpu.lab.p5.shapes import SHAPES, Shape
from pgpu.lab.paper_figures import P5_TABLE
from pgpu.lab.report import Cell, Report, Table
from pgpu.lab.testbed import Testbed
from pgpu.units import GIB, MIB

WARM_REQUESTS = 3
"""Asked before the first that counts."""

WANTED_RATIO = 7.0
"""P5's CPU function: 1.87 s before, 0.26 s after."""

WANTED_DEVIATION = 0.05
"""P5's CPU function after: 0.012 of 0.26 s."""

_BEFORE, _AFTER, _PROCESS = "load in each call", "callable object", "process for each request"
_PACKAGE = "pgpu.lab.p5"
_SLICE_BYTES = 2 * GIB
_NEVER = threading.Event()


@dataclass(frozen=True, slots=True)
class P5Plan:
    """What to run."""

    requests: int = 100
    """Counted ones of each kind."""

    networks: tuple[str, ...] = ("wide",)
    """Names in `SHAPES`; the GPU function is asked with the first."""

    seed: int = network.SEED
    """Of the weights and of the image."""

    with_gpu: bool = True

    rest_seconds: float = 0.01
    """Between two requests: a core that is never idle is taken away from whoever has it, also from a real-time process."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests to one function in one structure."""

    kind: str
    """`cpu` or `gpu`."""

    shape: Shape
    structure: str
    seconds: tuple[float, ...]

    @property
    def mean_seconds(self) -> float:
        """Of a reply."""
        return statistics.fmean(self.seconds)

    @property
    def deviation_seconds(self) -> float:
        """Standard deviation of a sample."""
        return statistics.stdev(self.seconds)

    @property
    def deviation_of_mean(self) -> float:
        """Standard deviation as a part of the mean."""
        return self.deviation_seconds / self.mean_seconds


def run(stage: Testbed, plan: P5Plan, directory: Path) -> Report:
    """Ask all functions, write tables and figures, and report.

    Raises:
        NodeError: onnx, ONNX Runtime or matplotlib is missing, or a function failed.
    """
    plots.require_plotting()
    network.require_onnx()
    with tempfile.TemporaryDirectory(prefix="pgpu-p5-") as place:
        cpu = [each for name in plan.networks for each in _ask_cpu(stage, plan, SHAPES[name], Path(place))]
        gpu = _ask_gpu(stage, plan, SHAPES[plan.networks[0]], Path(place))
    return _report(stage, plan, directory, cpu, gpu)


def _ask_cpu(stage: Testbed, plan: P5Plan, shape: Shape, place: Path) -> list[Asked]:
    weights = network.write(shape, place / f"{shape.name}.onnx", seed=plan.seed)
    arguments = {"weights": str(weights)}
    image = _image(plan, shape)
    found = []
    for structure, name in ((_AFTER, "Detector"), (_BEFORE, "DetectorBefore")):
        served = Served(f"{_PACKAGE}.detector:{name}", arguments)
        stage.tell(f"cpu, {shape.name}: {structure}, {plan.requests} requests")
        found.append(Asked("cpu", shape, structure, _served(served, image, plan)))
    stage.tell(f"cpu, {shape.name}: {_PROCESS}")
    alone = _times(lambda: seconds_of_process(f"{_PACKAGE}.detector", (str(weights),), image), plan)
    return [found[1], Asked("cpu", shape, _PROCESS, alone), found[0]]


def _ask_gpu(stage: Testbed, plan: P5Plan, shape: Shape, place: Path) -> list[Asked]:
    """Ask the simulated GPU function, in a slice; nothing on a real GPU, where its kernels find nothing."""
    if not (plan.with_gpu and stage.is_simulated):
        return []
    layers = str(network.write_layers(shape, place / f"{shape.name}.json"))
    arguments = {"weights": str(place / f"{shape.name}.onnx"), "layers": layers}
    prefix = stage.pgpu_command(("run", "--memory", f"{_SLICE_BYTES // MIB}MiB", "--"))
    image = _image(plan, shape)
    found = []
    for structure, name in ((_AFTER, "GpuDetector"), (_BEFORE, "GpuDetectorBefore")):
        served = Served(f"{_PACKAGE}.gpu_detector:{name}", arguments, prefix, stage.pgpu_environment())
        stage.tell(f"gpu (simulated), {shape.name}: {structure}, {plan.requests} requests")
        found.append(Asked("gpu", shape, structure, _served(served, image, plan)))
    stage.tell(f"gpu (simulated), {shape.name}: {_PROCESS}")
    module, words = f"{_PACKAGE}.gpu_detector", tuple(arguments.values())
    alone = _times(lambda: seconds_of_process(module, words, image, stage.bare_environment()), plan)
    return [found[1], Asked("gpu", shape, _PROCESS, alone), found[0]]


def _image(plan: P5Plan, shape: Shape) -> bytes:
    return random.Random(plan.seed).randbytes(shape.pixels**2 * 3)  # noqa: S311 - any picture will do


def _served(served: Served, image: bytes, plan: P5Plan) -> tuple[float, ...]:
    with asked(served) as caller:
        return _times(lambda: caller.seconds_of(image), plan)


def _times(ask: Callable[[], float], plan: P5Plan) -> tuple[float, ...]:
    for _ in range(WARM_REQUESTS):
        ask()
    return tuple(_after_a_rest(ask, plan.rest_seconds) for _ in range(plan.requests))


def _after_a_rest(ask: Callable[[], float], rest_seconds: float) -> float:
    _NEVER.wait(rest_seconds)
    return ask()


def _report(stage: Testbed, plan: P5Plan, directory: Path, cpu: Sequence[Asked], gpu: Sequence[Asked]) -> Report:
    table = Table(f"P5: CPU function, {plan.requests} requests", _COLUMNS, tuple(compared(cpu, is_compared=True)))
    title = f"P5: GPU function on a simulated GPU, {plan.requests} requests: no ratio is drawn"
    further = (Table(title, _COLUMNS, tuple(compared(gpu, is_compared=False))),) if gpu else ()
    return Report(
        experiment="p5",
        device=stage.device_name,
        is_simulated=stage.is_simulated,
        runtime=stage.runtime,
        settings={**asdict(plan), "cpu": _processor(), "cores": os.cpu_count()},
        table=table,
        findings=tuple(findings(cpu, gpu)),
        files=tuple(_files(stage, directory, (table, *further), [*cpu, *gpu])),
        further=further,
    )


_COLUMNS = (
    *("network", "weights MB", "structure", "P5 mean s", "P5 sd s", "mean s", "sd s", "sd % of mean", "before / this"),
)


def compared(all_asked: Sequence[Asked], *, is_compared: bool) -> Iterator[tuple[Cell, ...]]:
    """Yield a row of the table for each; with `is_compared` how many times as long the structure before took."""
    for each in all_asked:
        yield (
            *(each.shape.name, round(each.shape.weights_bytes / 1e6), each.structure, *_of_paper(each)),
            *(round(each.mean_seconds, 5), round(each.deviation_seconds, 5), round(each.deviation_of_mean * 100, 1)),
            round(_before(each, all_asked).mean_seconds / each.mean_seconds, 1) if is_compared else None,
        )


def _of_paper(each: Asked) -> tuple[Cell, Cell]:
    row = next(row for row in P5_TABLE if row.kind == each.kind)
    figures: dict[str, tuple[Cell, Cell]] = {
        _BEFORE: (row.before_seconds, row.before_deviation_seconds),
        _AFTER: (row.after_seconds, row.after_deviation_seconds),
    }
    return figures.get(each.structure, (None, None))


def _before(one: Asked, all_asked: Sequence[Asked]) -> Asked:
    return next(each for each in all_asked if each.shape == one.shape and each.structure == _BEFORE)


def findings(cpu: Sequence[Asked], gpu: Sequence[Asked]) -> Iterator[str]:
    """Yield what the figures say."""
    for each in cpu:
        if each.structure == _AFTER:
            ratio = _before(each, cpu).mean_seconds / each.mean_seconds
            yield (
                f"cpu, {each.shape.name}: the callable object answers {ratio:.1f} times as soon (P5: 7.2; wanted: "
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


def _files(stage: Testbed, directory: Path, tables: Sequence[Table], all_asked: Sequence[Asked]) -> Iterator[Path]:
    for name, table in zip(("p5-table.csv", "p5-gpu-table.csv"), tables, strict=False):
        yield report.write_table(table, directory / name)
    rows = tuple(
        (each.kind, each.shape.name, each.structure, number, round(seconds, 6))
        for each in all_asked
        for number, seconds in enumerate(each.seconds, start=1)
    )
    columns = ("function", "network", "structure", "request", "seconds")
    yield report.write_table(Table("requests", columns, rows), directory / "p5-requests.csv")
    for kind, shape in dict.fromkeys((each.kind, each.shape) for each in all_asked):
        series = [(each.structure, each.seconds) for each in all_asked if (each.kind, each.shape) == (kind, shape)]
        note = _processor() if kind == "cpu" else report.caption(stage)
        row = next(row for row in P5_TABLE if row.kind == kind)
        paper = [("P5's mean before", row.before_seconds), ("P5's mean after", row.after_seconds)]
        title = f"P5: response time of each request, {kind.upper()} function, {shape.name}\n{note}"
        yield plots.response_times(series, paper, directory / f"p5-{kind}-{shape.name}.png", title)
