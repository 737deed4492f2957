"""Run a job as a process of this machine, inside its slice.

Where the kernel lets an ordinary user make namespaces, the job gets a private view of the file system in which its
slice lies at `/.pgpu` and the shims lie over the driver's libraries: it may drop its environment and keeps its limit.
Elsewhere the shims are only preloaded, and `is_advisory` says so. This module refuses to fall back by itself: a job
whose slice was made for one way is never started the other way.
"""

import errno
import functools
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from pgpu.errors import EnforcementError, NodeError, PgpuBug, RequestError, RuntimeUnavailableError
from pgpu.host.process_identity import identify_unreaped
from pgpu.libraries import CUDA_SHIM, LAUNCHER, NVML_SHIM, library_path
from pgpu.model import Account, Delivery, Holder, Job, JobSpec, ProcessHolder
from pgpu.runtimes import Stdio
from pgpu.runtimes.account import give_streams, give_usage, launcher_words, switches
from pgpu.runtimes.cgroup_leaf import LimitCgroup
from pgpu.runtimes.launching import Launch, launch
from pgpu.runtimes.lineage import JOB_ID_VARIABLE, Lineage, hold_mount_namespace
from pgpu.runtimes.process_job import RunningProcess, open_process
from pgpu.runtimes.shadowed_paths import PRELOAD_PATH, shadows


class ProcessRuntime:
    """The `Runtime` of jobs without an image."""

    def __init__(
        self, *, can_make_views: Callable[[], bool] | None = None, limit_cgroup: LimitCgroup | None = None
    ) -> None:
        """Start nothing yet.

        Args:
            can_make_views: Whether a private view works here; by default the launcher tries one.
            limit_cgroup: Carries out `Delivery.cgroup_limits`; None where the driver's own enforcer is not used.
        """
        self._can_make_views = can_make_views or can_make_private_views
        self._limit_cgroup = limit_cgroup

    @property
    def name(self) -> str:
        """`process`."""
        return "process"

    def check(self, spec: JobSpec, account: Account | None = None) -> None:
        """Refuse what only containers have.

        Raises:
            RequestError: No command, or an option of containers.
            RuntimeUnavailableError: This process cannot start jobs under that account.
        """
        if not spec.command:
            raise RequestError("there is no command to run", hint="name one after --")
        wrong: dict[str, object] = {"an image": spec.image, "volumes": spec.volumes or spec.provisions}
        wrong |= {"a user": spec.user, "a seal": spec.is_sealed, "a network": spec.network}
        wrong |= {"a limit of host memory": spec.host_memory_bytes}
        for what, value in wrong.items():
            if value:
                raise RequestError(f"a process cannot be given {what}", hint="run it in a container with --image")
        if switches(account):
            self._refuse_without_views()
            return  # whether its directory exists is for its own user to see
        directory = spec.working_directory
        if directory is not None and not Path(directory).is_dir():
            raise RequestError(f"working directory {directory} does not exist", hint="name a directory that exists")

    def start(
        self,
        job: Job,
        delivery: Delivery,
        stdio: Stdio,
        announce: Callable[[Holder], None],
        account: Account | None = None,
    ) -> RunningProcess:
        """Start the job, held back until `announce` returned.

        Raises:
            CommandNotFoundError: There is no such command.
            CommandNotExecutableError: It cannot be executed.
            RequestError: Its working directory cannot be entered.
            RuntimeUnavailableError: The kernel refused something.
        """
        if job.lease is None:
            raise PgpuBug(f"job {job.id} is started without a lease")
        is_private = delivery.has_slice and not job.lease.is_advisory
        words = [*launcher_words(account), *_launcher_words(job.spec, delivery, is_private=is_private)]
        environment = _environment(job, delivery, account, is_private=is_private)
        if account is not None and switches(account):
            _give(stdio, delivery, account, is_private=is_private)
        with launch(words, stdio) as launched:
            launched.hand_over(environment)
            running = _take_charge(job, launched, stdio, is_private=is_private)
            self._let_go(running, delivery, launched, announce)
        return running

    def adopt(self, job: Job, stdio: Stdio) -> RunningProcess | None:
        """Take charge of a job that another supervisor started; its exit code can no longer be seen."""
        if not isinstance(job.holder, ProcessHolder):
            return None
        pidfd = open_process(job.holder)
        if pidfd is None:
            return None
        is_private = job.lease is not None and bool(job.lease.slices) and not job.lease.is_advisory
        lineage = _lineage(job.id, job.holder, is_private=is_private)
        return RunningProcess(job.holder, lineage, pidfd, _terminal_path(job.spec, stdio))

    def is_advisory(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the same for every process
        """Whether only a preload is possible here."""
        return not self._can_make_views()

    def image_id(self, spec: JobSpec) -> str:  # noqa: ARG002 - the same for every process
        """Empty: a process runs on this machine's own files."""
        return ""

    def can_load_driver(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the same for every process
        """Always: this machine's C library is the one that pgpu runs with."""
        return True

    def _refuse_without_views(self) -> None:
        if not self._can_make_views():
            raise RuntimeUnavailableError(
                f"users cannot be kept apart here: {why_no_private_view() or 'no private view can be made'}",
                hint="the server needs CAP_SYS_ADMIN in its own user namespace",
            )

    def _let_go(
        self, running: RunningProcess, delivery: Delivery, launched: Launch, announce: Callable[[Holder], None]
    ) -> None:
        try:
            self._apply_cgroup_limits(running, delivery)
            announce(running.holder)
            launched.let_go()
        except BaseException:  # Ctrl-C too: nobody gets `running`, so nobody else could let its descriptors go.
            running.close()
            raise

    def _apply_cgroup_limits(self, running: RunningProcess, delivery: Delivery) -> None:
        if not delivery.cgroup_limits:
            return
        if self._limit_cgroup is None:
            raise EnforcementError("this lease needs the driver's own limit, and nothing here can set it")
        self._limit_cgroup(running.enter_leaf(), delivery)


def can_make_private_views() -> bool:
    """Whether this user may make the namespaces that a private view needs."""
    return why_no_private_view() is None


@functools.cache
def why_no_private_view() -> str | None:
    """Try a private view once, in a process of its own; say in one line what forbids it, None if nothing does."""
    try:
        program = library_path(LAUNCHER)
    except NodeError as error:
        return str(error)
    words = [str(program), "--probe", *_shadow_words(), "--preload-path", str(PRELOAD_PATH)]
    tried = subprocess.run(words, env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return None
    return (tried.stderr.strip().splitlines() or [f"the launcher ended with {tried.returncode}"])[-1]


def _launcher_words(spec: JobSpec, delivery: Delivery, *, is_private: bool) -> list[str]:
    words = ["--tty"] if spec.wants_tty else []
    if spec.working_directory is not None:
        words += ["--directory", spec.working_directory]
    if is_private:
        append_host_preloads(delivery.slice_directory / PRELOAD_PATH.name, PRELOAD_PATH)
        words += _view_words(delivery)
    return [*words, "--", *spec.command]


def _view_words(delivery: Delivery) -> Iterable[str]:
    yield from ("--slice", str(delivery.slice_directory), "--usage", str(delivery.usage_path))
    if delivery.time_path is not None and delivery.board_directory is not None:
        yield from ("--time", str(delivery.time_path), "--board", str(delivery.board_directory))
    if delivery.simulated_state_directory is not None:
        yield from ("--simulated", str(delivery.simulated_state_directory))
    if delivery.mps_pipe_directory is not None:
        yield from ("--mps", str(delivery.mps_pipe_directory))
    for name, path in delivery.driver_files:
        yield from ("--driver", f"{name}={path}")
    yield from _shadow_words()
    yield from ("--preload-path", str(PRELOAD_PATH))


def _shadow_words() -> Iterable[str]:
    for shim, path in shadows():
        yield from ("--shadow", f"{shim}={path}")


def append_host_preloads(slice_file: Path, host_file: Path) -> None:
    """Put what this machine preloads everywhere after our own, in the slice's file that will lie over the machine's."""
    try:
        theirs = host_file.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return
    ours = slice_file.read_text(encoding="utf-8")
    slice_file.write_text(f"{ours.rstrip()}\n{theirs}", encoding="utf-8", errors="surrogateescape")


def _give(stdio: Stdio, delivery: Delivery, account: Account, *, is_private: bool) -> None:
    """Give the account what is its own of the job."""
    if not is_private and delivery.has_slice:
        raise PgpuBug(f"a job of user {account.uid} was granted a slice that others may read")
    give_streams(stdio, account)
    if delivery.has_slice:
        give_usage(delivery, account)


def _environment(job: Job, delivery: Delivery, account: Account | None, *, is_private: bool) -> Mapping[str, str]:
    """Join the asker's environment (without an account the supervisor has it), what was added, what the slice needs."""
    theirs = dict(os.environ if account is None else account.environment)
    environment = {**theirs, **dict(job.spec.environment), **dict(delivery.environment), JOB_ID_VARIABLE: job.id}
    if not is_private and delivery.has_slice:
        shims = [str(delivery.slice_directory / name) for name in (CUDA_SHIM, NVML_SHIM)]
        present = environment.get("LD_PRELOAD")
        environment["LD_PRELOAD"] = ":".join([*shims, *([present] if present else [])])
    return environment


def _take_charge(job: Job, launched: Launch, stdio: Stdio, *, is_private: bool) -> RunningProcess:
    holder = identify_unreaped(launched.pid)
    if holder is None:
        raise RuntimeUnavailableError("the job's process vanished before it was started")
    lineage = _lineage(job.id, holder, is_private=is_private)
    return RunningProcess(holder, lineage, _open_pidfd(launched.pid), _terminal_path(job.spec, stdio))


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError as exc:
        hint = "pgpu needs Linux 5.4 or newer" if exc.errno == errno.ENOSYS else None
        raise RuntimeUnavailableError(f"the job's process cannot be watched: {exc.strerror}", hint=hint) from exc


def _lineage(job_id: str, holder: ProcessHolder, *, is_private: bool) -> Lineage:
    namespace = hold_mount_namespace(holder.pid) if is_private else None
    if (
        namespace is not None and identify_unreaped(holder.pid) != holder
    ):  # it ended, and the PID may be a stranger's by now
        namespace.close()
        namespace = None
    return Lineage(job_id, holder, namespace)


def _terminal_path(spec: JobSpec, stdio: Stdio) -> Path | None:
    return Path(os.ttyname(stdio.stdin)) if spec.wants_tty else None
