"""A program in a slice, as a container has it, that holds a context of the GPU until it is killed."""

import contextlib
import os
import uuid
from collections.abc import Iterator

from pgpu.model import Delivery, Job, JobSpec, JobState, Lease, Request, Slice
from pgpu.runtimes import RunningJob, Stdio
from pgpu.runtimes.process_runtime import ProcessRuntime


@contextlib.contextmanager
def holder_in(delivery: Delivery) -> Iterator[RunningJob]:
    """Run one until the block ends; it holds its context once its slice's meter counts a process."""
    spec = JobSpec(("/.pgpu/pgpu-probe", "hold"), "process", working_directory="/")
    job_id = uuid.uuid4().hex[:12]
    lease = Lease(job_id, tuple(Slice(gpu_uuid, 1) for gpu_uuid in delivery.gpu_uuids), 0.0)
    job = Job(job_id, spec, Request(1), JobState.STARTING, 0.0, lease=lease)
    reader, writer = os.pipe()
    with open(os.devnull, "w") as nowhere, os.fdopen(reader), os.fdopen(writer, "w"):  # noqa: PTH123 - devices
        stdio = Stdio(reader, nowhere.fileno(), nowhere.fileno())
        running = ProcessRuntime().start(job, delivery, stdio, lambda _: None)
        try:
            yield running
        finally:
            running.kill()
            running.close()
