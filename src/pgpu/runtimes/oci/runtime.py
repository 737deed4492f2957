"""The runtime of containers that exist already: it finds them, proves what it must in a twin of them, and says the word.

Everything that the container sees was put into its bundle when it was created; here its limit is in place, and it is let go.
It refuses to start a container that has ended meanwhile.
"""

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

from pgpu.errors import CancelledError, EnforcementError, RuntimeUnavailableError
from pgpu.host.atomic_file import write_atomically
from pgpu.libraries import BRINGER, library_path
from pgpu.model import Account, Delivery, Holder, Job, JobSpec, ProcessHolder
from pgpu.runtimes import RunningJob, Stdio
from pgpu.runtimes.cgroup_leaf import LimitCgroup
from pgpu.runtimes.container_cgroup import leaf_cgroup
from pgpu.runtimes.oci.engine import AwaitedExit
from pgpu.runtimes.oci.job import OciJob
from pgpu.runtimes.oci.record import ENVIRONMENT, Container, Gate, container_of
from pgpu.runtimes.oci.twin import MPS_IN_JOB, start_twin
from pgpu.runtimes.process_job import open_process

CONTAINER_VARIABLE = "PGPU_CONTAINER"
"""In a job's specification: the home of its slice, where its container is recorded."""


class OciRuntime:
    """Runs jobs in containers that an OCI runtime was told to create."""

    def __init__(self, *, limit_cgroup: LimitCgroup | None = None) -> None:
        """Make the runtime.

        Args:
            limit_cgroup: What sets a driver's limit on a container's control group; None where no enforcer needs it.
        """
        self._limit_cgroup = limit_cgroup

    @property
    def name(self) -> str:
        """`oci`."""
        return "oci"

    def check(self, spec: JobSpec, account: Account | None = None) -> None:  # noqa: ARG002 - the engine chose the user
        """Refuse a job that no container stands behind.

        Raises:
            RuntimeUnavailableError: There is no record of its container.
        """
        _container(spec)

    def is_advisory(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the protocol's parameter
        """Never: the slice is mounted into the container."""
        return False

    def image_id(self, spec: JobSpec) -> str:
        """Return the image's id, or the container's where the engine was not asked for the image."""
        container = _container(spec)
        return container.image_id or container.container_id

    def can_load_driver(self, spec: JobSpec) -> bool:
        """Whether the container has glibc: NVIDIA makes no driver for musl, and a static program loads none."""
        return _container(spec).glibc

    def start(
        self,
        job: Job,
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
        account: Account | None = None,  # noqa: ARG002 - the engine chose the user
    ) -> RunningJob:
        """Let the container go, which is held back; its limit is in its slice already."""
        container = _container(job.spec)
        if delivery.slice_directory.parent != container.home:
            return start_twin(container, job, delivery, stdio)
        holder = container.first_process()
        if holder is None:
            raise CancelledError("its container ended before its memory was granted")
        running = _take_charge(container, holder)
        if running is None:
            raise CancelledError("its container ended before its memory was granted")
        try:
            self._apply_cgroup_limits(holder, delivery)
            _bring_mps(running, delivery)
            _write_settings(container, delivery)
            announce(holder)
            _tell_where_output_is(stdio, container)
            _say_go(container)
        except BaseException:  # Ctrl-C too: nobody gets `running`, so nobody else could let its descriptors go.
            running.close()
            raise
        return running

    def adopt(self, job: Job, stdio: Stdio) -> OciJob | None:  # noqa: ARG002 - its streams are the engine's
        """Take charge of a container that another supervisor let go, or was about to."""
        if not isinstance(job.holder, ProcessHolder):
            return None
        container = _container(job.spec)
        running = _take_charge(container, job.holder)
        if running is not None:
            _say_go(container)
        return running

    def _apply_cgroup_limits(self, holder: ProcessHolder, delivery: Delivery) -> None:
        if not delivery.cgroup_limits:
            return
        if self._limit_cgroup is None:
            raise EnforcementError("this lease needs the driver's limit, and nothing here can set it")
        self._limit_cgroup(leaf_cgroup(holder.pid), delivery)


def _container(spec: JobSpec) -> Container:
    home = dict(spec.environment).get(CONTAINER_VARIABLE)
    if home is None:
        raise RuntimeUnavailableError("such a job is made by `docker run --runtime=pgpu` only")
    return container_of(Path(home))


def _take_charge(container: Container, holder: ProcessHolder) -> OciJob | None:
    pidfd = open_process(holder)
    if pidfd is None:
        return None
    return OciJob(container, holder, pidfd, AwaitedExit(container.engine, container.container_id))


def _tell_where_output_is(stdio: Stdio, container: Container) -> None:
    line = f"pgpu: the output of this job is its container's: docker logs {container.name or container.container_id[:12]}\n"
    os.write(stdio.stderr, line.encode())


def _bring_mps(running: OciJob, delivery: Delivery) -> None:
    """Mount what the container could not have when it was created: nobody knew then of which daemon it would be a client."""
    if delivery.mps_pipe_directory is None:
        return
    pidfd = running.fileno()  # and no PID: another container's first process may have it by then
    words = (library_path(BRINGER), delivery.mps_pipe_directory, str(pidfd), MPS_IN_JOB)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, pass_fds=(pidfd,))
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise EnforcementError(f"the pipes of MPS cannot be brought into the container: {why}")


def _write_settings(container: Container, delivery: Delivery) -> None:
    """Before the container is known to run: whoever takes it over then has only the word to say."""
    settings = b"".join(f"{name}={value}\0".encode() for name, value in delivery.environment)
    path = container.gate.with_name(ENVIRONMENT)
    write_atomically(path, settings, 0o444)


def _say_go(container: Container) -> None:
    with contextlib.closing(Gate(container.gate)) as gate:
        gate.say("+")
