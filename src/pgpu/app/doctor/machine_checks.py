"""Checks of the installation and its directories: versions, C libraries, kernel, container engine, ledger, slices."""

import getpass
import importlib.util
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pgpu.app.composition import open_ledger
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings
from pgpu.distribution import FOREIGN_NAME, NAME, extra_hint, foreign_version, installed_version
from pgpu.errors import NodeError, RequestError, RuntimeUnavailableError
from pgpu.libraries import (
    CUDA_SHIM,
    LAUNCHER,
    NVML_SHIM,
    SIMULATED_CUDA,
    SIMULATED_MPS_CONTROL,
    SIMULATED_NVML,
    library_path,
)
from pgpu.model.finding import Finding, broken, fine, weak
from pgpu.runtimes.process import why_no_private_view

_NEEDED = (CUDA_SHIM, NVML_SHIM, LAUNCHER)
_FOR_SIMULATION = (SIMULATED_CUDA, SIMULATED_NVML, SIMULATED_MPS_CONTROL)


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
    if importlib.util.find_spec("docker") is None:
        yield weak("container engine", "the docker SDK is not installed", extra_hint("docker"))
        return
    from pgpu.runtimes.docker.describing import describe_engine

    try:
        yield fine("container engine", describe_engine())
    except RuntimeUnavailableError as exc:
        yield weak("container engine", f"{exc}; jobs can run as processes", exc.hint)


def volumes_of_users(settings: Settings) -> Iterator[Finding]:
    """Mount a volume as root's server does for a user's container; other users skip this check."""
    if os.geteuid() != 0 or importlib.util.find_spec("docker") is None:
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
    if os.geteuid() == 0 or not Path("/run/systemd/system").is_dir():
        return
    user = getpass.getuser()
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
    """Find slices without a live job."""
    slices = runtime_directory(settings.runtime_dir, settings.state_dir) / "slices"
    known = {entry.job.id for entry in open_ledger(settings).entries(include_final=False)}
    orphans = sorted(path.name for path in slices.glob("*") if path.name not in known)
    if orphans:
        yield weak("leftovers", f"slices without a job: {', '.join(orphans)}", f"remove them from {slices}")
    else:
        yield fine("leftovers", "no slice is left without its job")
