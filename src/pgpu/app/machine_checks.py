"""Checks of the NVIDIA driver, its GPUs and MPS.

The driver is loaded in another process (`python -m pgpu.app.doctor.gpu_checks`): a broken one must not end the doctor.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pgpu.app.composition import gpu_source, open_ledger
from pgpu.app.settings import Settings
from pgpu.enforcement.mps import MpsControl, find_control
from pgpu.engine.leases.gpu_lock import GpuLocks
from pgpu.errors import NodeError, PgpuError
from pgpu.libraries import CUDA_SHIM_VERSION
from pgpu.model import Gpu
from pgpu.model.finding import Finding, fine, weak
from pgpu.units import format_memory

_TIMEOUT_SECONDS = 60
_DEFAULT_PIPE_DIRECTORY = Path("/tmp/nvidia-mps")  # noqa: S108 - NVIDIA's default; nothing is written there
_DEFAULT_LOG_DIRECTORY = Path("/var/log/nvidia-mps")


def driver(settings: Settings) -> Iterator[Finding]:
    """List the real GPUs, and compare their driver's CUDA version with the shim's."""
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
    """Compare the driver's CUDA version with the newest one whose functions the shim limits.

    Args:
        cuda_version: 1000 · major + 10 · minor; None without a driver.
    """
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
    return _gpus(_listing())


def _gpus(listing: dict[str, Any]) -> Sequence[Gpu]:
    return [Gpu(**gpu) for gpu in listing["gpus"]]


def _format_version(cuda_version: int) -> str:
    return f"{cuda_version // 1000}.{cuda_version % 1000 // 10}"


def _listing() -> dict[str, Any]:
    """Run this module as a program, which prints the driver's version and its GPUs."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pgpu.app.doctor.gpu_checks"],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
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
    if control.servers() is not None:
        yield weak(
            "MPS",
            f"a control daemon that is not pgpu's listens in {control.pipe_directory}: jobs in other modes become its clients",
            "end it: echo quit | nvidia-cuda-mps-control",
        )


def _print_listing() -> None:
    try:
        source = gpu_source(None)
        found = {"cuda_version": source.cuda_version(), "gpus": [dataclasses.asdict(gpu) for gpu in source.gpus()]}
        sys.stdout.write(json.dumps(found))
    except PgpuError as exc:
        raise SystemExit(str(exc)) from exc


if __name__ == "__main__":
    _print_listing()
