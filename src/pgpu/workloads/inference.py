"""P1's job: classify images with a network whose framework lets its memory grow.

Follows the observed behaviour of TensorFlow with `set_memory_growth` (P1):

1. The context and the framework's first pool are allocated when the framework is loaded, the workspace of the CUDA libraries
   at the first batch: 1,050 of 1,205 MiB are allocated before the first batch runs, so 23 jobs can start on 24,265 MiB.
2. If the workspace is refused, the libraries cannot initialise for the life of the process. The host part goes on, batch after
   batch, while the process holds its memory without using it; then it ends with exit code 1.
3. The pool grows to the rest in steps, later. A refused step is repeated at the next batch, and the current batch runs in two
   halves, since the workspace for a whole one is missing.

Inputs and outputs are really copied, and the outputs are checked if kernels compute on the device.
"""

from __future__ import annotations

import argparse
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

from pgpu.workloads.cuda_driver import CudaError
from pgpu.workloads.workload_run import MIB, WorkloadError, WorkloadRun, wait_seconds, whole_granules

PIXELS = 28 * 28
CLASSES = 10

JOB_MIB = 1205
"""Memory of one job in P1, context included."""
STARTUP_MIB = 1050
"""The part that is allocated before the first batch: 23 jobs can start in 24,265 MiB, and 24 cannot (P1)."""
LIBRARIES_MIB = 156
"""The part of it that CUDA libraries allocate outside the framework's pool.

P2's 22,885 MiB are TensorFlow's pool of 24,265 − 1,536 MiB and these.
"""
STEP_BYTES = 32 * MIB
FIRST_GROWTH_FRACTION = 0.5
"""Share of the batches before the pool grows; P1's jobs grow after all have started."""
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class InferencePlan:
    memory_bytes: int
    """Context included."""

    batches: int
    batch_size: int
    gpu_seconds: float
    """GPU time of a batch beside the dense layer, for the rest of the network."""

    host_seconds: float
    """Host time of a batch; waited and not computed, so that 25 jobs do not need 25 cores."""

    load_seconds: float
    """Host time between loading the framework and the first batch, for reading the data set."""

    @property
    def libraries_bytes(self) -> int:
        """Workspace of the CUDA libraries."""
        return whole_granules(self.memory_bytes * LIBRARIES_MIB // JOB_MIB)

    def first_pool_bytes(self, context_bytes: int) -> int:
        """Return the framework's first pool: the start-up's memory less context and libraries."""
        startup_bytes = self.memory_bytes * STARTUP_MIB // JOB_MIB
        return whole_granules(startup_bytes - context_bytes - self.libraries_bytes)

    def growth_bytes(self, held_bytes: int) -> Iterator[int]:
        """Yield the growth steps after the start-up."""
        missing_bytes = whole_granules(self.memory_bytes - held_bytes)
        while missing_bytes:
            step_bytes = min(STEP_BYTES, missing_bytes)
            missing_bytes -= step_bytes
            yield step_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batches", type=int, default=1875, help="batches to classify (1875 × 32 are P1's 60,000)")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a batch")
    parser.add_argument("--gpu-ms", type=float, default=0.3, help="GPU time of a batch, in milliseconds")
    parser.add_argument("--host-ms", type=float, default=4.2, help="host time of a batch, waited, in milliseconds")
    parser.add_argument("--load-ms", type=float, default=0.0, help="host time before the first batch, in milliseconds")


def run(arguments: argparse.Namespace) -> int:
    """Classify all batches and report; return the exit code."""
    plan = InferencePlan(
        memory_bytes=arguments.memory,
        batches=arguments.batches,
        batch_size=arguments.batch_size,
        gpu_seconds=arguments.gpu_ms / 1000,
        host_seconds=arguments.host_ms / 1000,
        load_seconds=arguments.load_ms / 1000,
    )
    this = WorkloadRun("inference")
    try:
        network = _start_up(this, plan)
    except CudaError as error:
        if not error.is_out_of_memory:
            raise
        for _ in range(plan.batches):
            wait_seconds(plan.host_seconds)
        message = f"CUDA libraries failed to initialise: {error}"
        this.finish(error=message, batches=0, growth_refusals=0, computed=None)
        raise WorkloadError(message) from error
    _classify_all(network, plan)
    this.finish(batches=plan.batches, growth_refusals=this.memory.refusals, computed=network.is_computed)
    return 0


def _start_up(this: WorkloadRun, plan: InferencePlan) -> _Network:
    first_pool_bytes = plan.first_pool_bytes(this.context.context_bytes)
    if first_pool_bytes < _Network.buffer_bytes(plan.batch_size):
        raise WorkloadError(f"--memory leaves no room: the context alone takes {this.context.context_bytes // MIB} MiB")
    pool = this.memory.take(first_pool_bytes)
    wait_seconds(plan.load_seconds)
    # At the first batch, after the data set is read: other jobs may have taken the memory meanwhile.
    this.memory.take(plan.libraries_bytes)
    return _Network(this, pool, plan.batch_size)


def _classify_all(network: _Network, plan: InferencePlan) -> None:
    memory = network.run.memory
    steps = list(plan.growth_bytes(memory.held_bytes))
    for batch in range(plan.batches):
        wait_seconds(plan.host_seconds)
        is_whole = True
        if steps and batch >= plan.batches * FIRST_GROWTH_FRACTION:
            is_whole = memory.try_take(steps[0])
            steps = steps[is_whole:]
        network.classify(batch, plan.gpu_seconds, pieces=1 if is_whole else 2)


class _Network:
    """A dense layer in the framework's pool, and a spin kernel in place of the other layers."""

    def __init__(self, this: WorkloadRun, pool: int, batch_size: int) -> None:
        self.run = this
        self._batch_size = batch_size
        self._inputs_address = pool
        self._weights_address = pool + batch_size * PIXELS * FLOAT_BYTES
        self._outputs_address = self._weights_address + PIXELS * CLASSES * FLOAT_BYTES
        self._elapsed_address = self._outputs_address + batch_size * CLASSES * FLOAT_BYTES
        self._weights = array("f", ((i * 7 + c * 3) % 5 - 2 for i in range(PIXELS) for c in range(CLASSES)))
        self._images = [array("f", ((odd + i) % 2 for i in range(batch_size * PIXELS))) for odd in (0, 1)]
        self.run.check_round_trip(self._weights_address, self._weights)
        self.is_computed = self.run.kernels.compute_here(self._elapsed_address)

    @staticmethod
    def buffer_bytes(batch_size: int) -> int:
        """Return an upper bound of the buffers of one batch."""
        return (batch_size * (PIXELS + CLASSES) + PIXELS * CLASSES) * FLOAT_BYTES + MIB

    def classify(self, batch: int, gpu_seconds: float, *, pieces: int) -> None:
        """Run one batch in equal pieces; each takes the time of a whole batch, since small batches do not fill a GPU."""
        inputs = self._images[batch % 2]
        self.run.device.write(self._inputs_address, inputs)
        most_rows = -(-self._batch_size // pieces)
        for first in range(0, self._batch_size, most_rows):
            piece = self._inputs_address + first * PIXELS * FLOAT_BYTES
            results = self._outputs_address + first * CLASSES * FLOAT_BYTES
            rows = min(most_rows, self._batch_size - first)
            self.run.kernels.dense(piece, self._weights_address, results, rows=rows, inner=PIXELS, columns=CLASSES)
            self.run.kernels.spin(gpu_seconds, self._elapsed_address)
        outputs = array("f", bytes(self._batch_size * CLASSES * FLOAT_BYTES))
        self.run.device.read(self._outputs_address, outputs)
        if self.is_computed:
            self._check(inputs, outputs)

    def _check(self, inputs: array[float], outputs: array[float]) -> None:
        """Compare the last row with the host's result; the values are small whole numbers, so the sums are exact."""
        row = inputs[-PIXELS:]
        expected = [sum(row[i] * self._weights[i * CLASSES + c] for i in range(PIXELS)) for c in range(CLASSES)]
        if list(outputs[-CLASSES:]) != expected:
            raise WorkloadError("the GPU's dense layer and the host's differ")
