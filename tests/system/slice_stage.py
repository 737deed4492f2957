"""A simulated GPU and slices of it, without ledger, queue or supervisor: what enforcement and runtimes do together."""

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pgpu.app.throwaway_jobs import run_throwaway
from pgpu.enforcement.shim import ShimEnforcer
from pgpu.gpu.catalog import parse_model
from pgpu.gpu.nvml import NvmlSource
from pgpu.gpu.simulated import start_simulated
from pgpu.libraries import SIMULATED_CUDA, SIMULATED_NVML, library_path
from pgpu.model import Delivery, Gpu, Job, JobSpec, JobState, Lease, Request, Slice
from pgpu.runtimes import Runtime

MIB = 1 << 20
SLICE_BYTES = 1024 * MIB
MODEL = "RTX 3090"


@dataclass(frozen=True)
class Stage:
    """One simulated GPU on a tmpfs."""

    directory: Path
    gpus: Sequence[Gpu]
    enforcer: ShimEnforcer
    source: NvmlSource

    def job(
        self,
        command: Sequence[str],
        *,
        runtime: Literal["process", "docker"] = "process",
        is_advisory: bool = False,
        memory_bytes: int = SLICE_BYTES,
        **spec: Any,
    ) -> Job:
        """Return a job that was granted a slice of each GPU."""
        job_id = uuid.uuid4().hex[:12]
        slices = tuple(Slice(gpu.uuid, memory_bytes) for gpu in self.gpus)
        return Job(
            id=job_id,
            spec=JobSpec(command=tuple(command), runtime=runtime, **spec),
            request=Request(memory_bytes, len(slices)),
            state=JobState.STARTING,
            created_at_seconds=0.0,
            lease=Lease(job_id, slices, 0.0, "shim", is_advisory),
        )

    @contextlib.contextmanager
    def prepared(self, job: Job) -> Iterator[Delivery]:
        """Make a job's slice and remove it."""
        assert job.lease is not None
        try:
            yield self.enforcer.prepare(job, self.gpus)
        finally:
            self.enforcer.release(job.lease)

    def output(self, runtime: Runtime, job: Job) -> str:
        """Run a job to its end inside a slice of its own and return what it wrote."""
        with self.prepared(job) as delivery:
            return run_throwaway(runtime, job, delivery)


@contextlib.contextmanager
def opened_stage(gpu_count: int = 1, *, context_bytes: int | None = None) -> Iterator[Stage]:
    """Make simulated GPUs and remove them; everybody may read below the stage, as on a machine's own driver."""
    directory = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="pgpu-test-"))
    directory.chmod(0o755)
    try:
        model, _ = parse_model(MODEL)
        state = directory / "simgpu"
        start_simulated(state, model, gpu_count)
        source = NvmlSource(state)
        charged_bytes = model.context_bytes if context_bytes is None else context_bytes
        enforcer = ShimEnforcer(directory, lambda _: charged_bytes, state)
        yield Stage(directory, source.gpus(), enforcer, source)
    finally:
        shutil.rmtree(directory)


def install_driver(stage: Stage) -> Path:
    """Put the simulated driver where a machine's own driver would lie for all to find; returns that directory."""
    directory = stage.directory / "driver"
    directory.mkdir()
    for name in (SIMULATED_CUDA, SIMULATED_NVML):
        shutil.copy(library_path(name), directory)
    (directory / "libcuda.so").symlink_to("libcuda.so.1")
    return directory
