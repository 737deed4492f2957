"""The NVIDIA driver and its GPUs, asked in a process of their own: a broken driver must not take the doctor along."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from pgpu.app.composition import open_ledger
from pgpu.app.settings import Settings
from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.errors import NodeError
from pgpu.libraries import CUDA_SHIM_VERSION
from pgpu.model import Gpu
from pgpu.model.finding import Finding, fine, weak
from pgpu.units import format_memory

_PATIENCE_SECONDS = 60


def driver(settings: Settings) -> Iterator[Finding]:
    """List the real GPUs, and ask whether the shim knows their driver's functions."""
    listing = _listing()
    found = _gpus(listing)
    for gpu in found:
        memory = format_memory(gpu.memory_bytes)
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
    """Compare the newest CUDA that the driver serves with the newest whose functions the shim knows.

    Args:
        cuda_version: As 1000 · major + 10 · minor; None without a driver.
    """
    if cuda_version is None or cuda_version <= CUDA_SHIM_VERSION:
        return
    served, known = _written(cuda_version), _written(CUDA_SHIM_VERSION)
    yield weak(
        "driver",
        f"the driver serves CUDA {served}, and this pgpu knows its functions up to {known}: "
        "memory taken by functions that are newer is not limited, newer versions of limited functions are refused",
        "install a pgpu that is newer, or a driver that is older",
    )


def locks(settings: Settings) -> Iterator[Finding]:
    """Ask whether another ledger shares out these GPUs."""
    found = real_gpus()
    held = GpuLocks(open_ledger(settings).path)
    try:
        held.hold(found)
    finally:
        held.close()
    if found:
        yield fine("GPU locks", "no other ledger shares out these GPUs")


def real_gpus() -> Sequence[Gpu]:
    """List the machine's real GPUs.

    Raises:
        NodeError: There is a driver, and it cannot be asked.
    """
    return _gpus(_listing())


def _gpus(listing: dict[str, Any]) -> Sequence[Gpu]:
    return [Gpu(**gpu) for gpu in listing["gpus"]]


def _written(cuda_version: int) -> str:
    return f"{cuda_version // 1000}.{cuda_version % 1000 // 10}"


def _listing() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pgpu.app.doctor.listing"],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise NodeError(f"the NVIDIA driver cannot be asked: {last}", hint="see whether nvidia-smi works")
    listing: dict[str, Any] = json.loads(done.stdout)
    return listing
