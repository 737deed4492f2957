"""Jobs as containers of the machine's engine: Docker, or Podman through its compatible socket.

All files of the lease are in the container's configuration before it is created. A container that was created and not
announced never runs. Images are not pulled, and no privileges are added.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgpu.errors import EnforcementError, RequestError, RuntimeUnavailableError
from pgpu.libraries import CUDA_SHIM, NVML_SHIM, library_path
from pgpu.model import Account, ContainerHolder, Delivery, Holder, Job, JobSpec, Mount
from pgpu.runtimes import Stdio
from pgpu.runtimes.account import give_usage
from pgpu.runtimes.cgroups import LimitCgroup, leaf_cgroup
from pgpu.runtimes.docker.confinement import (
    SOCKETS_OF_ROOT,
    confined,
    groups_to_add,
    is_confined,
    refuse_more_than_own,
)
from pgpu.runtimes.docker.create_request import JOB_LABEL, binds, container_configuration, container_name, gpu_request
from pgpu.runtimes.docker.docker_engine import DockerEngine, engine_url
from pgpu.runtimes.docker.docker_job import AttachedStreams, DockerJob
from pgpu.runtimes.docker.image_facts import FactsCache, newest_glibc
from pgpu.runtimes.docker.image_inspection import load_image_facts
from pgpu.runtimes.docker.mounts import needed_places, plan_mounts, preload_lines, targets_in
from pgpu.runtimes.docker.refusals import (
    refuse_bad_image,
    refuse_bad_words,
    refuse_more_than_the_machine_has,
    refuse_old_libc,
    refuse_unknown_user,
)
from pgpu.runtimes.docker.staging import Staging
from pgpu.structs import replace

_SHIMS = (CUDA_SHIM, NVML_SHIM)
# Go's zero time, which engines return for a time that is not set.
_NEVER_STARTED = "0001-01-01T00:00:00Z"


class DockerRuntime:
    """Runs jobs in containers."""

    def __init__(
        self,
        facts_directory: Path,
        *,
        limit_cgroup: LimitCgroup | None = None,
        staging: Staging | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Connect to nothing yet.

        Args:
            facts_directory: Cache of image facts, shared between processes; created if missing.
            limit_cgroup: Sets a driver's limit on a container's control group; None if no enforcer needs it.
            staging: Prepares the volumes of users other than root; None if there are none.
            environment: Names the engine; see `engine_url`.
        """
        self._environment = environment
        self._staging = staging
        self._cache = FactsCache(facts_directory)
        self._limit_cgroup = limit_cgroup

    @property
    def name(self) -> str:
        return "docker"

    def is_advisory(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the protocol's parameter
        """False: the slice is mounted into the container, independent of its environment."""
        return False

    def image_id(self, spec: JobSpec) -> str:
        """Return the image's ID, which changes when an image is rebuilt under the same name."""
        return str(self._engine().image(spec.image or "")["Id"])

    def can_load_driver(self, spec: JobSpec) -> bool:
        """True if the image has glibc: there is no NVIDIA driver for musl, and a static program loads none."""
        engine = self._engine()
        return load_image_facts(engine, engine.image(spec.image or ""), [], self._cache).libc == "glibc"

    def _engine(self) -> DockerEngine:
        return DockerEngine(engine_url(self._environment))

    def check(self, spec: JobSpec, account: Account | None = None) -> None:
        """Reject jobs that can never start: bad fields, an unknown or unsuitable image or user, a taken name, no engine."""
        refuse_bad_words(spec)
        engine = self._engine()
        image = engine.image(spec.image or "")
        refuse_bad_image(spec, image)
        taken = engine.container(spec.name) if spec.name and spec.name.isascii() else None
        if taken is not None:
            raise RequestError(
                f"the name {spec.name} is taken by the container {taken['Id'][:12]}",
                hint=f"docker rm {spec.name}, or use another --name",
            )
        shims = [library_path(name) for name in _SHIMS]
        facts = load_image_facts(engine, image, [], self._cache)
        refuse_old_libc(spec, facts, _needed_glibc(shims))
        if not is_confined(account):
            refuse_unknown_user(spec, image, facts)
        if spec.host_memory_bytes is not None:
            refuse_more_than_the_machine_has(spec, engine.information())
        # Mounted and unmounted at once: this only checks that the user may open them, perhaps in a server whose mounts no engine sees.
        with self._volumes(engine, spec, account, image, is_trial=True):
            pass

    def start(
        self,
        job: Job,
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
        account: Account | None = None,
    ) -> DockerJob:
        """Create the container, announce it, attach to it, start it."""
        engine = self._engine()
        image = engine.image(job.spec.image or "")
        # The staged mounts last until the container runs, whose own mount namespace then holds them.
        with self._volumes(engine, job.spec, account, image) as volumes:
            spec = replace(job.spec, volumes=volumes)
            configuration = self._configuration(engine, image, replace(job, spec=spec), delivery, account)
            return self._start(engine, job, configuration, delivery, stdio, announce)

    def _start(  # noqa: PLR0917 - the parts of one start
        self,
        engine: DockerEngine,
        job: Job,
        configuration: dict[str, Any],
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
    ) -> DockerJob:
        # Containers of an earlier start of this job that was never announced, such as after a crash.
        for leftover in engine.containers_with_label(f"{JOB_LABEL}={job.id}"):
            engine.remove(leftover)
        # Create, announce, attach, start. After a crash before the announcement the container never ran, and the next start
        # removes it by its label; after a crash behind it, `adopt` finds the holder in the ledger.
        holder = ContainerHolder(engine.create(configuration, container_name(job)), engine.url)
        try:
            announce(holder)
            return self._run(engine, holder, job.spec, delivery, stdio)
        except BaseException:  # includes KeyboardInterrupt: an unannounced container must never run
            engine.remove(holder.container_id)
            raise

    @contextmanager
    def _volumes(
        self,
        engine: DockerEngine,
        spec: JobSpec,
        account: Account | None,
        image: dict[str, Any],
        *,
        is_trial: bool = False,
    ) -> Iterator[tuple[Mount, ...]]:
        """Yield the volumes; for a restricted user, opened with that user's rights and mounted for the duration of the context."""
        if account is None or not is_confined(account):
            yield spec.volumes
            return
        refuse_more_than_own(spec, account)
        if self._staging is None:
            raise RuntimeUnavailableError("containers of other users cannot be made here")
        # Before new mounts are made: those that killed processes left keep the users' file systems busy.
        self._staging.sweep()
        secrets = [Path(engine.url.removeprefix("unix://")), *SOCKETS_OF_ROOT]
        others = targets_in(load_image_facts(engine, image, [], self._cache)) if spec.volumes else []
        others += (image.get("Config") or {}).get("Volumes") or ()
        places = needed_places(spec.volumes, others)
        with self._staging.staged(spec.volumes, account, secrets, places, is_trial=is_trial) as volumes:
            yield volumes

    def adopt(self, job: Job, stdio: Stdio) -> DockerJob | None:
        """Attach to a container that another process started, running or ended."""
        holder = job.holder
        if not isinstance(holder, ContainerHolder):
            return None
        engine = DockerEngine(holder.engine_url)
        state = _state_of_ours(engine, holder, job)
        if state is None:
            return None
        streams = _attach(engine, holder, job.spec, stdio) if state["Running"] else None
        return _running(engine, holder, job.spec, state, streams)

    def _configuration(
        self, engine: DockerEngine, image: dict[str, Any], job: Job, delivery: Delivery, account: Account | None
    ) -> dict[str, Any]:
        if not delivery.has_slice:
            return self._without_gpu(engine, image, job, delivery, account)
        facts = load_image_facts(engine, image, binds(job.spec), self._cache)
        own = load_image_facts(engine, image, [], self._cache) if is_confined(account) else facts
        # Files that root reads in a volume must not be disclosed: only the image's own preloads are used.
        if is_confined(account):
            facts = replace(facts, preload_path=own.preload_path, preload_lines=own.preload_lines)
        refuse_old_libc(job.spec, facts, _needed_glibc(delivery.slice_directory / name for name in _SHIMS))
        preload = delivery.slice_directory / "ld.so.preload"
        preload.write_text(preload_lines(preload.read_text(encoding="utf-8"), facts.preload_lines), encoding="utf-8")
        request = {} if delivery.is_simulated else gpu_request(engine.information(), delivery.gpu_uuids)
        configuration = container_configuration(job, delivery, plan_mounts(delivery, facts), request)
        if account is None or not is_confined(account):
            return configuration
        give_usage(delivery, account)
        groups = groups_to_add(account, own, job.spec.volumes)
        return confined(configuration, account, job.spec.volumes, image, groups)

    def _without_gpu(
        self, engine: DockerEngine, image: dict[str, Any], job: Job, delivery: Delivery, account: Account | None
    ) -> dict[str, Any]:
        """Configuration for a lease without slices: nothing is mounted, so the image's libraries do not matter."""
        configuration = container_configuration(job, delivery, (), {})
        if account is None or not is_confined(account):
            return configuration
        groups = groups_to_add(account, load_image_facts(engine, image, [], self._cache), job.spec.volumes)
        return confined(configuration, account, job.spec.volumes, image, groups)

    def _run(
        self, engine: DockerEngine, holder: ContainerHolder, spec: JobSpec, delivery: Delivery, stdio: Stdio
    ) -> DockerJob:
        # Attached before the container's first instruction, so that no output is lost.
        streams = _attach(engine, holder, spec, stdio)
        try:
            engine.start(holder.container_id)
            # Empty if the container ended at once and was removed already.
            state = dict((engine.container(holder.container_id) or {}).get("State", {}))
            self._bind_cgroup(delivery, state)
        except BaseException:
            streams.close()
            raise
        running = _running(engine, holder, spec, state, streams)
        if spec.wants_tty:
            running.resize_terminal(os.get_terminal_size(stdio.stdout))
        return running

    def _bind_cgroup(self, delivery: Delivery, state: dict[str, Any]) -> None:
        """Set the driver's limit on the container's control group.

        The engine cannot pause between the creation of that group and the first instruction. Until then the shim, which is
        always present, enforces the limit.
        """
        if not delivery.cgroup_limits or not state.get("Pid"):
            return
        if self._limit_cgroup is None:
            raise EnforcementError("this lease needs the driver's limit, and nothing here can set it")
        self._limit_cgroup(leaf_cgroup(state["Pid"]), delivery)


def _needed_glibc(shims: Iterable[Path]) -> tuple[int, int] | None:
    needs = (newest_glibc(shim.read_bytes()) for shim in shims)
    return max((need for need in needs if need is not None), default=None)


def _attach(engine: DockerEngine, holder: ContainerHolder, spec: JobSpec, stdio: Stdio) -> AttachedStreams:
    connection = engine.attach(holder.container_id, has_stdin=spec.wants_stdin)
    return AttachedStreams(connection, stdio, has_terminal=spec.wants_tty, has_stdin=spec.wants_stdin)


def _state_of_ours(engine: DockerEngine, holder: ContainerHolder, job: Job) -> dict[str, Any] | None:
    """Return the state of a container if it is this job's and ever ran; one that never ran is removed."""
    container = engine.container(holder.container_id)
    if container is None or (container["Config"]["Labels"] or {}).get(JOB_LABEL) != job.id:
        return None
    state = dict(container["State"])
    # Created by a process that died before `start`.
    if state["StartedAt"] == _NEVER_STARTED:
        engine.remove(holder.container_id)
        return None
    return state


def _running(
    engine: DockerEngine, holder: ContainerHolder, spec: JobSpec, state: dict[str, Any], streams: AttachedStreams | None
) -> DockerJob:
    return DockerJob(engine, holder, state.get("Pid") or None, streams, removes_container=spec.remove)
