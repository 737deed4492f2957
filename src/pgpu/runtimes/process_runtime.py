"""Runs a job as a process of this machine, inside its slice.

If the kernel permits namespaces for the user, the job gets a private mount namespace with its slice at `/.pgpu` and the shims
mounted over the driver's libraries: the limit holds even if the job clears its environment. Otherwise the shims are only
preloaded, and `is_advisory` is True. There is no automatic fallback: a slice made for one way is never used the other way.
The path of the real driver behind the shim is determined in enforcement and written into the slice.
"""

import errno
import functools
import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pgpu.errors import EnforcementError, NodeError, PgpuBug, RequestError, RuntimeUnavailableError
from pgpu.host.process_identity import identify_unreaped
from pgpu.libraries import CUDA_SHIM, LAUNCHER, NVML_SHIM, library_path
from pgpu.model import Account, Delivery, Holder, Job, JobSpec, ProcessHolder
from pgpu.runtimes import Stdio
from pgpu.runtimes.account import give_streams, give_usage, launcher_words, switches
from pgpu.runtimes.cgroups import LimitCgroup
from pgpu.runtimes.launcher import Launch, failure_of, launch
from pgpu.runtimes.lineage import Lineage, hold_mount_namespace
from pgpu.runtimes.process_table import JOB_ID_VARIABLE
from pgpu.runtimes.running_process import RunningProcess, open_process


class ProcessRuntime:
    """The `Runtime` of jobs without an image."""

    def __init__(
        self, *, can_make_views: Callable[[], bool] | None = None, limit_cgroup: LimitCgroup | None = None
    ) -> None:
        """Start nothing yet.

        Args:
            can_make_views: Returns True if a private mount namespace works here; by default the launcher tries one.
            limit_cgroup: Applies `Delivery.cgroup_limits`; None if the driver enforcer is not used.
        """
        self._can_make_views = can_make_views or can_make_private_views
        self._limit_cgroup = limit_cgroup

    @property
    def name(self) -> str:
        return "process"

    def check(self, spec: JobSpec, account: Account | None = None) -> None:
        """Reject options that only containers support.

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
            return  # the directory is checked with the user's own rights, by the launcher
        directory = spec.working_directory
        if directory is not None and not os.path.isdir(directory):  # noqa: PTH112 - of a path that is too long, `is_dir` raises
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
            RuntimeUnavailableError: The kernel rejected a step.
        """
        if job.lease is None:
            raise PgpuBug(f"job {job.id} is started without a lease")
        is_private = delivery.has_slice and not job.lease.is_advisory
        words = [*launcher_words(account), *_launcher_words(job.spec, delivery, is_private=is_private)]
        environment = _environment(job, delivery, account, is_private=is_private)
        if account is not None and switches(account):
            if not is_private and delivery.has_slice:
                raise PgpuBug(f"a job of user {account.uid} was granted a slice that others may read")
            give_streams(stdio, account)
            if delivery.has_slice:
                give_usage(delivery, account)
        with launch(words, stdio) as launched:
            launched.hand_over(environment)
            # The launcher has made its mounts and now reads its control pipe. The command will have the same PID.
            running = _attach(job, launched, stdio, is_private=is_private)
            self._let_go(running, delivery, launched, announce)
        return running

    def adopt(self, job: Job, stdio: Stdio) -> RunningProcess | None:
        """Attach to a job that another agent started, or that has ended since and left a record."""
        if not isinstance(job.holder, ProcessHolder):
            return None
        pidfd = open_process(job.holder)
        if pidfd is None and (stdio.monitor is None or not stdio.monitor.knows_end):
            return None
        is_private = job.lease is not None and bool(job.lease.slices) and not job.lease.is_advisory
        lineage = _lineage(job.id, job.holder, is_private=is_private)
        return RunningProcess(job.holder, lineage, pidfd, None, stdio.monitor)

    def is_advisory(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the same for every process
        """True if only a preload is possible here."""
        return not self._can_make_views()

    def image_id(self, spec: JobSpec) -> str:  # noqa: ARG002 - the same for every process
        """Empty: a process uses this machine's own files."""
        return ""

    def can_load_driver(self, spec: JobSpec) -> bool:  # noqa: ARG002 - the same for every process
        """True: the machine's C library is the one that pgpu uses."""
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
            # The limit binds and the ledger has the holder before the command's first instruction. After a crash before `let_go`
            # the control pipe is closed, and the launcher exits without the command.
            self._apply_cgroup_limits(running, delivery)
            announce(running.holder)
            launched.let_go()
        except BaseException:  # includes KeyboardInterrupt; `running` is not returned, so it is closed here
            running.close()
            raise

    def _apply_cgroup_limits(self, running: RunningProcess, delivery: Delivery) -> None:
        if not delivery.cgroup_limits:
            return
        if self._limit_cgroup is None:
            raise EnforcementError("this lease needs the driver's own limit, and nothing here can set it")
        self._limit_cgroup(running.enter_leaf(), delivery)


def can_make_private_views() -> bool:
    """True if this user may create the namespaces for a private view."""
    return why_no_private_view() is None


@functools.cache
def why_no_private_view() -> str | None:
    """Try a private view once per process, in a subprocess; return the reason for its failure in one line, or None."""
    try:
        program = library_path(LAUNCHER)
    except NodeError as error:
        return str(error)
    words = [str(program), "--probe", *_shadow_words(), "--preload-path", str(PRELOAD_PATH)]
    import subprocess  # noqa: PLC0415 - commands that submit try none

    # A subprocess, since unshare(CLONE_NEWUSER) fails in a process with threads and cannot be undone.
    tried = subprocess.run(words, env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return None
    return str(failure_of(tried.stderr.rstrip("\n")))  # without a report pipe it reports on stderr


def _launcher_words(spec: JobSpec, delivery: Delivery, *, is_private: bool) -> list[str]:
    words = ["--tty"] if spec.wants_tty else []
    if spec.working_directory is not None:
        words += ["--directory", spec.working_directory]
    if is_private:
        append_host_preloads(delivery.slice_directory / PRELOAD_PATH.name, PRELOAD_PATH)
        words += ["--slice", str(delivery.slice_directory), "--usage", str(delivery.usage_path)]
        if delivery.time_path is not None and delivery.board_directory is not None:
            words += ["--time", str(delivery.time_path), "--board", str(delivery.board_directory)]
        if delivery.simulated_state_directory is not None:
            words += ["--simulated", str(delivery.simulated_state_directory)]
        if delivery.mps_pipe_directory is not None:
            words += ["--mps", str(delivery.mps_pipe_directory)]
        for name, path in delivery.driver_files:
            words += ["--driver", f"{name}={path}"]
        words += [*_shadow_words(), "--preload-path", str(PRELOAD_PATH)]
    return [*words, "--", *spec.command]


def _shadow_words() -> Iterable[str]:
    for shim, path in shadows():
        yield from ("--shadow", f"{shim}={path}")


def append_host_preloads(slice_file: Path, host_file: Path) -> None:
    """Append the machine's own preloads to the slice's file, which is mounted over the machine's."""
    try:
        theirs = host_file.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return
    ours = slice_file.read_text(encoding="utf-8")
    slice_file.write_text(f"{ours.rstrip()}\n{theirs}", encoding="utf-8", errors="surrogateescape")


def _environment(job: Job, delivery: Delivery, account: Account | None, *, is_private: bool) -> Mapping[str, str]:
    """Merge the user's environment (this process's own without an account), the job's variables and the slice's."""
    theirs = dict(os.environ if account is None else account.environment)
    environment = {**theirs, **dict(job.spec.environment), **dict(delivery.environment), JOB_ID_VARIABLE: job.id}
    if not is_private and delivery.has_slice:
        shims = [str(delivery.slice_directory / name) for name in (CUDA_SHIM, NVML_SHIM)]
        present = environment.get("LD_PRELOAD")
        # The dynamic linker takes the first definition of a symbol: the shims precede the job's own preloads.
        environment["LD_PRELOAD"] = ":".join([*shims, *([present] if present else [])])
    return environment


def _attach(job: Job, launched: Launch, stdio: Stdio, *, is_private: bool) -> RunningProcess:
    holder = identify_unreaped(launched.pid)
    if holder is None:
        raise RuntimeUnavailableError("the job's process vanished before it was started")
    lineage = _lineage(job.id, holder, is_private=is_private)
    try:
        pidfd = os.pidfd_open(launched.pid)
    except OSError as exc:
        hint = "pgpu needs Linux 5.4 or newer" if exc.errno == errno.ENOSYS else None
        raise RuntimeUnavailableError(f"the job's process cannot be watched: {exc.strerror}", hint=hint) from exc
    return RunningProcess(holder, lineage, pidfd, _terminal_path(job.spec, stdio), stdio.monitor)


def _lineage(job_id: str, holder: ProcessHolder, *, is_private: bool) -> Lineage:
    namespace = hold_mount_namespace(holder.pid) if is_private else None
    # If the process has ended, its PID may have been reused, and the namespace may be another process's.
    if namespace is not None and identify_unreaped(holder.pid) != holder:
        namespace.close()
        namespace = None
    return Lineage(job_id, holder, namespace)


def _terminal_path(spec: JobSpec, stdio: Stdio) -> Path | None:
    # A path and not a descriptor: a slave side that stays open here would suppress the hang-up at the job's end.
    return Path(os.ttyname(stdio.stdin)) if spec.wants_tty else None


PRELOAD_PATH = Path("/etc/ld.so.preload")

_SHIM_OF = {"libcuda.so.1": CUDA_SHIM, "libcuda.so": CUDA_SHIM, "libnvidia-ml.so.1": NVML_SHIM}

_OTHER_DIRECTORIES = (
    "/usr/lib",
    "/usr/lib/wsl/lib",
    "/run/opengl-driver/lib",  # NixOS
    "/usr/local/cuda/compat",  # forward compatibility: a newer libcuda than the kernel module's own
    "/usr/local/cuda-*/compat",
)
_CACHE_LINE = re.compile(r"\s(?P<name>libcuda\.so(?:\.1)?|libnvidia-ml\.so\.1) \(.*\) => (?P<path>/\S+)")


@functools.cache
def shadows() -> tuple[tuple[str, Path], ...]:
    """Return (shim's file name, path without symbolic links) for each mount target of a shim.

    All existing copies that the dynamic linker or a well-known absolute path leads to are covered, including 32-bit ones, so
    that they fail instead of bypassing the limit. A library that does not exist is placed in the linker's standard
    directories, since a simulated job on a machine without a driver must find one there.
    """
    # Resolved: a mount on a symbolic link covers its target, and one file must not be mounted over twice.
    targets = {path.resolve(): _SHIM_OF[path.name] for path in _existing()}
    missing = {shim for shim in _SHIM_OF.values() if shim not in targets.values()}
    import sysconfig  # noqa: PLC0415 - likewise

    multiarch = sysconfig.get_config_var("MULTIARCH")
    standard = ("/usr/lib64",) if multiarch is None else (f"/usr/lib/{multiarch}", "/usr/lib64")
    for directory in (Path(name) for name in standard if Path(name).is_dir()):
        targets |= {(directory / name).resolve(): shim for name, shim in _SHIM_OF.items() if shim in missing}
    return tuple((shim, path) for path, shim in targets.items())


def _existing() -> Iterator[Path]:
    import subprocess  # noqa: PLC0415 - likewise

    # ldconfig lies outside the PATH of ordinary users; on some distributions in one of these only.
    for program in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        if Path(program).exists():
            listing = subprocess.run([program, "-p"], capture_output=True, text=True, check=False).stdout
            yield from (path for found in _CACHE_LINE.finditer(listing) if (path := Path(found["path"])).exists())
            break
    for pattern in _OTHER_DIRECTORIES:
        for directory in glob.glob(pattern):  # noqa: PTH207 - patterns are absolute
            yield from (path for name in _SHIM_OF if (path := Path(directory) / name).exists())
