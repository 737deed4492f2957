"""A client with four GPUs and jobs whose use changes with each reading, as the view of `pgpu top` shows them."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.fakes.client import GPU, FakeClient

from pgpu.client import GpuReport, GpuTime, JobReport, QueueReport
from pgpu.enforcement import SliceUse
from pgpu.model import ANONYMOUS, GpuSensors, GpuSeries, Job, JobSpec, JobState, Lease, Request, SharingMode, Slice
from pgpu.structs import replace
from pgpu.units import GIB

_PROGRAMS = ("infer", "notebook", "bert", "train", "render")
_USERS = (65534, 1, 2)  # nobody, daemon and bin have names everywhere


@dataclass
class BusyClient(FakeClient):
    """24 running jobs, of which the last is another user's, and 6 waiting ones."""

    running: int = 24
    waiting: int = 6
    name: str = ""
    """Of all jobs, where it is not empty."""

    is_advisory: bool = False
    readings: int = 0
    now_seconds: float = field(default_factory=time.time)
    stopped: list[tuple[str, float]] = field(default_factory=list)
    resized: list[tuple[str, int | None, float | None]] = field(default_factory=list)

    def gpus(self, simulate: str | None = None) -> Sequence[GpuReport]:
        self.readings += 1
        return [self._gpu(index) for index in range(4)]

    def _gpu(self, index: int) -> GpuReport:
        parts = [(number, size) for number, size in enumerate(self._sizes()) if number % 4 == index]
        busy = round(50 + 45 * math.sin(self.readings / 9 + index))
        return GpuReport(
            replace(GPU, uuid=f"GPU-{index}", index=index),
            sum(round(size * _used(number, self.readings)) for number, size in parts),
            sum(size for _, size in parts),
            GPU.memory_bytes,
            "shim",
            "raw ioctl",
            busy,
            tuple(f"{number:012x}" for number, _ in parts),
            sensors=GpuSensors(32 + busy // 3, 28.0 + 3.2 * busy, 350.0, 1695 if busy > 40 else 210, 9751),
        )

    def _sizes(self) -> list[int]:
        return [(1, 2, 4, 3)[number % 5 % 4] * GIB for number in range(self.running)]

    def jobs(self, *, include_final: bool) -> Sequence[JobReport]:
        running = [self._running_report(number, size) for number, size in enumerate(self._sizes())]
        if running:
            running[-1] = _hidden(running[-1])
        return [*running, *(JobReport(self._waiting(number), ()) for number in range(self.waiting))]

    def _job(self, number: int, size: int) -> Job:
        program = _PROGRAMS[number % 5]
        return Job(
            f"{(number + 7) * 0x9E3779B97F4A7C15 % 2**48:012x}",
            JobSpec(
                ("python", f"{program}.py", "--seed", str(number)), "process", name=self.name or f"{program}-{number}"
            ),
            Request(size, compute_share=(None, 0.1, 0.3)[number % 3]),
            JobState.RUNNING,
            self.now_seconds - 3000 - 60 * number,
            started_at_seconds=self.now_seconds - 97 * number - 44,
            gpu_model="rtx-3090",
            owner_uid=_USERS[number % 3],
        )

    def _running_report(self, number: int, size: int) -> JobReport:
        index, used = number % 4, _used(number, self.readings)
        uuid, used_bytes = f"GPU-{index}", round(size * used)
        job = self._job(number, size)
        lease = Lease(job.id, (Slice(uuid, size),), self.now_seconds, "shim", self.is_advisory, SharingMode.TIME_SLICE)
        got = min(1.0, 0.15 + 0.1 * math.sin(self.readings / 3 + number))
        return JobReport(
            replace(job, lease=lease),
            (SliceUse(uuid, used_bytes, used_bytes, 0),),
            (GpuTime(uuid, 60.0, 0.0, 1000, got, got, got),),
            (str(index),),
        )

    def _waiting(self, number: int) -> Job:
        job = self._job(self.running + number, 16 * GIB)
        return replace(
            job,
            state=JobState.WAITING,
            started_at_seconds=None,
            reason="waits for 16 GiB on one GPU: at most 9.7 GiB are free",
        )

    def queue(self, simulate: str | None = None) -> Sequence[QueueReport]:
        return [
            QueueReport(
                number + 1,
                replace(self._waiting(number), expected_start_seconds=self.now_seconds + 600 * (number + 1)),
                "memory",
                is_start_known=number == 0,
                doubt="unmeasured" if number else "",
                not_before_seconds=self.now_seconds + 330 if number else None,
            )
            for number in range(self.waiting)
        ]

    def gpu_history(self, since_seconds: float, gpu_uuid: str | None = None) -> Sequence[GpuSeries]:
        minutes = [int(self.now_seconds) // 60 * 60 - 60 * age for age in range(150, 0, -1) if not 60 < age < 75]
        wave = [0.5 + 0.4 * math.sin(minute / 2400) for minute in minutes]
        return [
            GpuSeries(
                gpu_uuid or "",
                tuple(minutes),
                tuple(round(18 * GIB * each) for each in wave),
                tuple(round(11 * GIB * each) for each in wave),
                tuple(round(100 * each) for each in wave),
            )
        ]

    def request_stop(self, id_or_name: str, grace_seconds: float) -> Job:
        self.stopped.append((id_or_name, grace_seconds))
        return self._named(id_or_name)

    def resize(
        self,
        id_or_name: str,
        memory_bytes: int | None = None,
        compute_share: float | None = None,
        is_strict: bool | None = None,
    ) -> Job:
        self.resized.append((id_or_name, memory_bytes, compute_share))
        return self._named(id_or_name)

    def _named(self, id_or_name: str) -> Job:
        return next(each.job for each in self.jobs(include_final=False) if each.job.id == id_or_name)


def _used(number: int, readings: int) -> float:
    return 0.55 + 0.4 * math.sin(readings / (5 + number % 4) + number)


def _hidden(report: JobReport) -> JobReport:
    job = report.job
    lease = None if job.lease is None else replace(job.lease, job_id=ANONYMOUS)
    spec = JobSpec((), "process")
    return JobReport(replace(job, id=ANONYMOUS, spec=spec, owner_uid=-1, lease=lease), (), gpus=report.gpus)
