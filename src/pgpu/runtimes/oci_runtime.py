"""The runtime of existing containers: it attaches to one, runs self-tests in a twin of it, and releases it.

The container's bundle got the slice's mounts when it was created; here the limit is set and the container is released. A
container that ended in the meantime is not restarted.
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
from pgpu.runtimes.cgroups import LimitCgroup
from pgpu.runtimes.container_cgroup import leaf_cgroup
from pgpu.runtimes.container_record import ENVIRONMENT, Container, Gate, container_of
from pgpu.runtimes.oci.engine import AwaitedExit
from pgpu.runtimes.oci.job import OciJob
from pgpu.runtimes.probe_container import MPS_IN_JOB, start_twin
from pgpu.runtimes.running_process import open_process

CONTAINER_VARIABLE = "PGPU_CONTAINER"
"""Environment variable in the job's spec: the slice's directory, with the container's record."""


class OciRuntime:
    """Runs jobs in containers that an OCI runtime created."""

    def __init__(self, *, limit_cgroup: LimitCgroup | None = None) -> None:
        """Create the runtime.

        Args:
            limit_cgroup: Sets a driver's limit on a container's control group; None if no enforcer needs it.
        """
        self._limit_cgroup = limit_cgroup

    @property
    def name(self) -> str:
        return "oci"

    def check(self, spec: JobSpec, account: Account | None = None) -> None:  # noqa: ARG002 - the engine chose the user
        """Reject a job without a container.

        Raises:
            RuntimeUnavailableError: There is no record of its container.
        """
        _container(spec)

    def is_advisory(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the protocol's parameter
        """False: the slice is mounted into the container."""
        return False

    def image_id(self, spec: JobSpec) -> str:
        """Return the image's ID, or the container's if the image's is unknown."""
        container = _container(spec)
        return container.image_id or container.container_id

    def can_load_driver(self, spec: JobSpec) -> bool:
        """True if the container has glibc: there is no NVIDIA driver for musl, and a static program loads none."""
        return _container(spec).glibc

    def start(
        self,
        job: Job,
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
        account: Account | None = None,  # noqa: ARG002 - the engine chose the user
    ) -> RunningJob:
        """Release the held container; its limit is in its slice already."""
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
            # Announced before the release: after a crash in between, `adopt` finds the holder and releases it.
            announce(holder)
            _tell_where_output_is(stdio, container)
            _say_go(container)
        except BaseException:  # includes KeyboardInterrupt; `running` is not returned, so it is closed here
            running.close()
            raise
        return running

    def adopt(self, job: Job, stdio: Stdio) -> OciJob | None:  # noqa: ARG002 - its streams are the engine's
        """Attach to a container that another supervisor released, or was about to release."""
        if not isinstance(job.holder, ProcessHolder):
            return None
        container = _container(job.spec)
        running = _take_charge(container, job.holder)
        # Released again, since the other supervisor may have died before its release; a second `+` has no effect.
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
    """Mount the MPS pipe directory into the container; at its creation the daemon was not known yet."""
    if delivery.mps_pipe_directory is None:
        return
    pidfd = running.fileno()  # a pidfd, since the PID may be reused by another container
    words = (library_path(BRINGER), delivery.mps_pipe_directory, str(pidfd), MPS_IN_JOB)
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, pass_fds=(pidfd,))
    if done.returncode != 0:
        why = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        raise EnforcementError(f"the pipes of MPS cannot be brought into the container: {why}")


def _write_settings(container: Container, delivery: Delivery) -> None:
    """Write the environment before the holder is announced, so that an adopter only has to release the container."""
    settings = b"".join(f"{name}={value}\0".encode() for name, value in delivery.environment)
    path = container.gate.with_name(ENVIRONMENT)
    write_atomically(path, settings, 0o444)


def _say_go(container: Container) -> None:
    with contextlib.closing(Gate(container.gate)) as gate:
        gate.say("+")
