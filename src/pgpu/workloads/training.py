"""P2's job: train a small classifier with a framework that allocates nearly all visible memory.

Follows TensorFlow's rule: one allocation of the memory that cuMemGetInfo reports as free, less a reserve for the system that
depends on the GPU's generation. `--grow`, or TensorFlow's variable TF_FORCE_GPU_ALLOW_GROWTH=true, allocates only the memory that
the training needs. If kernels compute on the device, the loss must fall.
"""

from __future__ import annotations

import argparse
import os
import random
from array import array
from dataclasses import dataclass

from pgpu.workloads.inference import CLASSES, FLOAT_BYTES, LIBRARIES_MIB, PIXELS, STEP_BYTES
from pgpu.workloads.workload_run import MIB, WorkloadError, WorkloadRun, wait_seconds, whole_granules

_SMALL_DEVICE_BYTES = 2048 * MIB
_SYSTEM_BYTES_WHEN_SMALL = 225 * MIB
_SYSTEM_BYTES_BY_COMPUTE_MAJOR = {6: 500 * MIB, 7: 1050 * MIB, 8: 1536 * MIB}
_SYSTEM_BYTES_NEWEST = 1800 * MIB
_LEARNING_RATE = 0.1


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    needs_bytes: int
    """Memory that it uses, context included; P2's MNIST job needs 1,205 MiB."""

    epochs: int
    batches_per_epoch: int
    batch_size: int
    gpu_seconds: float
    host_seconds: float
    may_grow: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=5, help="epochs")
    parser.add_argument("--batches", type=int, default=1875, help="batches in an epoch")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a batch")
    parser.add_argument("--gpu-ms", type=float, default=0.3, help="GPU time of a batch, in milliseconds")
    parser.add_argument("--host-ms", type=float, default=4.2, help="host time of a batch, waited, in milliseconds")
    parser.add_argument(
        "--grow",
        action="store_true",
        default=os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true",
        help="take memory as needed; also with TF_FORCE_GPU_ALLOW_GROWTH=true",
    )


def system_reserve_bytes(free_bytes: int, compute_major: int) -> int:
    """Return the memory that TensorFlow leaves free.

    Source: TensorFlow, `MinSystemMemory` in core/common_runtime/gpu/gpu_device.cc.
    """
    if free_bytes < _SMALL_DEVICE_BYTES:
        return _SYSTEM_BYTES_WHEN_SMALL
    return _SYSTEM_BYTES_BY_COMPUTE_MAJOR.get(max(compute_major, 6), _SYSTEM_BYTES_NEWEST)


def run(arguments: argparse.Namespace) -> int:
    """Train and report; return the exit code."""
    plan = TrainingPlan(
        needs_bytes=arguments.memory,
        epochs=arguments.epochs,
        batches_per_epoch=arguments.batches,
        batch_size=arguments.batch_size,
        gpu_seconds=arguments.gpu_ms / 1000,
        host_seconds=arguments.host_ms / 1000,
        may_grow=arguments.grow,
    )
    this = WorkloadRun("training")
    pool, used_bytes = _take_pool(this, plan)
    this.memory.take(whole_granules(LIBRARIES_MIB * MIB))
    model = _Model(this, pool, plan.batch_size)
    losses = []
    for _ in range(plan.epochs):
        total = 0.0
        for _ in range(plan.batches_per_epoch):
            wait_seconds(plan.host_seconds)
            total += model.step(plan.gpu_seconds)
        losses.append(total / plan.batches_per_epoch)
    if model.is_computed and plan.epochs > 1 and losses[-1] >= losses[0]:
        raise WorkloadError(f"the loss did not fall: {losses}")
    this.finish(
        used_bytes=used_bytes,
        may_grow=plan.may_grow,
        epochs=plan.epochs,
        losses=losses if model.is_computed else None,
        computed=model.is_computed,
    )
    return 0


def _take_pool(this: WorkloadRun, plan: TrainingPlan) -> tuple[int, int]:
    """Return the pool's address, and the part of all allocated memory that the training uses."""
    outside_bytes = this.context.context_bytes + LIBRARIES_MIB * MIB
    needed_bytes = whole_granules(plan.needs_bytes - outside_bytes)
    if plan.may_grow:
        # In steps up to what the training needs, as with `set_memory_growth`; otherwise at once all that is free.
        pool = this.memory.take(min(needed_bytes, STEP_BYTES))
        for _ in range(1, needed_bytes // STEP_BYTES):
            this.memory.take(STEP_BYTES)
        return pool, this.memory.held_bytes + LIBRARIES_MIB * MIB
    free_bytes, _ = this.device.memory_bytes()
    pool_bytes = whole_granules(free_bytes - system_reserve_bytes(free_bytes, this.device.compute_major))
    if pool_bytes < needed_bytes:
        raise WorkloadError(f"too little memory is free: {free_bytes // MIB} MiB, of which the system keeps a part")
    return this.memory.take(pool_bytes), outside_bytes + needed_bytes


class _Model:
    """Softmax regression on images whose class can be read from their pixels."""

    def __init__(self, this: WorkloadRun, pool: int, batch_size: int) -> None:
        self._run = this
        self._rows = batch_size
        sizes = (batch_size * PIXELS, PIXELS * CLASSES, batch_size * CLASSES, batch_size * CLASSES, batch_size * 2)
        starts = [pool + sum(sizes[:i]) * FLOAT_BYTES for i in range(len(sizes))]
        self._inputs, self._weights, self._logits, self._errors, self._labels = starts
        self._losses = self._labels + batch_size * FLOAT_BYTES
        self.is_computed = this.kernels.compute_here(self._logits)
        this.check_round_trip(self._weights, array("f", bytes(PIXELS * CLASSES * FLOAT_BYTES)))
        self._images = _images(batch_size)
        self._answers = array("i", (row % CLASSES for row in range(batch_size)))

    def step(self, gpu_seconds: float) -> float:
        """Train on one batch and return its mean loss; meaningless if kernels do not compute."""
        device, kernels, rows = self._run.device, self._run.kernels, self._rows
        device.write(self._inputs, self._images)
        device.write(self._labels, self._answers)
        kernels.dense(self._inputs, self._weights, self._logits, rows=rows, inner=PIXELS, columns=CLASSES)
        kernels.softmax_error(self._logits, self._labels, self._errors, self._losses, rows=rows, columns=CLASSES)
        kernels.descend(
            self._inputs, self._errors, self._weights, rate=_LEARNING_RATE, rows=rows, inner=PIXELS, columns=CLASSES
        )
        kernels.spin(gpu_seconds, self._logits)
        losses = array("f", bytes(rows * FLOAT_BYTES))
        device.read(self._losses, losses)
        return sum(losses) / rows


def _images(batch_size: int) -> array[float]:
    """Make noise in which a block of bright pixels marks the class."""
    noise = random.Random(0)  # noqa: S311 - test images, not secrets
    block = PIXELS // CLASSES
    return array(
        "f",
        (
            0.1 * noise.random() + (0.9 if i // block == row % CLASSES else 0.0)
            for row in range(batch_size)
            for i in range(PIXELS)
        ),
    )
