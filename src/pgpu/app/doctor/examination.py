"""The order of the checks, causes before their effects, and the last ones: trials of a slice.

An error in a check is a finding and does not end the others. In a trial, a small program allocates in a slice: what fits
must be granted, what does not fit must be refused. It takes the path of every job: ledger, supervisor, shim, driver.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from pgpu.app.clients import open_client
from pgpu.app.doctor import gpu_checks, machine_checks
from pgpu.app.runtime_directory import runtime_directory
from pgpu.app.settings import Settings
from pgpu.client import Client
from pgpu.enforcement.slice_files import IN_JOB
from pgpu.errors import PgpuError, WaitTimeoutError
from pgpu.libraries import PROBE, library_path
from pgpu.model import Job, JobSpec, Request
from pgpu.model.finding import Finding, broken, fine, weak
from pgpu.units import GIB, MIB

Check = Callable[[Settings], Iterator[Finding]]

_SLICE_BYTES = 1 * GIB
_FITTING_BYTES = 16 * MIB
_CUDA_SUCCESS = 0
_CUDA_OUT_OF_MEMORY = 2
_TIMEOUT_SECONDS = 20.0


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
            yield _try(name, open_client(own), image)
        finally:
            shutil.rmtree(runtime_path, ignore_errors=True)


def try_real_gpu(settings: Settings) -> Iterator[Finding]:
    """Try a slice of a real GPU; a warning if none has room for it now."""
    if not gpu_checks.real_gpus():
        return
    try:
        yield _try("trial on a GPU", open_client(replace(settings, simulate=None)))
    except WaitTimeoutError as exc:
        yield weak("trial on a GPU", f"no GPU has room for it: {exc}", "try again later")


def _try(name: str, client: Client, image: str | None = None) -> Finding:
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
    ("versions", machine_checks.versions),
    ("distribution", machine_checks.foreign_distribution),
    ("libraries", machine_checks.libraries),
    ("state directory", machine_checks.ledger),
    ("runtime directory", machine_checks.runtime_folder),
    ("logout", machine_checks.logout),
    ("leftovers", machine_checks.leftovers),
    ("private views", machine_checks.private_views),
    ("container engine", machine_checks.container_engine),
    ("volumes of users", machine_checks.volumes_of_users),
    ("driver", gpu_checks.driver),
    ("GPU locks", gpu_checks.locks),
    ("MPS", gpu_checks.mps),
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
            yield broken(name, str(exc), exc.hint)
