"""Everything that the runtimes' contract needs of one implementation: the runtime, jobs for it, and a slice without a GPU.

A slice here has files in the right places and no library that does anything: what CUDA programs meet in a slice is
tested elsewhere.
"""

import contextlib
import os
import select
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.waiting import DEADLINE_SECONDS

from pgpu.libraries import ENTER, library_path
from pgpu.model import Account, Delivery, Holder, Job, JobSpec, JobState, Lease, Request
from pgpu.runtimes import RunningJob, Runtime, Stdio


def make_bare_delivery(directory: Path) -> Delivery:
    """Lay out a slice of empty files."""
    view, state = directory / "view", directory / "simgpu"
    for folder in (view, view / "driver", view / "simgpu", state):
        folder.mkdir(parents=True)
    for name in ("libpgpu.so", "libpgpu-ml.so", "limit", "usage", "ld.so.preload", "driver/libcuda.so.1"):
        (view / name).touch()
    shutil.copy(library_path(ENTER), view / ENTER)
    (directory / "usage").touch()
    (directory / "usage").chmod(0o666)
    return Delivery(view, directory / "usage", ("GPU-00000000-0000-0000-0000-000000000000",), state)


@dataclass
class Streams:
    """The supervisor's ends of a job's standard streams."""

    stdin: int
    stdout: int
    stderr: int
    job_side: Stdio
    _buffers: dict[int, bytes] = field(default_factory=dict)

    def read_until(self, text: bytes, descriptor: int | None = None) -> bytes:
        """Read until something was written, or the end; fails after a deadline."""
        source = self.stdout if descriptor is None else descriptor
        while text not in self._buffers.get(source, b""):
            before = len(self._buffers.get(source, b""))
            assert select.select([source], [], [], DEADLINE_SECONDS)[0], f"{text!r} was never written"
            if len(self.read_more(source)) == before:
                break
        return self._buffers.get(source, b"")

    def read_more(self, descriptor: int | None = None) -> bytes:
        """Read what comes next, or the end, and return everything that came so far."""
        source = self.stdout if descriptor is None else descriptor
        self._buffers[source] = self._buffers.get(source, b"") + _read(source)
        return self._buffers[source]

    def read_to_end(self, descriptor: int | None = None) -> bytes:
        """Read until nobody has the other end open any more."""
        return self.read_until(b"\0never written\0", descriptor)

    def close_job_side(self) -> None:
        for descriptor in {self.job_side.stdin, self.job_side.stdout, self.job_side.stderr}:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def close(self) -> None:
        for descriptor in {self.stdin, self.stdout, self.stderr}:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # a terminal whose other side is gone
        return b""


def pipes() -> Streams:
    """Three pipes."""
    (stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr) = os.pipe(), os.pipe(), os.pipe()
    return Streams(our_stdin, our_stdout, our_stderr, Stdio(stdin, stdout, stderr))


def terminal() -> Streams:
    """A pty."""
    master, slave = os.openpty()
    return Streams(master, master, master, Stdio(slave, slave, slave))


@dataclass
class Started:
    """A job that was started, with our ends of its streams."""

    job: Job
    running: RunningJob
    streams: Streams

    def wait(self) -> int | None:
        """Wait until it ended and return its exit code."""
        assert select.select([self.running.fileno()], [], [], DEADLINE_SECONDS)[0], "the job does not end"
        return self.running.exit_code()


@dataclass
class RuntimeWorld:
    """One implementation under contract."""

    runtime: Runtime
    directory: Path
    kind: Literal["process", "docker"] = "process"
    image: str | None = None
    is_advisory: bool = False
    _started: list[Started] = field(default_factory=list)

    def job(self, command: Sequence[str], **spec: Any) -> Job:
        """Return a job that was granted a slice."""
        job_id = uuid.uuid4().hex[:12]
        return Job(
            id=job_id,
            spec=JobSpec(command=tuple(command), runtime=self.kind, image=self.image, **spec),
            request=Request(1 << 30),
            state=JobState.STARTING,
            created_at_seconds=0.0,
            lease=Lease(job_id, (), 0.0, "shim", self.is_advisory),
        )

    def start(
        self,
        command: Sequence[str],
        *,
        streams: Streams | None = None,
        announce: Callable[[Holder], None] = lambda _: None,
        account: Account | None = None,
        **spec: Any,
    ) -> Started:
        """Start a command; it is ended when the world is."""
        job = self.job(command, **spec)
        ours = streams or pipes()
        try:
            running = self.runtime.start(job, self.delivery(job), ours.job_side, announce, account)
        except BaseException:
            ours.close()
            raise
        finally:
            ours.close_job_side()
        self._started.append(Started(job, running, ours))
        return self._started[-1]

    def shell(self, script: str, **options: Any) -> Started:
        """Start a shell script."""
        return self.start(["/bin/sh", "-c", script], **options)

    def delivery(self, job: Job) -> Delivery:
        """Make a bare slice for a job."""
        return make_bare_delivery(self.directory / job.id)

    def close(self) -> None:
        """End everything that was started."""
        while self._started:
            started = self._started.pop(0)
            started.running.kill()
            started.running.close()
            started.streams.close()


@contextlib.contextmanager
def opened(world: RuntimeWorld) -> Iterator[RuntimeWorld]:
    """Give a world and end it."""
    try:
        yield world
    finally:
        world.close()
