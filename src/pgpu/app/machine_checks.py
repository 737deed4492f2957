"""The checks of `pgpu doctor`: what pgpu needs of this machine, each with a remedy.

Checks run in the order of `CHECKS`, causes before their effects. An error in one is a finding and does not end the others.
The last ones are trials: a small program allocates in a slice, and what fits must be granted, what does not fit must be
refused. A trial takes the path of every job: ledger, agent, shim, driver.

The NVIDIA driver is loaded in another process (`python -m pgpu.app.machine_checks`): a broken one must not end the doctor.
"""

import getpass
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from pgpu.app.client_factory import open_client
from pgpu.app.composition import gpu_source, open_ledger
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings
from pgpu.client import Client
from pgpu.distribution import FOREIGN_NAME, NAME, foreign_version, installed_version
from pgpu.enforcement.mps import MpsControl, find_control
from pgpu.enforcement.slice_files import IN_JOB
from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.engine.leases.recovery import find_lacking, find_traces
from pgpu.engine.settings import EngineSettings
from pgpu.errors import NodeError, PgpuError, RequestError, RuntimeUnavailableError, WaitTimeoutError
from pgpu.libraries import (
    CUDA_SHIM,
    CUDA_SHIM_VERSION,
    LAUNCHER,
    NVML_SHIM,
    PROBE,
    SIMULATED_CUDA,
    SIMULATED_MPS_CONTROL,
    SIMULATED_NVML,
    library_path,
)
from pgpu.model import Gpu, Job, JobSpec, Request
from pgpu.model.finding import Finding, broken, fine, weak
from pgpu.runtimes.process_runtime import why_no_private_view
from pgpu.structs import replace, to_builtins
from pgpu.units import GIB, MIB, format_memory

_LISTING_TIMEOUT_SECONDS = 60
_DEFAULT_PIPE_DIRECTORY = Path("/tmp/nvidia-mps")  # noqa: S108 - NVIDIA's default; nothing is written there
_DEFAULT_LOG_DIRECTORY = Path("/var/log/nvidia-mps")
_NEEDED = (CUDA_SHIM, NVML_SHIM, LAUNCHER)
_FOR_SIMULATION = (SIMULATED_CUDA, SIMULATED_NVML, SIMULATED_MPS_CONTROL)
_SLICE_BYTES = 1 * GIB
_FITTING_BYTES = 16 * MIB
_CUDA_SUCCESS = 0
_CUDA_OUT_OF_MEMORY = 2
_TIMEOUT_SECONDS = 20.0
"""How long a trial waits for its slice."""

Check = Callable[[Settings], Iterator[Finding]]


def driver(settings: Settings) -> Iterator[Finding]:
    """List the real GPUs, and compare their driver's CUDA version with the shim's."""
    listing = _list_gpus()
    found = _parse_gpus(listing)
    for gpu in found:
        memory = format_memory(gpu.memory_bytes) + (" of the machine" if gpu.shares_host_memory else "")
        yield fine("driver", f"GPU {gpu.place}: {gpu.name}, {memory}, driver {gpu.driver_version}, {gpu.uuid}")
    if not found:
        remedy = (
            None
            if settings.simulate
            else 'install the driver or make instances, or simulate a GPU: pgpu --simulate "RTX 3090"'
        )
        yield weak(
            "driver", "no GPU: no NVIDIA driver, or MIG is on and no instance was made; simulated GPUs work", remedy
        )

    yield from cuda_version_findings(listing["cuda_version"])


def cuda_version_findings(cuda_version: int | None) -> Iterator[Finding]:
    """Compare the driver's CUDA version with the newest version that the shim covers.

    Args:
        cuda_version: 1000 · major + 10 · minor; None without a driver.
    """
    # A driver serves programs built for any older CUDA, so only a newer one can have functions that the shim lacks.
    if cuda_version is None or cuda_version <= CUDA_SHIM_VERSION:
        return
    served, known = _format_version(cuda_version), _format_version(CUDA_SHIM_VERSION)
    yield weak(
        "driver",
        f"the driver serves CUDA {served}, and this pgpu knows its functions up to {known}: "
        "memory taken by functions that are newer is not limited, newer versions of limited functions are refused",
        "install a pgpu that is newer, or a driver that is older",
    )


def locks(settings: Settings) -> Iterator[Finding]:
    """Check that no other ledger manages these GPUs."""
    found = real_gpus()
    # The engine of this ledger may hold the same locks: they exclude other ledgers only. They are released at once.
    held = GpuLocks(open_ledger(settings).path)
    try:
        held.hold(found)
    finally:
        held.close()
    if found:
        yield fine("GPU locks", "no other ledger manages these GPUs")


def real_gpus() -> Sequence[Gpu]:
    """List the machine's real GPUs.

    Raises:
        NodeError: There is a driver that does not answer.
    """
    return _parse_gpus(_list_gpus())


def _parse_gpus(listing: dict[str, Any]) -> Sequence[Gpu]:
    return [Gpu(**gpu) for gpu in listing["gpus"]]


def _format_version(cuda_version: int) -> str:
    return f"{cuda_version // 1000}.{cuda_version % 1000 // 10}"


def _list_gpus() -> dict[str, Any]:
    """Run this module as a program, which prints the driver's version and its GPUs."""
    # In another process and with a time limit: a broken driver library may crash or block its caller.
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pgpu.app.machine_checks"],
        capture_output=True,
        text=True,
        timeout=_LISTING_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NodeError(f"the NVIDIA driver does not answer: {last}", hint="see whether nvidia-smi works")
    listing: dict[str, Any] = json.loads(done.stdout)
    return listing


def mps(settings: Settings) -> Iterator[Finding]:
    """Find the MPS control program, and a daemon at NVIDIA's default path."""
    program = find_control(is_simulated=settings.simulate is not None)
    if program is not None:
        yield from mps_findings(MpsControl(program, _DEFAULT_PIPE_DIRECTORY, _DEFAULT_LOG_DIRECTORY, ""))
    elif real_gpus():
        yield weak(
            "MPS",
            "nvidia-cuda-mps-control is not on the PATH, so --sharing mps is refused",
            "install it; it comes with the driver, on Debian and Ubuntu in nvidia-compute-utils",
        )


def mps_findings(control: MpsControl) -> Iterator[Finding]:
    """Report the control program, and a daemon that programs without pgpu's variables would use.

    Args:
        control: The program, with the paths of that daemon.
    """
    yield fine("MPS", f"{control.program} can share a GPU among jobs")
    # CUDA looks for a daemon at the default path if CUDA_MPS_PIPE_DIRECTORY is not set: jobs in other modes find that one.
    if control.servers() is not None:
        yield weak(
            "MPS",
            f"a control daemon that is not pgpu's listens in {control.pipe_directory}: jobs in other modes become its clients",
            "end it: echo quit | nvidia-cuda-mps-control",
        )


def _print_listing() -> None:
    try:
        source = gpu_source(None)
        found = {"cuda_version": source.cuda_version(), "gpus": [to_builtins(gpu) for gpu in source.gpus()]}
        sys.stdout.write(json.dumps(found))
    except PgpuError as exc:
        raise SystemExit(str(exc)) from exc


def versions(_settings: Settings) -> Iterator[Finding]:
    """List versions for bug reports."""
    python, linux = platform.python_version(), platform.release()
    libc = " ".join(platform.libc_ver()) or "an unknown C library"
    yield fine("versions", f"pgpu {installed_version()}, Python {python}, Linux {linux}, {libc}, {platform.machine()}")


def foreign_distribution(_settings: Settings) -> Iterator[Finding]:
    """Warn of a distribution `pgpu`: it is another project's and overwrites files of this import package."""
    found = foreign_version()
    if found is None:
        yield fine("distribution", f"{NAME} alone provides the package pgpu")
        return
    yield weak(
        "distribution",
        f"the distribution {FOREIGN_NAME} {found}, another project, is installed beside {NAME} and shares its package",
        f"pip uninstall {FOREIGN_NAME}, then install {NAME} again from its wheel or checkout",
    )


def libraries(_settings: Settings) -> Iterator[Finding]:
    """Check that every C library is installed."""
    for names, report in ((_NEEDED, broken), (_FOR_SIMULATION, weak)):
        for name in names:
            try:
                library_path(name)
            except NodeError as exc:
                yield report("libraries", str(exc), exc.hint)
    yield fine("libraries", f"checked for {', '.join((*_NEEDED, *_FOR_SIMULATION))}")


def private_views(_settings: Settings) -> Iterator[Finding]:
    """Try a private mount namespace, which each process job needs."""
    # An unprivileged mount namespace needs a user namespace. Debian's kernel can forbid that by a sysctl, Ubuntu's by
    # AppArmor, a container engine by its seccomp profile: only a trial shows it.
    reason = why_no_private_view()
    if reason is None:
        yield fine("private views", "a process keeps its limit even if it drops its environment")
        return
    yield weak(
        "private views",
        f"the kernel allows no private user and mount namespaces, so limits of processes are advisory: {reason}",
        "as root: sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0",
    )


def container_engine(_settings: Settings) -> Iterator[Finding]:
    """Connect to the container engine."""
    from pgpu.runtimes.docker.docker_engine import describe_engine

    try:
        yield fine("container engine", describe_engine())
    except RuntimeUnavailableError as exc:
        yield weak("container engine", f"{exc}; jobs can run as processes", exc.hint)


def volumes_of_users(settings: Settings) -> Iterator[Finding]:
    """Mount a volume as root's server does for a user's container; other users skip this check."""
    if os.geteuid() != 0:
        return
    from pgpu.runtimes.docker.staging import try_volumes

    parent = runtime_directory(settings.runtime_dir, settings.state_dir)
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=parent) as place:
        try:
            try_volumes(Path(place) / "volumes")
            yield fine("volumes of users", "the container engine's root rights do not count in them")
        except (RequestError, RuntimeUnavailableError) as exc:
            yield weak("volumes of users", f"users of a server get none in containers: {exc}", exc.hint)


def ledger(settings: Settings) -> Iterator[Finding]:
    """Open the ledger, which checks its pages."""
    found = open_ledger(settings)
    live = found.entries(include_final=False)
    yield fine("state directory", f"{found.path}: {len(live)} live jobs")


def runtime_folder(settings: Settings) -> Iterator[Finding]:
    """Find the runtime directory; create it if it is missing."""
    yield fine("runtime directory", str(runtime_directory(settings.runtime_dir, settings.state_dir)))


def logout(settings: Settings) -> Iterator[Finding]:
    """Check that systemd keeps the runtime directory after a logout."""
    # This directory exists only if systemd is process 1: sd_booted(3).
    if os.geteuid() == 0 or not Path("/run/systemd/system").is_dir():
        return
    user = getpass.getuser()
    # logind removes /run/user/UID at the last logout, unless the user lingers; `loginctl enable-linger` makes this file.
    if Path("/var/lib/systemd/linger", user).exists():
        yield fine("logout", "jobs outlive your logout")
        return
    yield weak(
        "logout",
        f"systemd removes {runtime_directory(settings.runtime_dir, settings.state_dir)} when you log out, and with it"
        " the slices of running jobs",
        f"loginctl enable-linger {user}",
    )


def leftovers(settings: Settings) -> Iterator[Finding]:
    """Find slices without a live job, and traces of jobs that the ledger lacks."""
    directory = runtime_directory(settings.runtime_dir, settings.state_dir)
    slices, found = directory / "slices", open_ledger(settings)
    traces = find_traces(EngineSettings(settings.state_dir, directory))
    with found.view() as view:
        lacking, known = find_lacking(view, traces), {entry.job.id for entry in view.live()}
    if lacking:
        yield broken(
            "leftovers",
            f"the ledger {found.path} lacks jobs of which there are slices or records: {', '.join(lacking)}",
            "it was damaged or replaced: restore a copy, or once none of them runs remove"
            f" {', '.join(str(traces[job_id]) for job_id in lacking)}",
        )
    orphans = sorted(path.name for path in slices.glob("*") if path.name not in {*known, *lacking})
    if orphans:
        yield weak("leftovers", f"slices without a job: {', '.join(orphans)}", f"remove them from {slices}")
    elif not lacking:
        yield fine("leftovers", "no slice is left without its job")


def try_simulated_gpu(settings: Settings, image: str | None = None) -> Iterator[Finding]:
    """Try a slice of a simulated GPU, in a state directory of its own.

    Args:
        settings: Used but for the state directory and the GPU's model.
        image: Run in a container of this image; None for a process.
    """
    name = "trial on a simulated GPU" + (f" in {image}" if image else "")
    with tempfile.TemporaryDirectory(prefix="pgpu-doctor-") as directory:
        own = replace(settings, state_dir=Path(directory), simulate="rtx-3090")
        runtime_path = runtime_directory(own.runtime_dir, own.state_dir)
        try:
            yield _try_slice(name, open_client(own), image)
        finally:
            # The state directory is temporary, but its folder on the tmpfs is not below it.
            shutil.rmtree(runtime_path, ignore_errors=True)


def try_real_gpu(settings: Settings) -> Iterator[Finding]:
    """Try a slice of a real GPU; a warning if none has room for it now."""
    if not real_gpus():
        return
    # In another process: a process can load one NVML only, and this one has loaded the simulated NVML.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        try:
            yield process.submit(_real_trial, replace(settings, simulate=None)).result()
        except BrokenProcessPool as exc:
            raise NodeError("the process of the trial ended early", hint="see whether nvidia-smi works") from exc


def _real_trial(settings: Settings) -> Finding:
    try:
        return _try_slice("trial on a GPU", open_client(settings))
    except WaitTimeoutError as exc:
        return weak("trial on a GPU", f"no GPU has room for it: {exc}", "try again later")
    except PgpuError as exc:
        return broken("trial on a GPU", str(exc), exc.hint)


def _try_slice(name: str, client: Client, image: str | None = None) -> Finding:
    # Two jobs, so that a refused allocation cannot affect the other one. The second allocates the size of the slice, which
    # with the CUDA context on top never fits.
    inside, job = _allocate(client, _FITTING_BYTES, image)
    past, _ = _allocate(client, _SLICE_BYTES, image)
    if inside != _CUDA_SUCCESS:
        return broken(name, f"an allocation that fits returned {inside}: {job.error}", f"pgpu logs {job.id}")
    if past != _CUDA_OUT_OF_MEMORY:
        return broken(name, f"an allocation past the slice returned {past}", "the limit does not bind: report it")
    is_advisory = job.lease is not None and job.lease.is_advisory
    return fine(name, "the limit binds" + (", as long as the job keeps its environment" if is_advisory else ""))


def _allocate(client: Client, size_bytes: int, image: str | None) -> tuple[int | None, Job]:
    """Allocate in a slice; return CUDA's error code, or None without one, and the ended job."""
    program = library_path(PROBE) if image is None else IN_JOB / PROBE
    spec = JobSpec((str(program), "allocate", str(size_bytes)), "docker" if image else "process", image)
    job = client.submit(spec, Request(_SLICE_BYTES), wait_timeout_seconds=_TIMEOUT_SECONDS)
    ended = client.wait(job.id)
    text = b"".join(data for stream, data in client.logs(job.id, follow=False) if stream == "stdout").decode()
    answers = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    answer = answers.get("allocate", "")
    return (int(answer) if answer.isdecimal() else None), ended


CHECKS: tuple[tuple[str, Check], ...] = (
    ("versions", versions),
    ("distribution", foreign_distribution),
    ("libraries", libraries),
    ("state directory", ledger),
    ("runtime directory", runtime_folder),
    ("logout", logout),
    ("leftovers", leftovers),
    ("private views", private_views),
    ("container engine", container_engine),
    ("volumes of users", volumes_of_users),
    ("driver", driver),
    ("GPU locks", locks),
    ("MPS", mps),
    ("trial on a simulated GPU", try_simulated_gpu),
    ("trial on a GPU", try_real_gpu),
)


def examine(settings: Settings, image: str | None = None) -> Iterator[Finding]:
    """Run all checks.

    Args:
        settings: The settings to check.
        image: Also try a slice in a container of this image.
    """
    checks = list(CHECKS)
    if image is not None:
        checks.append(("trial in a container", partial(try_simulated_gpu, image=image)))
    for name, check in checks:
        try:
            yield from check(settings)
        except PgpuError as exc:
            # Findings of this check that were yielded before the error stay; the next check runs.
            yield broken(name, str(exc), exc.hint)


if __name__ == "__main__":
    _print_listing()
