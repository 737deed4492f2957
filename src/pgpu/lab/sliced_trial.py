"""Runs jobs with pgpu: all are submitted together, each asks for a slice, and the queue does the rest.

It refuses to order, delay or retry a job: that is what is being shown.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pgpu.client import Client
from pgpu.lab.device_sampler import sampled
from pgpu.lab.job_outcome import JobOutcome, Trial, last_line, last_result
from pgpu.lab.testbed import Testbed
from pgpu.model import Job, JobSpec, Request


@dataclass(frozen=True, slots=True)
class SlicedJob:
    """One job to submit."""

    name: str
    words: tuple[str, ...]
    """Of the workload."""

    memory_bytes: int
    """Of its slice."""

    oversubscribes: bool = False
    """Whether its memory may be moved to the host while others use the GPU."""


@dataclass(slots=True)
class _Watch:
    """Reads the device through the client, and each slice's most while it is there."""

    client: Client
    peak_bytes: dict[str, int] = field(default_factory=dict)

    def used_bytes(self) -> int:
        for report in self.client.jobs(include_final=False):
            seen = max((use.peak_bytes for use in report.use), default=0)
            self.peak_bytes[report.job.id] = max(seen, self.peak_bytes.get(report.job.id, 0))
        return self.client.gpus()[0].used_bytes


def run_sliced(stage: Testbed, jobs: Sequence[SlicedJob], *, repetition: int = 1) -> Trial:
    """Submit all jobs in the order given and wait for all.

    Args:
        stage: Where they run.
        jobs: In order of arrival.
        repetition: Which run of the same experiment this is.
    """
    watch = _Watch(stage.client)
    with sampled(watch.used_bytes) as samples:
        submitted = [stage.client.submit(_spec(stage, job), _request(job), wait_timeout_seconds=None) for job in jobs]
        with ThreadPoolExecutor(len(submitted)) as waiters:
            ended = list(waiters.map(lambda job: (stage.client.wait(job.id), time.time()), submitted))
    return Trial(
        is_with_pgpu=True,
        repetition=repetition,
        jobs=tuple(_outcome(stage.client, job, at, watch.peak_bytes.get(job.id)) for job, at in ended),
        device_memory_bytes=stage.device_memory_bytes,
        device_samples=tuple(samples),
    )


def _request(job: SlicedJob) -> Request:
    return Request(job.memory_bytes, oversubscribes=job.oversubscribes)


def _spec(stage: Testbed, job: SlicedJob) -> JobSpec:
    return JobSpec(
        command=stage.workload(job.words),
        runtime=stage.runtime,
        image=stage.image if stage.runtime == "docker" else None,
        name=job.name,
    )


def _outcome(client: Client, job: Job, seen_at_seconds: float, peak_bytes: int | None) -> JobOutcome:
    texts = {"stdout": b"", "stderr": b""}
    for stream, chunk in client.logs(job.id, follow=False):
        texts[stream] += chunk
    return JobOutcome(
        name=str(job.spec.name),
        submitted_at_seconds=job.created_at_seconds,
        ended_at_seconds=job.finished_at_seconds or seen_at_seconds,
        exit_code=job.exit_code,
        result=last_result(texts["stdout"].decode(errors="replace")),
        complaint=job.error or last_line(texts["stderr"].decode(errors="replace")),
        slice_peak_bytes=peak_bytes,
    )
